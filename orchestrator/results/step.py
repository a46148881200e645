"""What may be run next: `steps` lists it, `best` is the step that is likeliest to decide the answer for a minute of training.

    complete configurations, file  -->  steps  -->  best  -->  the answer and `more`: settings of the file (`proposal`)
                                                               `search.until`: a `Decided` event

A step is more seeds of those whose scores decide, a larger size or a smaller size. Each is tried on the posterior
(`orchestrator.results.posterior.Evidence`): a truth is drawn from it, the trials that the step would add are drawn from that
truth, and the posterior is computed again with them. A size that nobody tried continues its method's curve. Rates have no such
curve: the next rate on a grid is as likely to diverge as to gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from craft.methods import METHODS
from craft.words import format_forecast, plural
from orchestrator.plan.plan import MOST_SEEDS
from orchestrator.results.front import FULL, HEAD, SEEDS, leaders
from orchestrator.results.metrics import SIZE, full_label
from orchestrator.results.posterior import LEAST_SIZES, UNTRIED, Evidence, Numbers
from orchestrator.results.probabilities import evidence
from orchestrator.results.summary import Summary
from orchestrator.sweepfile.settings import Bounds, Enough
from orchestrator.sweepfile.sweep import Sweep

FACTORS = {"larger": 2.0, "smaller": 0.5}
"""By how much another size changes the rank."""
MORE_SEEDS = (1, 2, 3, 5, 8)
DRAWS = 200
LARGE = 1000
"""From so many configurations on nothing is proposed: it would take minutes to weigh."""
LEAST_PROBABILITY, LIKELY = 0.1, 0.7
"""The probabilities of deciding from which on a step is worth its time, and most likely decides."""
NAMED = 4
"""So many configurations of a sentence are named."""
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


@dataclass(frozen=True)
class Step:
    """Trainings that may be run next.

    Attributes:
        configurations: ids of the trained configurations that get seeds; the one whose rank another size changes.
        seeds: how many each of them gets.
        seconds: its training time, all machines together; NaN if it is not known.
        settles: the probability that the answer is complete afterwards.
        size: the parameters of another size.
        beyond: the places of the configuration that another size continues, and of the next one (`Evidence.beyond`).
    """

    kind: Literal["seeds", "larger", "smaller"]
    configurations: tuple[str, ...]
    seeds: int
    seconds: float
    settles: float = 0.0
    size: float = math.nan
    beyond: tuple[int, int | None] = (0, None)

    @property
    def trainings(self) -> int:
        return self.seeds * len(self.configurations)


def steps(complete: Sequence[Summary], sweep: Sweep, may: Callable[[Step], bool]) -> tuple[list[Step], float | None, Evidence]:
    """Returns what may be run next; the probability that a larger size is better by more than `within`, None without one; and
    the evidence by which that is.
    """
    observed, rule, possible = evidence(complete, sweep.objectives, sweep.enough.within), sweep.enough, list[Step]()
    assert observed is not None
    tried, trained, few = len(complete), [row.trained for row in complete], int(max(observed.seeds))
    has_trend = (observed.size > 0).sum() >= LEAST_SIZES and (observed.errors + observed.luck).any()
    sizes = other_sizes(complete, *leaders(complete), few) if has_trend else []
    extended = _with_sizes(observed, sizes)
    draws = extended.draw()
    better = (draws[:, tried:] > draws[:, :tried].max(axis=1, keepdims=True) + rule.within).mean(axis=0)
    larger = next((float(share) for step, share in zip(sizes, better, strict=True) if step.kind == "larger"), None)
    if tried > LARGE:
        return [], larger, observed
    shown = observed.draw()  # the draws of the probabilities that people see
    if not is_decided(shown, observed, rule):  # else more seeds would say nothing new
        names = tuple(dict.fromkeys(trained[place] for place in in_doubt(shown, observed.size, rule)))
        have = max(observed.seeds[[name in names for name in trained]])
        # Seeds of some are added by `search.until`, which has a limit.
        most = math.inf if {*names} == {*trained} and not sweep.search.until else MOST_SEEDS
        counts = [count for count in MORE_SEEDS if SEEDS <= have + count <= most]
        seconds = seconds_of_seed(names, complete)
        possible = [Step("seeds", names, count, count * seconds) for count in counts]
    bounds = sweep.constraints.get(SIZE, Bounds(min=0))
    least, limit = bounds.min or 0.0, math.inf if bounds.max is None else bounds.max
    for step, share in zip(sizes, better, strict=True):
        if least <= step.size <= limit and (step.kind == "smaller" or share > 1 - rule.sure) and may(step):
            possible.append(step)
    weighed = []
    for step in possible:
        more = [step.seeds * (name in step.configurations) for name in trained] + [0] * len(sizes)
        if step in sizes:
            more = [step.seeds * (place == tried + sizes.index(step)) for place in range(tried + len(sizes))]
        compared, decided = slice(tried if step.kind == "seeds" else None), list[bool]()
        for foreseen in _foresee(extended, more):
            part = replace(foreseen, size=foreseen.size[compared], seeds=foreseen.seeds[compared])
            decided.append(is_decided(foreseen.draw(DRAWS)[:, compared], part, rule))
        weighed.append(replace(step, settles=float(np.mean(decided))))
    return weighed, larger, observed


def best(possible: Sequence[Step], least: float = LEAST_PROBABILITY) -> Step | None:
    """Returns the step that is likeliest to decide for its time, or for its number of trainings where the time of any is not
    known; None if none decides with the probability `least`."""
    timed = all(math.isfinite(step.seconds) for step in possible)
    worth = [step for step in possible if step.settles >= least]
    return max(worth, key=lambda step: step.settles / max(step.seconds if timed else step.trainings, 1e-9), default=None)


def other_sizes(complete: Sequence[Summary], best: Summary, chosen: Summary, seeds: int = 1) -> list[Step]:
    """Returns the sizes that could be tried beyond the ends: a larger one than the best's, a smaller one than the taken's."""
    adapters, sizes = [row for row in complete if row.method not in (HEAD, FULL) and row.value(SIZE) > 0], list[Step]()
    ends: tuple[tuple[Literal["larger", "smaller"], Summary, Callable[..., Any]], ...]
    ends = (("larger", best, max), ("smaller", chosen, min))
    for kind, base, end in ends:
        if base in adapters and base.value(SIZE) == end(summary.value(SIZE) for summary in adapters):
            inner = [row for row in adapters if row.method == base.method and row.value(SIZE) != base.value(SIZE)]
            next_one = end(inner, key=lambda row: row.value(SIZE), default=None)
            size = base.value(SIZE) * FACTORS[kind] ** (2 if rank_key(base) == "ranks" else 1)  # CRAFT's are squares
            places = complete.index(base), None if next_one is None else complete.index(next_one)
            seconds = seeds * seconds_of_seed([base.trained], complete)
            sizes.append(Step(kind, (base.configuration,), seeds, seconds, size=size, beyond=places))
    return sizes


def _with_sizes(evidence: Evidence, sizes: Sequence[Step]) -> Evidence:
    """Returns the evidence with configurations at its end of which there is no trial."""
    end = (0, len(sizes))
    return replace(
        evidence,
        means=np.pad(evidence.means, end, constant_values=evidence.means.mean()),
        errors=np.pad(evidence.errors, end, constant_values=UNTRIED),
        freedom=np.pad(evidence.freedom, end, constant_values=evidence.freedom.mean()),
        seeds=np.pad(evidence.seeds, end),
        size=np.append(evidence.size, [step.size for step in sizes]),
        luck=np.pad(evidence.luck, end, constant_values=np.median(evidence.luck)),
        beyond=tuple(step.beyond for step in sizes),
    )


def is_decided(scores: Numbers, evidence: Evidence, rule: Enough) -> bool:
    """Returns whether one configuration with SEEDS seeds is enough with the probability `sure`, and each smaller one with at
    most 1 - `sure`."""
    probabilities = (scores >= scores.max(axis=1, keepdims=True) - rule.within).mean(axis=0)
    sure = evidence.size[(probabilities >= rule.sure) & (evidence.seeds >= SEEDS)]
    return bool(sure.size) and not (probabilities[evidence.size < sure.min()] > 1 - rule.sure).any()


def in_doubt(scores: Numbers, size: Numbers, rule: Enough) -> NDArray[np.int_]:
    """Returns the places of the configurations whose scores decide: the one that is enough, or is the likeliest to be, smaller
    ones that may be, and those that may be the best."""
    probabilities = (scores >= scores.max(axis=1, keepdims=True) - rule.within).mean(axis=0)
    sure = np.flatnonzero(probabilities >= rule.sure)
    chosen = min(sure, key=lambda place: size[place]) if len(sure) else probabilities.argmax()
    smaller = (size < size[chosen]) & (probabilities > 1 - rule.sure)
    best = np.bincount(scores.argmax(axis=1), minlength=len(size)) / len(scores)
    return np.flatnonzero(smaller | (best >= LEAST_PROBABILITY) | (np.arange(len(size)) == chosen))


def _foresee(evidence: Evidence, more: Sequence[int]) -> Iterator[Evidence]:
    """Yields what the evidence may be after so many more seeds of each configuration, for truths drawn from the posterior."""
    added, random = np.asarray(more), np.random.default_rng(0)
    tried = evidence.seeds > 0
    one_seed = np.where(tried, evidence.errors * evidence.seeds, 0.0)
    one_seed = np.where(tried, one_seed, one_seed[tried].mean())
    share = evidence.luck / np.maximum(evidence.luck + evidence.errors, 1e-12)
    truths = max(20, min(60, 2000 // len(added)))
    for truth in random.permutation(evidence.draw())[:truths]:
        # A part of what separates mean and truth is the luck of the examples, which further seeds have, too.
        luck = share * np.where(tried, evidence.means - truth, 0.0)
        luck = luck + random.standard_normal(len(truth)) * np.sqrt(evidence.luck * (1 - share))
        fresh = truth + luck + random.standard_normal(len(truth)) * np.sqrt(one_seed / np.maximum(added, 1))
        total = evidence.seeds + added
        means = np.where(added > 0, (evidence.seeds * evidence.means + added * fresh) / np.maximum(total, 1), evidence.means)
        errors = np.where(total > 0, one_seed / np.maximum(total, 1), UNTRIED)
        yield replace(evidence, means=means, errors=errors, seeds=total)


def seconds_of_seed(trained: Sequence[str], summaries: Sequence[Summary]) -> float:
    """Returns the training time of one more seed of trained configurations; NaN if it is not known."""
    return sum(row.value("seconds") * len(row.tasks) for row in summaries if row.configuration in trained)


def describe_price(seconds: float) -> str:
    """Returns a time for people, ` (about 5 min)`; empty if it is not known."""
    return f" (about {format_forecast(seconds)})" if math.isfinite(seconds) and seconds > 0 else ""


def describe_seeds(step: Step, complete: Sequence[Summary]) -> str:
    """Returns which configurations get how many more seeds, such as `two more seeds of A and B`."""
    rows = [summary for summary in complete if summary.trained in step.configurations]
    names = list(dict.fromkeys(full_label(summary) for summary in rows))
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} more"]
    group = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    group = f"all {len(complete)} configurations" if len(rows) == len(complete) > 1 else group
    return f"{COUNTS[step.seeds]} more {plural(step.seeds, 'seed')} of {group}"


def rank_key(summary: Summary) -> str:
    """Returns the name of the parameter that is a method's rank or width; empty if it has none."""
    row = METHODS.get(summary.method)
    names = [row.rank, *sorted({"rank", "bottleneck"} & row.parameters.model_fields.keys())] if row else []
    return next(filter(None, names), "")

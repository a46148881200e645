"""What may be run next: `steps` lists it, `best` is the step that is likeliest to decide the answer for a minute of training.

    complete configurations, file  -->  steps  -->  best  -->  the answer and `more`: settings of the file (`settings_of`)
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

from craft.words import format_duration, plural
from orchestrator.plan.plan import MOST_SEEDS
from orchestrator.record.state import State
from orchestrator.results.front import FULL, HEAD, SEEDS, leaders
from orchestrator.results.metrics import SIZE, full_label
from orchestrator.results.next_settings import Settings, more_seeds, rank_key, resized
from orchestrator.results.posterior import UNTRIED, Evidence, Numbers
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
    sizes = other_sizes(complete, *leaders(complete), few) if observed.has_trend else []
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
        most = math.inf if {*names} == {*trained} else MOST_SEEDS
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
    many = len(sizes)

    def extended(values: Numbers, new: float) -> Numbers:
        return np.concatenate([values, np.full(many, new)])

    return replace(
        evidence,
        means=extended(evidence.means, float(evidence.means.mean())),
        errors=extended(evidence.errors, UNTRIED),
        freedom=extended(evidence.freedom, float(evidence.freedom.mean())),
        seeds=np.concatenate([evidence.seeds, np.zeros(many, dtype=int)]),
        size=np.concatenate([evidence.size, [step.size for step in sizes]]),
        luck=extended(evidence.luck, float(np.median(evidence.luck))),
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
    for truth in random.permutation(evidence.draw() * evidence.sign)[:truths]:
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


def pace_of(state: State) -> float:
    """Returns how many seconds of training the last session did in a second."""
    if state.started is None:
        return 1.0
    seconds = sum(
        entry.result.seconds for entry in state.trainings if entry.result is not None and entry.changed >= state.started.time
    )
    last = state.ended.time if state.ended is not None else max((entry.changed for entry in state.trainings), default=0.0)
    wall = last - state.started.time
    return seconds / wall if seconds > 0 and wall > 0 else 1.0


def describe_price(seconds: float) -> str:
    """Returns a time for people, ` (about 5 min)`, in whole minutes from 90 seconds on; empty if it is not known."""
    if not math.isfinite(seconds) or seconds <= 0:
        return ""
    if seconds < 90:
        return f" (about {max(1, round(seconds))} s)"
    return f" (about {format_duration(60 * round(seconds / 60)).removesuffix(' 00 s')})"


def describe_seeds(step: Step, complete: Sequence[Summary]) -> str:
    """Returns which configurations get how many more seeds, such as `two more seeds of A and B`."""
    rows = [summary for summary in complete if summary.trained in step.configurations]
    names = list(dict.fromkeys(full_label(summary) for summary in rows))
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} more"]
    group = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    group = f"all {len(complete)} configurations" if len(rows) == len(complete) else group
    return f"{COUNTS[step.seeds]} more {plural(step.seeds, 'seed')} of {group}"


def describe_step(step: Step, complete: Sequence[Summary], state: State) -> str:
    """Returns a step as a sentence's beginning, with its time."""
    time = describe_price(step.seconds / pace_of(state))
    if step.kind != "seeds":
        base = next(row for row in complete if row.configuration == step.configurations[0])
        return f"run a {step.kind} size of {full_label(base)}{time}"
    up_to = "up to " if step.seeds > 1 and "search.until" in settings_of(step, complete, state) else ""
    return f"run {up_to}{describe_seeds(step, complete)}{time}"


def settings_of(step: Step, complete: Sequence[Summary], state: State) -> Settings:
    """Returns the settings with which the sweep runs a step when it continues; empty where its file cannot say it.

    A file gives seeds to all. To some it does by `search.until`, which adds no more than decide.
    """
    sweep = state.sweep
    settings: Settings
    if step.kind != "seeds":
        base = next(row for row in complete if row.configuration == step.configurations[0])
        settings = resized(sweep, base, FACTORS[step.kind])
    elif sweep.search.until or not {row.trained for row in complete} <= {*step.configurations}:
        settings = {"search.until": "answered"}
    else:
        settings = more_seeds(sweep, step.seeds)
    if settings and sweep.budget.trials is not None:
        needed = len(state.trainings) + step.trainings * len(sweep.task_names)
        settings = {**settings, "budget.trials": max(needed, sweep.budget.trials)}
    return settings

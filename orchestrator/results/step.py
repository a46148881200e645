"""What may be run next: `steps` lists it, `best` is the step that is likeliest to decide the answer for a minute of training.

    complete configurations, file  -->  steps  -->  best  -->  the answer and `more`: settings of the file (`settings_of`)
                                                               `search.until`: a `Decided` event

A step is more seeds of those whose scores decide, a larger size or a smaller size. Each is tried on the posterior
(`orchestrator.results.posterior.Evidence`): a truth is drawn from it, the trials that the step would add are drawn from that
truth, and the posterior is computed again with them. A size that nobody tried continues its method's curve. Rates have no such
curve: the next rate on a grid is as likely to diverge as to gain. `takes` says whether a sweep takes the settings of a step.
"""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from craft.methods import METHODS
from craft.words import format_forecast, plural
from orchestrator.plan.configuration import text
from orchestrator.plan.plan import MOST_SEEDS
from orchestrator.plan.planner import Planner
from orchestrator.record.state import State
from orchestrator.results.front import FULL, HEAD, SEEDS, leaders
from orchestrator.results.metrics import SIZE, full_label
from orchestrator.results.posterior import LEAST_SIZES, UNTRIED, Evidence, Numbers
from orchestrator.results.probabilities import evidence
from orchestrator.results.summary import Summary
from orchestrator.results.tuning import number_of
from orchestrator.sweepfile.fair import RATE
from orchestrator.sweepfile.load import check
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.plain_yaml import Source
from orchestrator.sweepfile.settings import Bounds, Enough
from orchestrator.sweepfile.space.dimensions import covering
from orchestrator.sweepfile.sweep import Sweep

Settings = Mapping[str, Any]
"""Values of the sweep file by the paths that `--set` takes."""
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
    group = f"all {len(complete)} configurations" if len(rows) == len(complete) else group
    return f"{COUNTS[step.seeds]} more {plural(step.seeds, 'seed')} of {group}"


def describe_step(step: Step, complete: Sequence[Summary], state: State) -> str:
    """Returns a step as a sentence's beginning, with its time."""
    settings = settings_of(step, complete, state)
    time = describe_price(step.seconds * combinations(settings, state.sweep) / state.pace)
    if step.kind != "seeds":
        base = next(row for row in complete if row.configuration == step.configurations[0])
        return f"run a {step.kind} size of {full_label(base)}{time}"
    up_to = "up to " if step.seeds > 1 and "search.until" in settings else ""
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
    return within_budget(settings, step.trainings, state)


def combinations(settings: Settings, sweep: Sweep) -> int:
    """Returns how many configurations a new value of a method block is for: one for each combination of its other values."""
    key = next((key for key in settings if key.startswith("space.")), None)
    if key is None:
        return 1
    _, place, name = key.split(".", 2)
    left_out = {name, *sweep.tuned_settings}
    dimensions = sweep.blocks[int(place)].dimensions.items()
    return math.prod(len(dimension.ends) for other, dimension in dimensions if other not in left_out)


def within_budget(settings: Settings, trainings: int, state: State) -> Settings:
    """Returns the settings with a budget of trials that has room for so many trainings of each combination on each task."""
    limit, sweep = state.sweep.budget.trials, state.sweep
    if not settings or limit is None:
        return settings
    needed = len(state.trainings) + trainings * combinations(settings, sweep) * len(sweep.task_names)
    return {**settings, "budget.trials": max(needed, limit)}


def takes(state: State, settings: Settings) -> bool:
    """Returns whether the sweep can be continued with these settings: a command continues it, its file has no mistake with
    them, and what they add can be built."""
    if not state.again or not settings or state.started is None:
        return False
    source = Source(copy.deepcopy(state.started.sweep), {}, "")
    for key, value in settings.items():
        # `compare: fair` has been written out: its seeds are those of `replication`.
        path = "replication.seeds" if key == "seeds" and state.sweep.compare else key
        source.override(f"{path}={json.dumps(value)}")
    changed = sorted({int(key.split(".")[1]) for key in settings if key.startswith("space.") and not key.endswith(RATE)})
    return not check(source.content)[1] and (not changed or _can_plan(json.dumps(source.content), tuple(changed)))


@functools.lru_cache(maxsize=100)
def _can_plan(document: str, blocks: tuple[int, ...]) -> bool:
    """Returns whether each configuration of some method blocks can be built: ranks have a limit that only the model says."""
    sweep = Sweep.model_validate(json.loads(document))
    planner = Planner(sweep)
    try:
        for point in covering(tuple(sweep.blocks[block] for block in blocks)):
            planner.configuration(point)
    except SweepError:
        return False
    return True


def more_seeds(sweep: Sweep, count: int) -> Settings:
    """Returns the settings that add so many seeds of all configurations."""
    rule = sweep.replication
    reported, key = sweep.reported_seeds, "replication.seeds" if rule is not None and not sweep.compare else "seeds"
    used = {*sweep.seeds, *reported, *(rule.seeds if rule is not None else ())}
    new = [seed for seed in range(len(used) + count) if seed not in used][:count]
    return {key: [*(rule.seeds if rule is not None else reported), *new]}


def resized(sweep: Sweep, summary: Summary, factor: float) -> Settings:
    """Returns the settings that add a configuration of so many times the rank; empty where its block does not say it."""
    place, block = _block_of(sweep, summary)
    key = rank_key(summary)
    if key not in block or summary.source is not None:
        return {}
    values = _values(block[key])
    size = next((value for value in values if text(value) == text(summary.parameters.get(key))), None)
    new = _scaled(size, factor)
    return {} if new is None or new in values else {f"space.{place}.{key}": {"values": [*values, new]}}


def another_size(parameters: Mapping[str, Any], summary: Summary, factor: float) -> dict[str, Any]:
    """Returns a configuration's rank times `factor`, by its name; empty where it has none or that is no whole number."""
    new = _scaled(parameters.get(key := rank_key(summary)), factor)
    return {} if new is None else {key: new}


def rate_end(summary: Summary, summaries: Sequence[Summary]) -> tuple[str, float]:
    """Returns the end of three or more learning rates at which a configuration is, as `highest learning_rate`, empty if at
    none; and the next rate beyond. Two rates are no range: each is at an end."""
    if summary.tuning.candidates:
        return next((end for end in summary.tuning.at_end if end.split()[1] == RATE), ""), math.nan

    def others(row: Summary) -> tuple[Any, ...]:
        return row.method, *sorted((name, str(value)) for name, value in row.parameters.items() if name != RATE)

    own, rates = _rate(summary), sorted({_rate(row) for row in summaries if others(row) == others(summary)})
    if len(rates) < 3 or own not in (rates[0], rates[-1]):
        return "", math.nan
    last, inner = rates[:2] if own == rates[0] else rates[:-3:-1]
    return f"{'lowest' if own == rates[0] else 'highest'} {RATE}", _round(last * last / inner)


def other_rates(summary: Summary, sweep: Sweep) -> tuple[str, Settings]:
    """Returns the rates that the configuration's block tries, as text, and the settings that add one on both sides; no settings
    where its block is not known."""
    place, block = _block_of(sweep, summary)
    rates = [rate for value in _values(block.get(RATE, _rate(summary))) if math.isfinite(rate := number_of(value))]
    if not rates or not block:
        return ", ".join(f"{rate:g}" for rate in rates), {}
    ordered = sorted(rates)
    step = (ordered[-1] / ordered[0]) ** (1 / (len(ordered) - 1)) if len(ordered) > 1 else 3.0
    new = [_round(ordered[0] / step), _round(ordered[-1] * step)]
    return ", ".join(f"{rate:g}" for rate in ordered), {f"space.{place}.{RATE}": {"values": [*rates, *new]}}


def _block_of(sweep: Sweep, summary: Summary) -> tuple[int, Mapping[str, Any]]:
    """Returns the one method block of a configuration with its index; an empty one if several may be it."""
    blocks = [(place, block) for place, block in enumerate(sweep.space) if block.get("method") == summary.method]
    if len(blocks) > 1:
        key = rank_key(summary)
        rank = text(summary.parameters.get(key))
        blocks = [row for row in blocks if rank in map(text, _values(row[1].get(key)))]
    return blocks[0] if len(blocks) == 1 else (0, {})


def rank_key(summary: Summary) -> str:
    """Returns the name of the parameter that is a method's rank or width; empty if it has none."""
    row = METHODS.get(summary.method)
    names = [row.rank, *sorted({"rank", "bottleneck"} & row.parameters.model_fields.keys())] if row else []
    return next(filter(None, names), "")


def _values(setting: Any) -> list[Any]:
    return list(setting.get("values") or []) if isinstance(setting, Mapping) else [setting]


def _scaled(value: Any, factor: float) -> Any:
    """Returns a rank, or CRAFT's ranks of outputs and inputs, times `factor`; None where that is no whole number."""
    if isinstance(value, list) and len(value) == 3:
        numbers = [_scaled(part, factor) for part in value[1:]]
        return None if None in numbers else [value[0], *numbers]
    return int(value * factor) if type(value) is int and value * factor >= 1 else None


def _rate(summary: Summary) -> float:
    return number_of(summary.parameters.get(RATE))


def _round(rate: float) -> float:
    return float(f"{rate:.2g}")

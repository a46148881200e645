"""Further experiments of a sweep: their settings in its file, their time, and the command that runs them."""

from __future__ import annotations

import copy
import functools
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from craft.methods import METHODS
from craft.words import format_duration, plural
from orchestrator.plan.plan import MOST_SEEDS
from orchestrator.plan.planner import Planner
from orchestrator.record.state import State
from orchestrator.results.front import FULL, HEAD, SEEDS
from orchestrator.results.metrics import SIZE
from orchestrator.results.next_step import Action, Kind, Untried, propose
from orchestrator.results.posterior import Evidence
from orchestrator.results.probabilities import evidence
from orchestrator.results.summary import Summary
from orchestrator.results.table import full_label
from orchestrator.sweepfile.fair import RATE
from orchestrator.sweepfile.load import check
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.settings import Bounds
from orchestrator.sweepfile.space.dimensions import covering
from orchestrator.sweepfile.sweep import Sweep

Settings = Mapping[str, Any]
"""Values of the sweep file by the paths that `--set` takes."""
NAMED = 4
"""So many configurations of a sentence are named."""
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


def block_of(sweep: Sweep, summary: Summary) -> tuple[int, Mapping[str, Any]] | None:
    """Returns the one method block of a configuration, as it is written, with its index; None if several may be it."""
    blocks = [(place, block) for place, block in enumerate(sweep.space) if block.get("method") == summary.method]
    if len(blocks) > 1:
        key = _rank_key(summary)
        rank = summary.parameters.get(key)
        blocks = [row for row in blocks if any(_same(value, rank) for value in _values(row[1].get(key)))]
    return blocks[0] if len(blocks) == 1 else None


def resized(sweep: Sweep, summary: Summary, factor: float) -> Settings:
    """Returns the settings that add a configuration of so many times the rank; empty where its block does not say it."""
    block = block_of(sweep, summary)
    key = _rank_key(summary)
    if block is None or key not in block[1] or summary.source is not None:
        return {}
    values = _values(block[1][key])
    rank = summary.parameters.get(key)
    size = next((value for value in values if _same(value, rank)), None)
    new = _scaled(size, factor)
    return {} if new is None or new in values else {f"space.{block[0]}.{key}": {"values": [*values, new]}}


def another_size(parameters: Mapping[str, Any], summary: Summary, factor: float) -> dict[str, Any]:
    """Returns a configuration's rank times `factor`, by its name; empty where it has none or that is no whole number."""
    new = _scaled(parameters.get(key := _rank_key(summary)), factor)
    return {} if new is None else {key: new}


def more_command(state: State, settings: Settings) -> str:
    """Returns the command that continues the sweep with these settings; empty where none continues it, or the file may not have
    them."""
    if not state.again or not settings or not _takes(state, settings):
        return ""
    # A sweep that continues until it is answered needs no setting to do so.
    new = {key: value for key, value in settings.items() if (key, state.sweep.search.until) != ("search.until", value)}
    flags = [f"--set {shlex.quote(f'{key}={_yaml(value)}')}" for key, value in new.items()]
    return " ".join([state.again, *flags])


def _takes(state: State, settings: Settings) -> bool:
    """Returns whether the sweep's effective file has no mistake with these settings, and what they add can be planned here."""
    assert state.started is not None
    document: Any = copy.deepcopy(state.started.sweep)
    for key, value in settings.items():
        # `compare: fair` has been written out: its seeds are those of `replication`.
        written = "replication.seeds" if key == "seeds" and state.sweep.compare else key
        *path, last = written.split(".")
        section = document
        for part in path:
            section = section[int(part)] if isinstance(section, list) else section.setdefault(part, {})
        section[last] = value
    changed = sorted({int(key.split(".")[1]) for key in settings if key.startswith("space.") and not key.endswith(RATE)})
    return not check(document)[1] and (not changed or _can_plan(json.dumps(document), tuple(changed)))


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


def further(
    complete: Sequence[Summary], chosen: Summary, best: Summary, sweep: Sweep, may: Callable[[Untried], bool] = lambda row: True
) -> tuple[list[Action], float | None, Evidence]:
    """Returns what may be run next, weighed; the probability that a larger size is better by more than `within`, or None;
    and the evidence by which that is.

    Args:
        may: whether a size that was not tried can be run.
    """
    observed = evidence(complete, sweep.objectives, sweep.enough.within)
    assert observed is not None
    bounds = sweep.constraints.get(SIZE, Bounds(min=0))
    least, most = bounds.min or 0.0, math.inf if bounds.max is None else bounds.max
    beyond = untried_of(complete, chosen, best) if observed.has_trend else []
    untried = [replace(row, allowed=least <= row.size <= most and may(row)) for row in beyond]
    trained = [summary.source or summary.configuration for summary in complete]
    seconds = {name: seconds_of_seed([row], complete) for name, row in zip(trained, complete, strict=True)}
    actions, better = propose(observed, untried, trained, seconds, sweep.enough, SEEDS, MOST_SEEDS)
    return (
        actions,
        next((probability for row, probability in zip(untried, better, strict=True) if row.kind == "larger"), None),
        observed,
    )


def rate_end(summary: Summary, summaries: Sequence[Summary]) -> str:
    """Returns the end of the learning rates tried at which a configuration is, as `highest learning_rate`; empty if at none.

    Two rates are no range: each is at an end.
    """
    if summary.tuning is not None:
        return next((end for end in summary.tuning.at_end if RATE in end), "")
    return beyond_rates(summary, summaries)[0]


def beyond_rates(summary: Summary, summaries: Sequence[Summary]) -> tuple[str, float]:
    """Returns the end of three or more rates tried at which a configuration is, empty if at none, and the next rate beyond."""
    rates = sorted({_rate(row) for row in summaries if _apart_from_rate(row) == _apart_from_rate(summary)})
    if len(rates) < 3 or math.isnan(_rate(summary)) or _rate(summary) not in (rates[0], rates[-1]):
        return "", math.nan
    low = _rate(summary) == rates[0]
    last, inner = (rates[0], rates[1]) if low else (rates[-1], rates[-2])
    return f"{'lowest' if low else 'highest'} {RATE}", _round(last * last / inner)


def other_rates(summary: Summary, sweep: Sweep) -> tuple[str, Settings]:
    """Returns the rates that the configuration's block tries, as text, and the settings that add one on both sides; no settings
    where the block does not say them."""
    block = block_of(sweep, summary)
    if block is None or RATE not in block[1]:
        rate = _rate(summary)
        return ("" if math.isnan(rate) else f"{rate:g}"), {}
    rates = [float(value) for value in _values(block[1][RATE]) if isinstance(value, int | float | str) and _is_number(value)]
    if not rates:
        return "", {}
    ordered = sorted(rates)
    step = (ordered[-1] / ordered[0]) ** (1 / (len(ordered) - 1)) if len(ordered) > 1 else 3.0
    new = [_round(ordered[0] / step), _round(ordered[-1] * step)]
    return ", ".join(f"{rate:g}" for rate in ordered), {f"space.{block[0]}.{RATE}": {"values": [*rates, *new]}}


def seconds_of_seed(some: Sequence[Summary], summaries: Sequence[Summary]) -> float:
    """Returns the training time of one more seed of these configurations; a cut comes with its training. NaN if not known."""
    by_id = {summary.configuration: summary for summary in summaries}
    trained = {summary.source or summary.configuration for summary in some}
    return sum(by_id[name].value("seconds") * len(by_id[name].tasks) for name in trained if name in by_id)


def untried_of(complete: Sequence[Summary], chosen: Summary, best: Summary) -> list[Untried]:
    """Returns the sizes that could be tried beyond the ends: a larger one than the best's, a smaller one than the taken's."""
    adapters = [summary for summary in complete if summary.method not in (HEAD, FULL) and summary.value(SIZE) > 0]
    ends: tuple[tuple[Kind, Summary, float, Callable[..., Any]], ...]
    ends, untried = (("larger", best, 2.0, max), ("smaller", chosen, 0.5, min)), list[Untried]()
    for kind, base, factor, end in ends:
        if base in adapters and base.value(SIZE) == end(summary.value(SIZE) for summary in adapters):
            inner = [row for row in adapters if row.method == base.method and row.value(SIZE) != base.value(SIZE)]
            next_one = end(inner, key=lambda row: row.value(SIZE), default=None)
            size = base.value(SIZE) * factor ** (2 if _rank_key(base) == "ranks" else 1)  # CRAFT's are squares
            places = complete.index(base), None if next_one is None else complete.index(next_one)
            untried.append(Untried(kind, size, seconds_of_seed([base], complete), *places))
    return untried


def _rank_key(summary: Summary) -> str:
    """Returns the name of the parameter that is a method's rank or width; empty if it has none."""
    row = METHODS.get(summary.method)
    names = [row.rank, *sorted({"rank", "bottleneck"} & row.parameters.model_fields.keys())] if row else []
    return next(filter(None, names), "")


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


def _values(setting: Any) -> list[Any]:
    if isinstance(setting, Mapping):
        return list(setting.get("values") or [])
    return [setting]


def _scaled(value: Any, factor: float) -> Any:
    """Returns a rank, or CRAFT's ranks of outputs and inputs, times `factor`; None where that is no whole number."""
    if isinstance(value, list) and len(value) == 3:
        numbers = [_scaled(part, factor) for part in value[1:]]
        return None if None in numbers else [value[0], *numbers]
    if isinstance(value, bool) or not isinstance(value, int) or value * factor < 1:
        return None
    return int(value * factor)


def _same(value: Any, rank: Any) -> bool:
    texts = [",".join(map(str, part)) if isinstance(part, list | tuple) else str(part) for part in (value, rank)]
    return texts[0] == texts[1]


def _apart_from_rate(summary: Summary) -> tuple[Any, ...]:
    return summary.method, *sorted((name, str(value)) for name, value in summary.parameters.items() if name != RATE)


def _rate(summary: Summary) -> float:
    value = summary.parameters.get(RATE)
    return float(str(value)) if _is_number(value) else math.nan


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _round(rate: float) -> float:
    return float(f"{rate:.2g}")


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(part)}" for key, part in value.items()) + "}"
    return json.dumps(value, separators=(", ", ": ")).replace('"', "") if isinstance(value, list) else json.dumps(value)


def describe_seeds(action: Action, complete: Sequence[Summary]) -> str:
    """Returns which configurations get how many more seeds, such as `two more seeds of A and B`."""
    count = max(action.more)
    rows = [summary for summary, more in zip(complete, action.more, strict=False) if more]
    names = list(dict.fromkeys(full_label(summary) for summary in rows))
    group = f"all {len(complete)} configurations" if len(rows) == len(complete) else _listed(names)
    return f"{COUNTS[count]} more {plural(count, 'seed')} of {group}"


def _listed(names: Sequence[str]) -> str:
    if len(names) > NAMED:
        return f"{', '.join(names[: NAMED - 1])} and {len(names) - NAMED + 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def describe_action(action: Action, complete: Sequence[Summary], place: Summary, state: State, gain: str) -> tuple[str, str]:
    """Returns a sentence on an action, and its command.

    Args:
        gain: what it gives, the end of the sentence.
    """
    time, sweep = describe_price(action.seconds / pace_of(state)), state.sweep
    if action.kind != "seeds":
        settings = resized(sweep, place, 2 if action.kind == "larger" else 0.5)
        sentence = f"Next: run a {action.kind} size of {full_label(place)}{time}{gain}."
    elif sweep.search.until or not all(action.more[: len(complete)]):
        # A file gives seeds to all; to some it does by `until`, which adds no more than decide.
        settings = {"search.until": "answered"}
        most = "up to " if max(action.more) > 1 else ""
        sentence = f"Next: run {most}{describe_seeds(action, complete)}{time}{gain}."
    else:
        settings = more_seeds(sweep, max(action.more))
        sentence = f"Next: run {describe_seeds(action, complete)}{time}{gain}."
    if sweep.budget.trials is not None:
        trained = {row.source or row.configuration: more for row, more in zip(complete, action.more, strict=False)}
        added = sum(trained.values()) if action.kind == "seeds" else max(action.more, default=0)
        needed = len(state.trainings) + added * len(sweep.task_names)
        settings = {**settings, "budget.trials": max(needed, sweep.budget.trials)}
    return sentence, more_command(state, settings)

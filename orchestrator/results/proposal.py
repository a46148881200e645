"""A step as a sentence, and as settings of the sweep's file.

Step  -->  settings_of, more_seeds, longer, resized, other_rates  -->  within_budget  -->  takes: has the file a plan with them?
"""

from __future__ import annotations

import copy
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.plan.configuration import text
from orchestrator.plan.planner import Planner
from orchestrator.record.state import Entry, State
from orchestrator.results.metrics import full_label
from orchestrator.results.step import FACTORS, Step, describe_price, describe_seeds, rank_key
from orchestrator.results.summary import Summary
from orchestrator.results.tuning import number_of
from orchestrator.sweepfile.fair import RATE
from orchestrator.sweepfile.load import check
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.plain_yaml import Source
from orchestrator.sweepfile.space.dimensions import Choice, covering
from orchestrator.sweepfile.sweep import Sweep

Settings = Mapping[str, Any]
"""Values of the sweep file by the paths that `--set` takes."""
PASSES = 3
"""The passes over the rows that are proposed where a training was shorter than one."""


def describe_step(step: Step, complete: Sequence[Summary], state: State) -> str:
    settings = settings_of(step, complete, state)
    trainings = trainings_of(settings, state.sweep, step.trainings)
    time = describe_price(step.seconds * trainings / step.trainings / state.pace)
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


def trainings_of(settings: Settings, sweep: Sweep, each: int) -> int:
    """Returns how many trainings the settings add on a task if each new configuration gets `each`: a new value of a method
    block makes one for each combination of its other values, and all are tuned first unless it is a value of what is tuned."""
    key = next((key for key in settings if key.startswith("space.")), None)
    if key is None:
        return each
    _, place, name = key.split(".", 2)
    counts = {other: len(row.ends) for other, row in sweep.blocks[int(place)].dimensions.items() if other != name}
    candidates = math.prod(counts.pop(other, 1) for other in sweep.tuned_settings)
    tuning = candidates * len(sweep.seeds) if candidates > 1 and name not in sweep.tuned_settings else 0
    return math.prod(counts.values()) * (each + tuning)


def within_budget(settings: Settings, trainings: int, state: State) -> Settings:
    """Returns the settings with a budget of trials that has room for so many trainings of each combination on each task; or for
    more seeds of all that the file asks for, also of what has failed."""
    limit, sweep = state.sweep.budget.trials, state.sweep
    if not settings or limit is None:
        return settings
    if seeds := settings.get("seeds", settings.get("replication.seeds")):
        # Each size may need a training of its own.
        sizes = max(block.sizes if isinstance(block.sizes, int) else len(block.sizes or ()) for block in sweep.blocks)
        groups = {entry.trial.group for entry in state.trainings} - {None}
        trained = {entry.trial.configuration for entry in state.trainings if entry.trial.is_reported}
        trainings = (len(seeds) - len(sweep.reported_seeds)) * max(len(trained), len(groups) * (1 + sizes))
    # The plan of a sweep that tunes may take all of its limit, and less has run.
    planned = limit if sweep.tunes else len(state.trainings)
    return {
        **settings,
        "budget.trials": max(planned + trainings_of(settings, sweep, trainings) * len(sweep.task_names), limit),
    }


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
    changed = [(int(place), key) for _, place, key in (key.split(".", 2) for key in settings if key.startswith("space."))]
    changed = [(place, key) for place, key in changed if key != RATE]
    return not check(source.content)[1] and all(_can_plan(json.dumps(source.content), *change) for change in changed)


@functools.lru_cache(maxsize=100)
def _can_plan(document: str, place: int, key: str) -> bool:
    """Returns whether each configuration with the last value of a method block's key can be built and breaks no constraint:
    ranks have a limit that only the model says."""
    sweep = Sweep.model_validate(json.loads(document))
    planner, block = Planner(sweep), sweep.blocks[place]
    block = replace(block, dimensions={**block.dimensions, key: Choice(block.dimensions[key].ends[-1:])})
    try:
        return not any(planner.broken_constraint(planner.configuration(point)) for point in covering((block,)))
    except SweepError:
        return False


def more_seeds(sweep: Sweep, count: int) -> Settings:
    rule = sweep.replication
    reported, key = sweep.reported_seeds, "replication.seeds" if rule is not None and not sweep.compare else "seeds"
    used = {*sweep.seeds, *reported, *(rule.seeds if rule is not None else ())}
    new = [seed for seed in range(len(used) + count) if seed not in used][:count]
    return {key: [*(rule.seeds if rule is not None else reported), *new]}


def longer(state: State, passes: float) -> tuple[Settings, float]:
    """Returns the settings of a sweep of its own whose trainings make PASSES passes, empty where a task or block says its own,
    and the seconds that its trainings take.

    Args:
        passes: the passes of the training that made least, by which the time of the session grows.
    """
    sweep, settings = state.sweep, dict[str, Any]({"name": f"{state.sweep.name}-longer", "training.epochs": PASSES})
    if (limit := sweep.budget.wall_clock_seconds) is not None:
        settings["budget.wall_clock"] = f"{math.ceil(PASSES / passes * limit)}s"
    ended = [(entry.result.seconds, made) for entry in state.trainings if entry.result and (made := passes_of(entry))]
    layers: list[Mapping[str, Any]] = [*sweep.task_training.values()]
    layers += [layer for block in sweep.blocks for layer in (block.dimensions, *block.task_training.values())]
    of_their_own = any({"epochs", "max_steps"} & layer.keys() for layer in layers)  # which `training` does not change
    return {} if of_their_own else settings, sum(PASSES / made * seconds for seconds, made in ended)


def passes_of(entry: Entry) -> float:
    return entry.report.epoch if entry.report is not None else 0.0


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
    new, tried = [_round(ordered[0] / step), _round(ordered[-1] * step)], ", ".join(f"{rate:g}" for rate in ordered)
    settings = {f"space.{place}.{RATE}": {"values": [*rates, *new]}}
    if RATE not in block and sweep.training.learning_rate is None and trainings_of(settings, sweep, 1) > 1:
        return tried, {}  # the others have rates of their own, which these would replace
    return tried, settings


def _block_of(sweep: Sweep, summary: Summary) -> tuple[int, Mapping[str, Any]]:
    """Returns the one method block of a configuration with its index; an empty one if several may be it."""
    blocks = [(place, block) for place, block in enumerate(sweep.space) if block.get("method") == summary.method]
    if len(blocks) > 1:
        key = rank_key(summary)
        rank = text(summary.parameters.get(key))
        blocks = [row for row in blocks if rank in map(text, _values(row[1].get(key)))]
    return blocks[0] if len(blocks) == 1 else (0, {})


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

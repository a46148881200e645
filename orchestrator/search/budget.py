"""The `budget` of a sweep file: limits of the sweep, and a target that is enough.

A sweep whose budget is used up ends cleanly: no further trial starts, running trials keep their last checkpoints, and the
front shows the finished configurations. With a larger budget `--resume` continues.

- `trials`: a plan made beforehand is refused if it needs more; a searcher that learns proposes as many as fit.
- `wall_clock`: the time of this session.
- `target`: one configuration whose trials have all finished is as good in every metric named. Its score is the mean search
  score, like the score in every decision of a sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.results.search_values import costs_of, mean_score
from orchestrator.state.entry import Entry
from orchestrator.state.state import State
from orchestrator.sweepfile.settings import Budget


def satisfies(values: Mapping[str, float], target: Mapping[str, float], objectives: Mapping[str, Any]) -> bool:
    """Returns whether values are at least as good as each of a target's, in the direction of its objective."""
    return bool(target) and all(
        name in values and (values[name] >= enough if objectives[name] == "maximize" else values[name] <= enough)
        for name, enough in target.items()
    )


def find_exhausted(state: State, budget: Budget, objectives: Mapping[str, Any], seconds: float) -> str | None:
    """Returns what of the budget is used up, or reached; None while the sweep may continue.

    Args:
        seconds: the time of this session so far.
    """
    limit = budget.wall_clock_seconds
    if limit is not None and seconds >= limit:
        return f"budget.wall_clock: {budget.wall_clock} are over"
    configurations: dict[str, list[Entry]] = {}
    for entry in state.reported if budget.target else ():
        configurations.setdefault(entry.trial.configuration, []).append(entry)
    for entries in configurations.values():
        if all(entry.ended and entry.finished for entry in entries):
            values = _values(entries, budget.target, objectives)
            if satisfies(values, budget.target, objectives):
                reached = ", ".join(f"{name} {values[name]:g}" for name in budget.target)
                return f"budget.target: {entries[0].trial.label} reached it ({reached})"
    return None


def _values(entries: list[Entry], target: Mapping[str, float], objectives: Mapping[str, Any]) -> dict[str, float]:
    """Returns the values that a target names; only the score if that falls short, because the others are slow to compute."""
    score = {"score": mean_score(entries, {})} if "score" in target else {}
    short = score and not satisfies(score, {"score": target["score"]}, objectives)
    return score if short else score | costs_of(entries, target)

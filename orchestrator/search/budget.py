"""The `budget` of a sweep file: limits of the sweep, and a target that is enough.

A sweep whose budget is used up ends cleanly: no further trial starts, running trials keep their last checkpoints, and the
front shows the finished configurations. With a larger budget `--resume` goes on.

- `trials`: a plan made beforehand is refused if it needs more; a searcher that learns proposes as many as fit.
- `wall_clock`: the time of this session.
- `target`: one configuration whose trials have all finished is as good in every metric named. Its score is the mean search
  score, like the score in every decision of a sweep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.results.search_values import costs_of, mean_score
from orchestrator.state.entry import Entry
from orchestrator.state.state import State
from orchestrator.sweepfile.settings import Budget


def meets(values: Mapping[str, float], target: Mapping[str, float], objectives: Mapping[str, Any]) -> bool:
    """Whether values are at least as good as every one of a target's, each in its objective's direction."""
    return bool(target) and all(
        name in values and (values[name] >= wanted if objectives[name] == "maximize" else values[name] <= wanted)
        for name, wanted in target.items()
    )


def spent(state: State, budget: Budget, objectives: Mapping[str, Any], seconds: float) -> str | None:
    """Returns what of the budget is used up, or reached; None while the sweep may continue.

    Args:
        seconds: the time of this session so far.
    """
    limit = budget.wall_clock_seconds
    if limit is not None and seconds >= limit:
        return f"budget.wall_clock: {budget.wall_clock} are over"
    configurations: dict[str, list[Entry]] = {}
    for trial in state.asked_for if budget.target else ():
        configurations.setdefault(trial.configuration, []).append(trial)
    for trials in configurations.values():
        # Trials that only tune are not reported, so no target is reached by them.
        if all(trial.ended and trial.finished and trial.tunes is None for trial in trials):
            values = _values(trials, budget.target, objectives)
            if meets(values, budget.target, objectives):
                reached = ", ".join(f"{name} {values[name]:g}" for name in budget.target)
                return f"budget.target: {trials[0].label} reached it ({reached})"
    return None


def _values(trials: list[Entry], target: Mapping[str, float], objectives: Mapping[str, Any]) -> dict[str, float]:
    """Returns the values that a target names; only the score if that falls short, because the others are slow to compute."""
    score = {"score": mean_score(trials, {})} if "score" in target else {}
    short = score and not meets(score, {"score": target["score"]}, objectives)
    return score if short else score | costs_of(trials, target)


class Watch:
    """Watches a session's spending. `spent` is why the sweep is to end, or None while it may go on."""

    def __init__(
        self,
        budget: Budget,
        objectives: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            clock: seconds since any fixed moment.
        """
        self._budget, self._objectives, self._clock = budget, objectives, clock
        self._started = clock()
        self.spent: str | None = None

    def check(self) -> None:
        """Compares the time that has passed with the budget; called often."""
        limit = self._budget.wall_clock_seconds
        if limit is not None and self._clock() - self._started >= limit:
            self._end(f"budget.wall_clock: {self._budget.wall_clock} are over")

    def finished(self, label: str, values: Mapping[str, float]) -> None:
        """A configuration has finished all of its trials."""
        if meets(values, self._budget.target, self._objectives):
            reached = ", ".join(f"{name} {values[name]:g}" for name in self._budget.target)
            self._end(f"budget.target: {label} reached it ({reached})")

    def _end(self, why: str) -> None:
        self.spent = self.spent or why

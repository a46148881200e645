"""The values that a searcher gets for a configuration whose trials have ended.

The searcher gets the search score, never the reported score: choosing among many configurations by the reported score would
make the best of them look better than it is. A trial that was stopped counts with its last search score. One that was stopped
before it had any counts as the average of all other trials on its task with its seed, since nothing was measured. A
configuration with a failed trial has no score: the searcher learns that it failed.

A training whose adapter is cut to sizes is worth the area under the scores of all its outputs (`area`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from statistics import fmean
from typing import Any

from orchestrator.plan.trial import Trial
from orchestrator.results.summary import Summary
from orchestrator.state.entry import TrialResult


def area(points: Iterable[tuple[float, float]]) -> float:
    """The mean score over the logarithm of the number of parameters, between the smallest and the largest of `points`
    (parameters, score); of one point its score."""
    known = sorted(points)
    if len(known) == 1:
        return known[0][1]  # the control has no parameters, and 0 has no logarithm
    total, span = 0.0, math.log(known[-1][0] / known[0][0])
    for (small, low), (large, high) in pairwise(known):
        total += math.log(large / small) * (low + high) / 2
    return total / span if span else fmean(score for _, score in known)


def of_training(outputs: Iterable[Summary]) -> float:
    """What a training with these outputs is worth; NaN unless all of them have a score."""
    points = [(one.value("trainable_parameters"), one.value("search_score")) for one in outputs]
    return area(points) if all(math.isfinite(number) for point in points for number in point) else math.nan


class SearchValues:
    """Configurations' values for a searcher. It remembers the search scores of all trials it has seen."""

    def __init__(self, objectives: Mapping[str, Any]) -> None:
        self._objectives = objectives
        self._seen: dict[str, tuple[str, int]] = {}
        self._totals: dict[tuple[str, int], tuple[float, int]] = {}

    def of(self, summary: Summary, results: Mapping[str, TrialResult], spec: Callable[[str], Trial]) -> dict[str, float]:
        """The configuration's value on every objective it has a value for; for `score` the mean search score of its trials."""
        values = {name: summary.value(name) for name in self._objectives}
        if "score" in values and summary.finished + summary.stopped == summary.planned:
            searched = [self._score(key, results[key], spec) for key in summary.keys]
            if all(map(math.isfinite, searched)):
                values["score"] = fmean(searched)
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def _score(self, key: str, result: TrialResult, spec: Callable[[str], Trial]) -> float:
        score = result.metrics.get("search_score")
        run = spec(key).run
        total, count = self._totals.get((run.task, run.seed), (0.0, 0))
        if score is None:
            return total / count if count else math.nan
        if math.isfinite(score) and key not in self._seen:
            self._seen[key] = (run.task, run.seed)
            self._totals[run.task, run.seed] = (total + score, count + 1)
        return score

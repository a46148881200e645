"""What a searcher is told of a configuration whose trials have ended.

It is told the score on the split that selection may see, never the reported one: choosing among many configurations by the
reported score would make the best of them look better than it is. A trial that a scheduler stopped counts with its last search
score, so that what it cost to learn is not lost. A configuration with a failed trial has no score: the searcher hears that it
failed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from orchestrator.summary import Summary
from orchestrator.trial import TrialResult


def search_values(summary: Summary, results: Mapping[str, TrialResult], objectives: Mapping[str, Any]) -> dict[str, float]:
    """The configuration's value on every objective it has a value for; for `score` the mean search score of all its trials."""
    values = {name: summary.value(name) for name in objectives}
    if "score" in values and summary.finished + summary.stopped == summary.planned:
        searched = [results[key].metrics.get("search_score", math.nan) for key in summary.keys]
        if all(map(math.isfinite, searched)):
            values["score"] = fmean(searched)
    return {name: value for name, value in values.items() if math.isfinite(value)}

"""The values of a configuration for a searcher, as functions of its trials.

The search score counts, never the reported score: choosing among many configurations by the reported score would make the best
of them look better than it is. A trial that waits or was stopped counts with its last search score, one that has none with the
average of all others on its task with its seed. A configuration with a failed trial has failed.

A training whose adapter is cut is worth the area under the scores of its cuts and itself (`area`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from statistics import fmean

from orchestrator.record.state import Entry
from orchestrator.results.summary import summarize_entries

SEARCH_SCORE = "search_score"


Group = tuple[str, int]
"""A task and a seed."""


def area(points: Iterable[tuple[float, float]]) -> float:
    """Returns the mean score over the logarithm of the number of parameters, from the smallest to the largest of `points`.

    Args:
        points: (parameters, score). The area of a single point is its score.
    """
    rows = sorted(points)
    if len(rows) == 1:
        return rows[0][1]  # the control has no parameters, and 0 has no logarithm
    total, span = 0.0, math.log(rows[-1][0] / rows[0][0])
    for (small, low), (large, high) in pairwise(rows):
        total += math.log(large / small) * (low + high) / 2
    return total / span if span else fmean(score for _, score in rows)


def latest_score(entry: Entry) -> float | None:
    """Returns the search score of a trial's last evaluation; None before it has one."""
    if entry.ended and entry.result is not None:
        return entry.result.metrics.get(SEARCH_SCORE)
    return None if entry.report is None else entry.report.metrics.get(SEARCH_SCORE)


def mean_scores(trials: Iterable[Entry]) -> dict[Group, float]:
    """Returns the mean latest search score of the trained trials of each task and seed."""
    groups: dict[Group, list[float]] = {}
    for entry in trials:
        if not entry.trial.is_cut and (score := latest_score(entry)) is not None and math.isfinite(score):
            groups.setdefault((entry.trial.task, entry.trial.seed), []).append(score)
    return {group: fmean(scores) for group, scores in groups.items()}


def mean_score(trials: Sequence[Entry], means: Mapping[Group, float]) -> float:
    """Returns the mean search score of a configuration's trials, NaN if it is not known.

    A trial that has none yet, or was stopped before it had any, counts as the mean of its task and seed in `means`.
    """
    scores = []
    for entry in trials:
        score = latest_score(entry)
        average = math.nan if entry.finished else means.get((entry.trial.task, entry.trial.seed), math.nan)
        scores.append(average if score is None else score)
    return fmean(scores)


def search_value(trials: Sequence[Entry], means: Mapping[Group, float]) -> float:
    """Returns the score of a configuration for a searcher, by its trials and those that are cut from their adapters.

    If all of them finished, it is the area under the search scores of the cuts and of the whole adapters; otherwise the search
    score of the trials that are trained. NaN if it is not known.
    """
    outputs: dict[str, list[Entry]] = {}
    for entry in trials:
        outputs.setdefault(entry.trial.configuration, []).append(entry)
    if len(outputs) == 1 or not all(entry.finished for entry in trials):
        return mean_score([entry for entry in trials if not entry.trial.is_cut], means)
    points = [(max(map(_size, output)), mean_score(output, {})) for output in outputs.values()]
    return area(points) if all(map(math.isfinite, chain.from_iterable(points))) else math.nan


def _size(entry: Entry) -> float:
    counts = {**entry.trial.planned, **(entry.result.counts if entry.result else {})}
    return counts.get("trainable_parameters", math.nan)


def costs_of(trials: Sequence[Entry], objectives: Iterable[str]) -> dict[str, float]:
    """Returns the values of a configuration on the objectives other than the score, as far as its trials have them."""
    trained = [entry for entry in trials if not entry.trial.is_cut] or list(trials)
    (summary,) = summarize_entries(trained)
    values = {name: summary.value(name) for name in objectives if name != "score"}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def has_failed(trials: Iterable[Entry]) -> bool:
    """Returns whether any of the trials has failed and does not run again in this session."""
    return any(entry.ended and entry.result is not None and entry.result.status == "failed" for entry in trials)

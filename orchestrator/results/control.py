"""The control of a comparison, the task head alone (`method: head`), and the scale between it and full fine-tuning.

A method that adapts anything must beat the head alone.

A plain mean over tasks is that of the widest one: where scores reach from 0 to 80 on one task and from 64 to 77 on another, the
first decides. The normalized mean weighs tasks equally: on each, 0 is no adapter and 100 is full fine-tuning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.results.intervals import by_seed, compare, suite_interval
from orchestrator.results.metrics import NORMALIZED
from orchestrator.results.summary import Summary

HEAD, FULL = "head", "full"


def not_shown_to_beat_head(summaries: Sequence[Summary]) -> list[Summary]:
    """Returns the complete configurations that are not shown to be better than the head alone; empty if that did not run.

    Compared are the scores of the tasks and seeds that both have, with the head of the best search score. A configuration
    that has no interval counts if its mean is no better.
    """
    control = _best(summaries, HEAD)
    if control is None:
        return []
    return [summary for summary in summaries if summary.complete and summary.method != HEAD and not _better(summary, control)]


def above_guessing(complete: Sequence[Summary]) -> bool:
    """Returns whether any trial is shown to be above the most frequent class; True where that score is not known.

    Of n trials without any skill the luckiest is above a 95 % interval's end far more often than one is, so the intervals over
    the scored examples are those of Bonferroni. The s-th seed counts as s² seeds: what one seed shows no further seed takes
    back, and all together err less than twice as often as one. How seeds spread is not asked: no seed has skill by luck.
    """
    from scipy.special import ndtri

    return any("random_guessing" not in summary.counts for summary in complete) or any(
        score + float(ndtri(0.025 / len(complete) / place**2) / ndtri(0.975)) * summary.sampling[0]
        > summary.value("random_guessing")
        for summary in complete
        for place, score in enumerate(by_seed(summary.scores, summary.tasks).values(), 1)
    )


def with_normalized(summaries: Sequence[Summary]) -> list[Summary]:
    """Returns the summaries with the metric `normalized` added if, on every task, full is shown to be better than head.

    The ends of the scale are the means of these two; of several configurations, of the one with the best search score.
    """
    head, full = _best(summaries, HEAD), _best(summaries, FULL)
    if head is None or full is None or not _better(full, head):
        return list(summaries)
    low = {task: value.mean for task, value in head.tasks.items()}
    wide = {task: full.tasks[task].mean - value for task, value in low.items()}
    if min(wide.values()) <= 0:
        return list(summaries)
    scaled_summaries = []
    for summary in summaries:
        scaled = {(task, seed): 100 * (score - low[task]) / wide[task] for (task, seed), score in summary.scores.items()}
        scaled_summaries.append(replace(summary, metrics=summary.metrics | {NORMALIZED: suite_interval(scaled, low)}))
    return scaled_summaries


def _better(summary: Summary, control: Summary) -> bool:
    difference = compare(summary.scores, control.scores).difference
    return difference.mean > 0 and not difference.low <= 0


def _best(summaries: Sequence[Summary], method: str) -> Summary | None:
    complete = [summary for summary in summaries if summary.complete and summary.method == method]
    return max(complete, key=lambda summary: summary.value("search_score"), default=None)

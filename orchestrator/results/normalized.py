"""The normalized mean of a configuration: on each task 0 is the head alone and 100 is full fine-tuning.

A plain mean over tasks is that of the widest one: where scores reach from 0 to 80 on one task and from 64 to 77 on another, the
first decides. The normalized mean weighs tasks alike. It needs both methods in the sweep, and full fine-tuning above the head
alone on every task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.results.intervals import suite_interval
from orchestrator.results.summary import Summary

NORMALIZED = "normalized"


def with_normalized(summaries: Sequence[Summary]) -> list[Summary]:
    """The same summaries, each with the metric `normalized` where the sweep has both ends of the scale.

    The ends are the means of the complete configurations of `head` and `full`; of several, the best by search score.
    """
    head, full = (_best(summaries, method) for method in ("head", "full"))
    if head is None or full is None or not all(full.tasks[task].mean > head.tasks[task].mean for task in head.tasks):
        return list(summaries)
    low = {task: value.mean for task, value in head.tasks.items()}
    wide = {task: full.tasks[task].mean - value for task, value in low.items()}
    found = []
    for one in summaries:
        scaled = {key: 100 * (score - low[key[0]]) / wide[key[0]] for key, score in one.scores.items()}
        found.append(replace(one, metrics=one.metrics | {NORMALIZED: suite_interval(scaled, low)}))
    return found


def _best(summaries: Sequence[Summary], method: str) -> Summary | None:
    complete = [one for one in summaries if one.complete and one.method == method]
    return max(complete, key=lambda one: one.value("search_score"), default=None)

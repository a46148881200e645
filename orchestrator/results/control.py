"""The control of a comparison: the task head alone (`method: head`), which a method that adapts anything must beat."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.results.intervals import compare
from orchestrator.results.summary import Summary

HEAD = "head"


def no_better_than_head(summaries: Sequence[Summary]) -> list[Summary]:
    """The complete configurations that are not shown to be better than the head alone; empty where it did not run.

    Compared are the scores of the tasks and seeds that both have, with the head of the best search score. A configuration
    that has no interval counts if its mean is no better.
    """
    complete = [one for one in summaries if one.complete]
    heads = [one for one in complete if one.method == HEAD]
    if not heads:
        return []
    control = max(heads, key=lambda one: one.value("search_score"))
    found = []
    for one in complete:
        difference = compare(one.scores, control.scores).difference
        if one.method != HEAD and (difference.mean <= 0 or difference.low <= 0):
            found.append(one)
    return found

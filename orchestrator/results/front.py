"""Which summaries are on the front, and which of them is the knee."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from orchestrator.results import pareto
from orchestrator.results.summary import Objectives, Summary


def mark_front(summaries: Sequence[Summary], objectives: Objectives, deciding: Iterable[int] = ()) -> list[Summary]:
    """The same summaries with `on_front` and `may_be_on_front` set, among the complete ones only.

    Where some have finished all the seeds `deciding`, those that were not given them are `screened` and take no part.

    Objectives are metric or count names with their directions. The rules are `pareto.front`'s and `pareto.may_be_on_front`'s.
    """
    names, directions = list(objectives), list(objectives.values())
    needed = set(deciding)
    decided = [summary._finished and needed <= {seed for _, seed in summary.scores} for summary in summaries]
    if needed and any(decided):
        summaries = [replace(one, screened=one._finished and not sure) for one, sure in zip(summaries, decided, strict=True)]
    indices = [index for index, summary in enumerate(summaries) if summary.complete and _judged(summary, names)]
    bounds = [[summaries[index].bounds(name) for name in names] for index in indices]
    shape = (len(indices), len(names))
    means, low, high = (
        np.array([[getattr(value, end) for value in row] for row in bounds]).reshape(shape) for end in ("mean", "low", "high")
    )
    # Means of the same numbers in another order differ in the last bit; that must not put a dominated point on the front.
    on_front = pareto.front(np.round(means, 9), directions)
    possible = pareto.may_be_on_front(low, high, directions)
    marks = {index: (bool(on_front[row]), bool(on_front[row] | possible[row])) for row, index in enumerate(indices)}
    marked = []
    for index, summary in enumerate(summaries):
        sure, maybe = marks.get(index, (False, False))
        marked.append(replace(summary, on_front=sure, may_be_on_front=maybe))
    return marked


def knee(summaries: Sequence[Summary], objectives: Objectives) -> Summary | None:
    """The front's knee, counts taken on a log axis; None where there is no front, or where objectives are not two."""
    front = [summary for summary in summaries if summary.on_front]
    if len(objectives) != 2 or not front:
        return None
    points = [[summary.value(name) for name in objectives] for summary in front]
    logged = pareto.log_axes(points, [logarithmic(front, name) for name in objectives])
    index = pareto.knee(logged, list(objectives.values()))
    return None if index is None else front[index]


def logarithmic(summaries: Sequence[Summary], name: str) -> bool:
    """Whether an axis is better read in powers of ten: every value positive, and none of them a score."""
    return all(name in summary.counts and summary.counts[name] > 0 for summary in summaries)


def _judged(summary: Summary, names: Sequence[str]) -> bool:
    return all(math.isfinite(summary.value(name)) for name in names)

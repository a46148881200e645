"""The front of each sweep on the page: its own verdict (`Frames.verdict`), and that over two other axes.

Ids are those of the view, in which a configuration of several sweeps has its sweep's number in front.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from craft.words import points
from dashboards.frames import Frames, Row
from dashboards.panels.base import View, column, done
from orchestrator.judging.answer import REASONS
from orchestrator.judging.front import axes, judge
from orchestrator.results.metrics import Column, titled

WAYS = {"maximize": "more is better", "minimize": "less is better"}


@dataclass(frozen=True)
class Front:
    """The marks of a sweep's configurations, by ids of the view; `possible` are those that may be on the front but are not.
    `answer` is the one that the sweep's answer recommends, and `reason` says why."""

    members: frozenset[str]
    possible: frozenset[str]
    enough: str | None = None
    answer: str | None = None
    reason: str = ""


def finished(view: View) -> list[tuple[Frames, list[Row]]]:
    """Returns each sweep with its finished configurations."""
    ready = done(view.configurations)
    return [(sweep, [row for row in ready if row.sweep == sweep.name]) for sweep in view.sweeps]


def fronts(view: View) -> list[Front]:
    """Returns the front of each sweep over its own objectives."""
    marks = []
    for number, sweep in enumerate(view.sweeps):
        prefix, verdict = view.prefix(number), sweep.verdict
        members, possible = verdict.on_front, verdict.may_be_on_front - verdict.on_front
        enough = None if sweep.enough is None else prefix + sweep.enough
        members, possible = (frozenset(prefix + name for name in names) for names in (members, possible))
        reply, margin = sweep.answer, points(sweep.rule.within)
        if reply is None or reply.kind not in REASONS:
            marks.append(Front(members, possible, enough))
        else:
            reason = REASONS[reply.kind].format(within=margin)
            marks.append(Front(members, possible, enough, prefix + reply.configuration, reason))
    return marks


def front_over(sweep: Frames, front: Front, ready: list[Row], x: Column, y: Column) -> Front:
    """Returns the sweep's `front` over its own axes, and over any others that of these two metrics alone."""
    if {x.name, y.name} == {*axes(sweep.objectives)}:
        return front
    objectives = {metric.name: sweep.objectives.get(metric.name) or metric.better or "minimize" for metric in (y, x)}
    means = np.column_stack([column(ready, name) for name in objectives])
    return Front(judge([row.id for row in ready], means, objectives).on_front, frozenset())


def in_words(sweeps: Iterable[Frames]) -> str:
    """Returns the objectives of the sweeps as text, once where several sweeps share them."""
    texts = [", ".join(f"{titled(name)} ({WAYS[way]})" for name, way in sweep.objectives.items()) for sweep in sweeps]
    return "; ".join(dict.fromkeys(texts))

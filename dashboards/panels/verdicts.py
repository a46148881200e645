"""The front of each sweep on the page: its own verdict (`Frames.verdict`), and that over two other axes.

Ids are those of the view, in which a configuration of several sweeps has its sweep's number in front.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dashboards.frames import Frames
from dashboards.panels.base import View, column, done
from orchestrator.results.front import axes, judge
from orchestrator.results.metrics import Metric, titled

WAYS = {"maximize": "more is better", "minimize": "less is better"}


@dataclass(frozen=True)
class Front:
    """The marks of a sweep's configurations, by ids of the view; `possible` are those that may be on the front but are not."""

    members: frozenset[str]
    possible: frozenset[str]
    knee: str | None = None
    enough: str | None = None


def finished(view: View) -> list[tuple[Frames, pd.DataFrame]]:
    """Returns each sweep with its finished configurations."""
    ready = done(view.configurations)
    return [(sweep, ready[ready["sweep"] == sweep.name]) for sweep in view.sweeps]


def fronts(view: View) -> list[Front]:
    """Returns the front of each sweep over its own objectives."""
    marks = []
    for number, sweep in enumerate(view.sweeps):
        prefix, verdict = view.prefix(number), sweep.verdict
        members, possible = verdict.on_front, verdict.may_be_on_front - verdict.on_front
        knee, enough = (None if name is None else prefix + name for name in (verdict.knee, sweep.enough))
        members, possible = (frozenset(prefix + name for name in names) for names in (members, possible))
        marks.append(Front(members, possible, knee, enough))
    return marks


def front_over(sweep: Frames, front: Front, ready: pd.DataFrame, x: Metric, y: Metric) -> Front:
    """Returns the sweep's `front` over its own axes, and over any others that of these two metrics alone."""
    if {x.name, y.name} == {*axes(sweep.objectives)}:
        return front
    objectives = {metric.name: sweep.objectives.get(metric.name, metric.better) for metric in (y, x)}
    means = np.column_stack([column(ready, f"m.{name}") for name in objectives])
    return Front(judge(ready["id"].tolist(), means, objectives).on_front, frozenset())


def in_words(sweeps: Iterable[Frames]) -> str:
    """Returns the objectives of the sweeps as text, once where several sweeps share them."""
    texts = [", ".join(f"{titled(name)} ({WAYS[way]})" for name, way in sweep.objectives.items()) for sweep in sweeps]
    return "; ".join(dict.fromkeys(texts))

"""The front of each sweep on the page: `orchestrator.results.front.judge` asked with the sweep's own objectives.

The table's stars, the knee and the front panel's lines all take their members from here, so that the page agrees with the
terminal's table, with the sweep's files and with its tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from dashboards.frames import Frames
from dashboards.panels.base import View, column, done
from orchestrator.results.chances import P_FRONT, P_WITHIN
from orchestrator.results.front import Verdict, axes, enough, judge
from orchestrator.results.metrics import Metric, titled

WAYS = {"maximize": "more is better", "minimize": "less is better"}


def finished(view: View) -> list[tuple[Frames, pd.DataFrame]]:
    """Each sweep with its finished configurations."""
    ready = done(view.configurations)
    return [(sweep, ready[ready["sweep"] == sweep.name]) for sweep in view.sweeps]


def verdict(sweep: Frames, ready: pd.DataFrame) -> Verdict:
    """Which of a sweep's finished configurations are on its front, which may be on it, and which one is the knee."""
    return _judged(ready, sweep.objectives, chance=True)


def taken(ready: pd.DataFrame) -> list[str]:
    """The id of the one of a sweep's finished configurations that is enough; empty without one."""
    name = enough(ready["id"].tolist(), column(ready, f"m.{P_WITHIN}"), column(ready, "m.trainable_parameters"))
    return [name] if name else []


def verdict_over(sweep: Frames, ready: pd.DataFrame, x: Metric, y: Metric) -> Verdict:
    """The same for two axes: over the sweep's own axes its verdict, over any others that of these two metrics alone."""
    if {x.name, y.name} == {*axes(sweep.objectives)}:
        return verdict(sweep, ready)
    return _judged(ready, {one.name: sweep.objectives.get(one.name, one.better) for one in (y, x)})


def shown_as_possible(found: Verdict) -> list[str]:
    """Ids of those that may be on the front but are not."""
    return sorted(found.may_be_on_front - found.on_front)


def in_words(sweeps: Iterable[Frames]) -> str:
    """The objectives of the sweeps as text, once where several sweeps share them."""
    each = [", ".join(f"{titled(name)} ({WAYS[way]})" for name, way in one.objectives.items()) for one in sweeps]
    return "; ".join(dict.fromkeys(each))


def _judged(ready: pd.DataFrame, objectives: Mapping[str, Any], chance: bool = False) -> Verdict:
    mean = np.column_stack([column(ready, f"m.{name}") for name in objectives])
    return judge(ready["id"].tolist(), mean, dict(objectives), column(ready, f"m.{P_FRONT}") if chance else None)

"""Parallel coordinates: each finished configuration as a line over its parameters, ending at its score.

Drawn as plain lines, a trace for each fifth of the ranking, because plotly's own kind needs WebGL, cannot be selected point by
point, and compiles code at run time, which the page's content security policy forbids.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from dashboards.panels.base import (
    Panel,
    Plain,
    View,
    column,
    focus_trace,
    moving_together,
    numbers,
    scalar,
    score_metric,
    text,
    trained,
)
from orchestrator.results.metrics import label_of

LINES_UP_TO = 400
BANDS = 5
RAMP = "The stronger a line, the higher its score"
CUTS = "Whole adapters only: what was cut from them says nothing about how settings train"


def data(view: View) -> Plain:
    """Returns each configuration as a line over its parameters and its score; positions are between 0 and 1 on every axis."""
    frame = trained(view.configurations)
    if len(frame) < 2:
        return {
            "empty": f"Parallel coordinates need two finished configurations; there {'is one' if len(frame) else 'are none'}."
        }
    frame = frame.assign(_score=column(frame, "m.score")).sort_values("_score")
    dropped = max(0, len(frame) - LINES_UP_TO)
    frame = frame.iloc[dropped:]
    axes = [_positions(label, frame[f"p.{name}"]) for name, label in moving_together(frame).items()]
    if frame["method"].nunique() > 1:
        axes.insert(0, _positions("method", frame["method"]))
    axes.append(_positions(label_of("score", score_metric(view)), frame["_score"]))
    return {"axes": axes, "id": frame["id"].tolist(), "dropped": dropped, "cuts": "p.cut_to" in view.configurations}


def _positions(name: str, series: pd.Series[Any]) -> Plain:
    values = [scalar(value) for value in series]
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, (int, float)) for value in present) and len(set(present)) > 1:
        low, high = min(present), max(present)
        log = low > 0 and high / low >= 20
        scale = np.log if log else np.asarray
        ends = scale(np.array([low, high], dtype=float))
        where = [
            None if value is None else float((scale(np.array(float(value))) - ends[0]) / (ends[1] - ends[0]))
            for value in values
        ]
        middle = float(np.sqrt(low * high)) if log else (low + high) / 2
        ticks = sorted(set(present)) if len(set(present)) <= 6 else [low, middle, high]
        at = [float((scale(np.array(float(tick))) - ends[0]) / (ends[1] - ends[0])) for tick in ticks]
        close = {below for below, above in pairwise(at) if above - below < 0.06 and below > 0}
        return {
            "name": name,
            "at": numbers(where),
            "ticks": [[position, f"{tick:.4g}"] for position, tick in zip(at, ticks, strict=True) if position not in close],
        }
    labels = sorted({str(value) for value in present})
    step = {word: number_ / max(1, len(labels) - 1) for number_, word in enumerate(labels)}
    where = [None if value is None else step[str(value)] for value in values]
    return {"name": name, "at": numbers(where), "ticks": [[step[word], word] for word in labels[:12]]}


def draw(plain: Plain) -> Plain:
    axes = plain["axes"]
    traces = [_band(plain, band) for band in range(BANDS)]
    traces.append(focus_trace("accent"))
    look = {"showarrow": False, "xanchor": "left", "xshift": 6, "font": {"size": 10}, "bgcolor": "panel"}
    marks = [
        {"x": position, "y": at, "text": text(label, 18), **look}
        for position, axis in enumerate(axes)
        for at, label in axis["ticks"]
    ]
    columns = {"tickvals": list(range(len(axes))), "ticktext": [text(axis["name"], 18) for axis in axes], "side": "top"}
    note = f"{RAMP}; the {plain['dropped']} lowest are left out." if plain["dropped"] else f"{RAMP}."
    note += f" {CUTS}." if plain["cuts"] else ""
    layout = {
        "xaxis": columns | {"range": [-0.15, len(axes) - 0.85], "showgrid": True, "zeroline": False},
        "yaxis": {"visible": False, "range": [-0.05, 1.05]},
        "annotations": marks,
        "hovermode": "closest",
        "dragmode": "select",
    }
    return {"values": {}, "choices": [], "figure": {"data": traces, "layout": layout}, "note": note}


def _band(plain: Plain, band: int) -> Plain:
    """Returns the trace of a share of the lines, darker for the later ones."""
    x: list[Any] = []
    y: list[Any] = []
    ids: list[Any] = []
    lines = len(plain["id"])
    for line in range(lines * band // BANDS, lines * (band + 1) // BANDS):
        for position, axis in enumerate(plain["axes"]):
            if axis["at"][line] is not None:  # a parameter of another method: the line passes it by
                x.append(position)
                y.append(axis["at"][line])
                ids.append(plain["id"][line])
        x.append(None)
        y.append(None)
        ids.append(None)
    trace: Plain = {"type": "scatter", "mode": "lines+markers", "x": x, "y": y, "customdata": ids, "connectgaps": False}
    # no colour: on this page colours are methods
    style = {"line": {"color": "ink", "width": 0.8 + 0.4 * band}, "marker": {"color": "ink", "size": 5}}
    return trace | style | {"opacity": 0.15 + 0.2 * band, "showlegend": False}


PANEL = Panel(
    "parallel",
    "Parallel coordinates",
    "mattered",
    "Each line is a configuration. Drag over points of an axis to see those in the table.",
    data,
    draw,
    wide=True,
)

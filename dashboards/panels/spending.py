"""What the compute bought: the score against the time it took, and the front's hypervolume as trials were paid for.

Hypervolume is taken over the sweep's objectives, counts in decades, from one corner per sweep: the worst value of each
objective among its finished configurations, a little further out. Compute is the summed training time of all trials that had
ended by then; failed and stopped trials count too, because they were paid for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dashboards.panels.base import BLUE, Panel, Plain, View, colours, column, done, not_cut, numbers, text
from orchestrator.results.front import logarithmic
from orchestrator.results.pareto import Direction, hypervolume, log_axes, reference_point


def time_data(view: View) -> Plain:
    """When each configuration was finished (hours since its sweep began) and what it scored; the best so far as a step line."""
    groups = []
    for name, frame in _finished_by_sweep(view):
        began = _began(view, name)
        hours = (frame["ended"].astype(float) - began) / 3.6e6
        score = column(frame, "m.score")
        entry = {"sweep": name, "hours": numbers(hours), "score": numbers(score), "best": numbers(score.cummax())}
        groups.append(entry | {"id": frame["id"].tolist(), "method": frame["method"].tolist()})
    return {"groups": groups} if groups else {"empty": "No configuration is finished yet, so there is no score over time."}


def _finished_by_sweep(view: View) -> list[tuple[str, pd.DataFrame]]:
    frame = done(view.configurations)
    frame = frame[frame["ended"].notna()].sort_values("ended", kind="stable")
    return [(name, group) for name in view.names if not (group := frame[frame["sweep"] == name]).empty]


def _began(view: View, name: str) -> float:
    of = [frame for frame in (view.configurations, view.trials) if not frame.empty]
    starts = [frame.loc[frame["sweep"] == name, "started"].dropna().astype(float).min() for frame in of]
    return float(np.nanmin(starts))


def time_draw(plain: Plain) -> Plain:
    several = len(plain["groups"]) > 1
    by_method = colours(method for group in plain["groups"] for method in group["method"])
    traces: list[Plain] = []
    for group in plain["groups"]:
        name = f" · {text(group['sweep'], 30)}" if several else ""
        for method in sorted(set(group["method"])):
            pick = [index for index, one in enumerate(group["method"]) if one == method]
            point: Plain = {"type": "scatter", "mode": "markers", "name": text(method, 30) + name}
            point |= {"x": [group["hours"][index] for index in pick], "y": [group["score"][index] for index in pick]}
            point |= {"customdata": [group["id"][index] for index in pick]}
            traces.append(point | {"marker": {"color": by_method[method], "size": 6, "opacity": 0.75}})
        line = {"type": "scatter", "mode": "lines", "name": "best so far" + name, "x": group["hours"], "y": group["best"]}
        traces.append(line | {"line": {"shape": "hv", "width": 1.6, "color": "ink"}, "hoverinfo": "skip"})
    layout = {
        "xaxis": {"title": {"text": "hours since the sweep began"}},
        "yaxis": {"title": {"text": "score"}},
        "hovermode": "closest",
    }
    return {"choices": [], "values": {}, "figure": {"data": traces, "layout": layout}}


def volume_data(view: View) -> Plain:
    """Hypervolume after each configuration that enlarged the front, against the compute spent until then (hours)."""
    groups = []
    objectives = {sweep.name: sweep.objectives for sweep in view.sweeps}
    for name, frame in _finished_by_sweep(view):
        columns = {one: column(frame, f"m.{one}") for one in objectives[name]}
        points = log_axes(np.column_stack([*columns.values()]), [logarithmic(*one) for one in columns.items()])
        fit = np.flatnonzero(np.isfinite(points).all(axis=1))
        if len(fit) < 2:
            continue
        points, frame = points[fit], frame.iloc[fit]
        spent = _spent(view.trials[view.trials["sweep"] == name], frame["ended"].to_numpy(dtype=float))
        at, volume = _growth(points * [-1 if way == "maximize" else 1 for way in objectives[name].values()])
        groups.append(
            {"sweep": name, "hours": numbers(spent[at]), "volume": numbers(volume), "id": frame["id"].to_numpy()[at].tolist()}
        )
    why = "Hypervolume needs two finished configurations that have a value on each objective of the sweep."
    return {"groups": groups} if groups else {"empty": why}


def _growth(costs: np.ndarray) -> tuple[list[int], list[float]]:
    """The rows at which the hypervolume of the rows so far grows, and its value there; only their front is measured."""
    directions: list[Direction] = ["minimize"] * costs.shape[1]
    reference = reference_point(costs, directions)
    at: list[int] = []
    volumes: list[float] = []
    kept = costs[:0]
    for index, cost in enumerate(costs):
        if (kept <= cost).all(axis=1).any():
            continue
        kept = np.vstack([kept[~(kept >= cost).all(axis=1)], cost])
        at.append(index)
        volumes.append(hypervolume(kept, directions, reference))
    return [*at, len(costs) - 1], [*volumes, volumes[-1]]


def _spent(trials: pd.DataFrame, moments: np.ndarray) -> np.ndarray:
    """Hours of training by all trials that had ended at each moment."""
    over = not_cut(trials[trials["ended"].notna() & ~trials["slice"].astype(bool)]).sort_values("ended")
    if over.empty:
        return np.zeros(len(moments))
    clock = (over["ended"].astype(float) - over["started"].astype(float)) / 1000
    seconds = column(over, "m.seconds").fillna(clock).to_numpy()
    total = np.concatenate([[0.0], np.cumsum(seconds)])
    return total[np.searchsorted(over["ended"].to_numpy(dtype=float), moments, side="right")] / 3600


def volume_draw(plain: Plain) -> Plain:
    dashes = ("solid", "dash", "dot", "dashdot")
    traces: list[Any] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": text(group["sweep"], 30),
            "x": group["hours"],
            "y": group["volume"],
            "customdata": group["id"],
            "line": {"shape": "hv", "width": 1.8, "dash": dashes[index % len(dashes)], "color": BLUE},
            "marker": {"size": 6},
        }
        for index, group in enumerate(plain["groups"])
    ]
    layout = {
        "xaxis": {"title": {"text": "hours of training paid for"}},
        "yaxis": {"title": {"text": "hypervolume"}},
        "hovermode": "closest",
    }
    note = (
        "The product of the sweep's objectives, counts in decades, measured from each sweep's own worst corner: compare its "
        "shape, not two sweeps' heights."
    )
    return {"choices": [], "values": {}, "figure": {"data": traces, "layout": layout}, "note": note}


TIME = Panel("time", "Score against time", "mattered", "When the good configurations were found.", time_data, time_draw)
VOLUME = Panel(
    "volume",
    "Hypervolume against compute",
    "mattered",
    "How much front the compute bought, and whether it still grows.",
    volume_data,
    volume_draw,
)

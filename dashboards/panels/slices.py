"""The score against one parameter at a time."""

from __future__ import annotations

from dashboards.panels.base import (
    Panel,
    Plain,
    View,
    choice,
    column,
    moving_together,
    numbers,
    scalar,
    score_axis,
    text,
    trained,
)
from orchestrator.results.presentation import colours


def data(view: View) -> Plain:
    """Score against each parameter that differs, over the finished configurations."""
    frame = trained(view.configurations)
    names = moving_together(frame) if len(frame) > 1 else {}
    if not names:
        return {"empty": "A slice needs finished configurations that differ in a parameter; there are none yet."}
    columns = {name: [scalar(value) for value in frame[f"p.{name}"]] for name in names}
    return {
        "names": names,
        "columns": columns,
        "score": numbers(column(frame, "m.score")),
        "id": frame["id"].tolist(),
        "method": frame["method"].tolist(),
    }


def draw(plain: Plain) -> Plain:
    by_method = colours(plain["method"])
    values: Plain = {"score": plain["score"], "id": plain["id"]}
    for name, column_ in plain["columns"].items():
        present = [value for value in column_ if value is not None]
        is_number = all(isinstance(value, (int, float)) for value in present)
        log = is_number and min(present) > 0 and max(present) / min(present) >= 20
        values[f"x/{name}"] = column_ if is_number else [None if value is None else text(value, 28) for value in column_]
        values[f"axis/{name}"] = {
            "title": {"text": text(plain["names"][name])},
            "type": "log" if log else "linear" if is_number else "category",
        }
    traces = []
    for number_, method in enumerate(sorted(set(plain["method"]))):
        pick = f"of/{number_}"
        values[pick] = [index for index, one in enumerate(plain["method"]) if one == method]
        trace: Plain = {
            "type": "scatter",
            "mode": "markers",
            "name": text(method, 30),
            "marker": {"color": by_method[method], "size": 7, "opacity": 0.8},
        }
        traces.append(
            trace
            | {
                "x": {"$": "x/{parameter}", "pick": pick},
                "y": {"$": "score", "pick": pick},
                "customdata": {"$": "id", "pick": pick},
            }
        )
    layout = {
        "xaxis": {"$": "axis/{parameter}"},
        "yaxis": score_axis(),
        "hovermode": "closest",
        "dragmode": "select",
    }
    return {
        "choices": [choice("parameter", "Parameter", plain["names"])],
        "values": values,
        "figure": {"data": traces, "layout": layout},
    }


PANEL = Panel("slices", "Slices", "mattered", "The score against one parameter at a time.", data, draw)

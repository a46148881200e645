"""The score against one parameter at a time, and against the two ranks that matter most together."""

from __future__ import annotations

import pandas as pd

from dashboards.panels.base import (
    SCALE,
    Panel,
    Plain,
    View,
    choice,
    colours,
    column,
    numbers,
    parameters_that_differ,
    scalar,
    text,
    trained,
)


def slices_data(view: View) -> Plain:
    """Score against each parameter that differs, over the finished configurations."""
    frame = trained(view.configurations)
    names = [name for name in parameters_that_differ(frame) if name != "method"] if len(frame) > 1 else []
    if not names:
        return {"empty": "A slice needs finished configurations that differ in a parameter; there are none yet."}
    columns = {name: [scalar(value) for value in frame[f"p.{name}"]] for name in names}
    return {
        "columns": columns,
        "score": numbers(column(frame, "m.score")),
        "id": frame["id"].tolist(),
        "method": frame["method"].tolist(),
    }


def slices_draw(plain: Plain) -> Plain:
    by_method = colours(plain["method"])
    values: Plain = {"score": plain["score"], "id": plain["id"]}
    for name, column_ in plain["columns"].items():
        present = [value for value in column_ if value is not None]
        is_number = all(isinstance(value, (int, float)) for value in present)
        log = is_number and min(present) > 0 and max(present) / min(present) >= 20
        values[f"x/{name}"] = column_ if is_number else [None if value is None else text(value, 28) for value in column_]
        values[f"axis/{name}"] = {
            "title": {"text": text(name)},
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
        "yaxis": {"title": {"text": "score"}},
        "hovermode": "closest",
        "dragmode": "select",
    }
    return {
        "choices": [choice("parameter", "Parameter", list(plain["columns"]))],
        "values": values,
        "figure": {"data": traces, "layout": layout},
    }


def heat_data(view: View) -> Plain:
    """The best score of each pair of ranks r2 and r3, for each set of projections."""
    frame = trained(view.configurations)
    if "p.r2" not in frame or "p.r3" not in frame or frame.empty:
        return {"empty": "No finished configuration has the ranks r2 and r3 (only Tucker methods such as craft do)."}
    frame = frame[frame["p.r2"].notna() & frame["p.r3"].notna()]
    maps: Plain = {}
    sets = frame["p.projections"].astype(str) if "p.projections" in frame else pd.Series("all", index=frame.index)
    for name, group in frame.groupby(sets):
        table = group.assign(s=column(group, "m.score")).pivot_table(
            index="p.r3", columns="p.r2", values="s", aggfunc=["max", "count"]
        )
        best, count = table["max"], table["count"]
        cells = [numbers(row) for row in best.to_numpy()]
        tallies = [numbers(row) for row in count.to_numpy()]
        maps[str(name)] = {
            "r2": [str(scalar(one)) for one in best.columns],
            "r3": [str(scalar(one)) for one in best.index],
            "best": cells,
            "count": tallies,
        }
    return {"maps": maps} if maps else {"empty": "No finished configuration has the ranks r2 and r3 yet."}


def heat_draw(plain: Plain) -> Plain:
    values: Plain = {}
    for name, one in plain["maps"].items():
        values |= {f"{key}/{name}": one[key] for key in ("r2", "r3", "best", "count")}
    scores = [cell for one in plain["maps"].values() for row in one["best"] for cell in row if cell is not None]
    trace = {
        "type": "heatmap",
        "x": {"$": "r2/{set}"},
        "y": {"$": "r3/{set}"},
        "z": {"$": "best/{set}"},
        "customdata": {"$": "count/{set}"},
        "colorscale": SCALE,
        "zmin": min(scores),
        "zmax": max(scores) if max(scores) > min(scores) else min(scores) + 1,
        "texttemplate": "%{z:.1f}",
        "colorbar": {"title": {"text": "score", "side": "right"}, "thickness": 12},
        "hovertemplate": "r2 %{x}, r3 %{y}: best %{z:.2f} of %{customdata}<extra></extra>",
        "xgap": 2,
        "ygap": 2,
    }
    axes = {"xaxis": {"title": {"text": "r2"}, "type": "category"}, "yaxis": {"title": {"text": "r3"}, "type": "category"}}
    note = "Each cell is the best score over everything else that varied; all sets share one colour scale."
    return {
        "choices": [choice("set", "Projections", list(plain["maps"]))],
        "values": values,
        "figure": {"data": [trace], "layout": axes},
        "note": note,
    }


SLICES = Panel("slices", "Slices", "mattered", "The score against one parameter at a time.", slices_data, slices_draw)
HEAT = Panel("heat", "Rank heat map", "mattered", "The best score of each pair of ranks r2 and r3.", heat_data, heat_draw)

"""The front: what each configuration scores against what it costs, any two metrics against each other.

Points are finished configurations. The step line joins those on the front; bars are their intervals; rings mark
those that may be on it; crosses have a value so far and are on no front. The first axes are the sweep's objectives, and there
the line is the sweep's front.

Stars are the CRAFT paper's two tables, which follow the customary protocol of their suite, not this project's default one. They
are never mixed with a sweep's points; the card of a row says its model, protocol and source.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from dashboards.frames import Frames, Row
from dashboards.panels import base
from dashboards.panels.base import Plain, View
from orchestrator.results.front import axes, pareto_front
from orchestrator.results.metrics import SIZE, Column, colours, titled
from orchestrator.review.front_tables import describe_intervals, scored_on

GREY = "#8A8A8A"
STATES = {"waiting": "waiting for seeds", "stopped": "stopped early", "infeasible": "dropped as infeasible"}
"""What the note calls a state, if not by its name."""
SI = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0, ""))


def draw(view: View) -> Plain:
    """Draws the figure with its choices (horizontal metric, vertical metric, published rows), and says what is not drawn."""
    ready = base.done(view.configurations)
    partial = [row for row in view.configurations if not row.summary.complete and not math.isnan(row.value("score"))]
    states = Counter(row.state for row in view.configurations)
    if not ready and not partial:
        return {"empty": _why_empty(states)}
    metrics, recommended = base.metrics_of(view), _recommended(view)
    by_method = colours([row.method for row in (*ready, *partial)])
    values: Plain = {
        "id": [row.id for row in ready],
        "label": base.texts([row.label for row in ready], 40),
        "colour": [by_method[row.method] for row in ready],
        "symbol": [base.SYMBOLS[view.sweeps.index(row.sweep) % len(base.SYMBOLS)] for row in ready],
        "answers": [place for place, row in enumerate(ready) if row.id in dict(recommended)],
        "so far": [row.id for row in partial],
        **_guessing(ready),
        **_fronts(view, ready, metrics),
        **_published_values(metrics),
    }
    for metric in metrics:
        values |= _metric_values(metric, ready, partial)
    traces = _method_traces(view, ready, values, by_method)
    if partial:
        colours_so_far = [by_method[row.method] for row in partial]
        marker = {"color": colours_so_far, "symbol": "x-thin-open", "size": 8, "line": {"width": 1.6}, "opacity": 0.8}
        at = {"x": {"$": "so far/{x}"}, "y": {"$": "so far/{y}"}, "customdata": {"$": "so far"}}
        traces.append({"type": "scatter", "mode": "markers", "name": "not complete (mean so far)", "marker": marker, **at})
    if any(row.summary.possible for row in ready):
        marker = {"color": "ink", "symbol": "circle-open", "size": 13, "line": {"width": 1.2}}
        traces.append(_points("may be on the front", marker, "possible/{x}/{y}"))
    traces += _front_traces(view.names)
    if recommended:
        marker = {"color": "ink", "symbol": "star-diamond-open", "size": 17, "line": {"width": 1.6}}
        traces.append(_points("the answer", marker, "answers"))
    traces.append(_published_trace())
    labels = {metric.name: metric.label if metric.name == "score" else titled(metric.name) for metric in metrics}
    x, y = (name if name in labels else None for name in axes(view.sweeps[0].objectives))
    started = [sweep.state for sweep in view.sweeps if sweep.state.started is not None]
    models = [state.sweep.model for state in started if state.sweep_id]  # a table of trainings names none
    shown = next(filter(None, map(published_model, models)), NO_ROWS)
    suites = {row["model"]: f"{row['model']} ({row['suite']})" for row in published_rows()}
    layout = {"xaxis": {"$": "axis/{x}"}, "yaxis": {"$": "axis/{y}"}, "shapes": {"$": "lines/{y}"}, "dragmode": "select"}
    return {
        "choices": [
            base.choice("y", "Vertical axis", labels, y or metrics[0].name),
            base.choice("x", "Horizontal axis", labels, x or metrics[-1].name),
            base.choice("published", "Published rows", {NO_ROWS: "hidden"} | suites, shown),
        ],
        "values": values,
        "figure": {"data": traces, "layout": layout},
        "note": f"{_note(states, len(partial))}{_scored(ready)}",
        "help": _help(view, ready, models[0] if models and shown == NO_ROWS else None),
        "first": recommended[0] if recommended else None,
        "details": {row["id"]: _published_details(row) for row in published_rows()},
    }


def _fronts(view: View, ready: list[Row], metrics: list[Column]) -> Plain:
    """Returns positions among the finished ones for each two metrics x and y, in ascending order of x: `front/X/Y` has the
    members of all fronts, `front/X/Y/0` those of the first sweep, and `possible/X/Y` those that may be on theirs."""
    places = {row.id: place for place, row in enumerate(ready)}
    groups = [(sweep, [row for row in ready if row.sweep is sweep]) for sweep in view.sweeps]
    values: Plain = {}
    for x, y in combinations(metrics, 2):
        fronts = [_front_over(sweep, rows, x, y) for sweep, rows in groups]
        own = [row for sweep, rows in groups if {x.name, y.name} == {*axes(sweep.objectives)} for row in rows]
        possible = [places[row.id] for row in own if row.summary.possible]
        for a, b in ((x.name, y.name), (y.name, x.name)):
            ascending = [sorted(front, key=lambda row, name=a: row.value(name)) for front in fronts]  # type: ignore[misc]
            values |= {f"front/{a}/{b}/{sweep}": [places[row.id] for row in front] for sweep, front in enumerate(ascending)}
            values[f"front/{a}/{b}"] = [places[row.id] for front in ascending for row in front]
            values[f"possible/{a}/{b}"] = possible
    return values


def _front_over(sweep: Frames, rows: list[Row], x: Column, y: Column) -> list[Row]:
    """Returns the sweep's own front over its own axes, and over any others that of these two metrics alone."""
    if {x.name, y.name} == {*axes(sweep.objectives)}:
        return [row for row in rows if row.summary.on_front]
    objectives = {metric.name: sweep.objectives.get(metric.name) or metric.better or "minimize" for metric in (y, x)}
    points = np.column_stack([base.column(rows, name) for name in objectives])
    return [row for row, member in zip(rows, pareto_front(points, [*objectives.values()]), strict=True) if member]


def _why_empty(states: Counter[str]) -> str:
    if not states:
        return "This sweep has no configurations yet: the first appear when its first trial starts."
    ended = [f"{count} {state}" for state, count in states.items() if state not in ("running", "waiting")]
    return f"No configuration has a score yet ({', '.join(ended)})." if ended else "No configuration has a score yet."


def _scored(ready: list[Row]) -> str:
    summaries = [row.summary for row in ready]
    text = "; ".join(filter(None, [describe_intervals(summaries), scored_on(summaries)]))
    return f" {text[0].upper()}{text[1:]}." if text else ""


def _recommended(view: View) -> list[list[str]]:
    several = len(view.sweeps) > 1
    return [
        [row.id, reason[0].upper() + reason[1:] + (f" ({row.sweep.name})" if several else "")]
        for row, reason in view.recommended()
    ]


def _metric_values(metric: Column, ready: list[Row], partial: list[Row]) -> Plain:
    """Returns what an axis of the metric shows: its values, how far intervals reach, and the axis itself."""
    name = metric.name
    done, so_far = (base.numbers(base.column(rows, name)) for rows in (ready, partial))
    factor, axis = base.axis_of(metric, [*done, *so_far])
    if factor != 1:
        done, so_far = ([None if value is None else value / factor for value in every] for every in (done, so_far))
    if metric.log and 0 in (*done, *so_far):
        ticks, (done, so_far) = _zeros_at_the_edge(done, so_far)
        axis |= ticks
    # a front's steps go right and then up where less of x is better, up and then right where more is
    step = "hv" if metric.better == "minimize" else "vh"
    values = {f"axis/{name}": axis, f"v/{name}": done, f"so far/{name}": so_far, f"step/{name}": step}
    if base.values_of(ready, f"{name}_low") and base.values_of(ready, f"{name}_high"):
        ends = [(row.value(name), row.value(f"{name}_low"), row.value(f"{name}_high")) for row in ready]
        values[f"above/{name}"] = base.numbers(high - value for value, _, high in ends)
        values[f"below/{name}"] = base.numbers(value - low for value, low, _ in ends)
    return values


def _guessing(ready: list[Row]) -> Plain:
    """Returns the line at the score of random guessing, where all tasks have the same."""
    levels = {base.number(row.value("random_guessing")) for row in ready}
    if len(levels) != 1 or None in levels:
        return {}
    (level,) = levels
    place = {"textposition": "end", "xanchor": "right", "yanchor": "bottom"}
    label = {"text": "random guessing", "font": {"size": 11, "color": GREY}, **place}
    line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": level, "y1": level, "layer": "below"}
    return {"lines/score": [line | {"line": {"color": GREY, "width": 1, "dash": "dot"}, "label": label}]}


def _zeros_at_the_edge(*columns: list[float | int | None]) -> tuple[Plain, list[list[float | int | None]]]:
    """Shows 0, as of the head alone, on a logarithmic axis: at half the smallest positive value, where a tick says 0."""
    positive = [value for column in columns for value in column if value] or [2]
    edge, first = min(positive) / 2, math.floor(math.log10(min(positive)))
    steps = (1, 2, 5) if max(positive) < 1000 * min(positive) else (1,)
    # also far above the largest value, for zooming and for published rows
    ticks = [step * 10.0**power for power in range(first, first + 10) for step in steps if step * 10**power >= 2 * edge]
    labels = [next(f"{tick / (size or 1):g}{unit}" for size, unit in SI if tick >= size) for tick in ticks]
    axis = {"tickmode": "array", "tickvals": [edge, *ticks], "ticktext": ["0", *labels]}
    return axis, [[edge if value == 0 else value for value in column] for column in columns]


def _method_traces(view: View, ready: list[Row], values: Plain, by_method: dict[str, str]) -> list[Plain]:
    """Returns a trace for each method of each sweep, and adds the positions of its points to `values`."""
    pairs = [(row.method, view.sweeps.index(row.sweep)) for row in ready]
    traces: list[Plain] = []
    sweeps, methods = base.texts(view.names, 30), dict(zip(by_method, base.texts([*by_method], 30), strict=True))
    for group, (method, sweep) in enumerate(sorted(set(pairs))):
        pick = f"group/{group}"
        values[pick] = [index for index, pair in enumerate(pairs) if pair == (method, sweep)]
        name = f"{methods[method]} · {sweeps[sweep]}" if len(sweeps) > 1 else methods[method]
        marker = {"color": by_method[method], "symbol": base.SYMBOLS[sweep % len(base.SYMBOLS)], "size": 8, "opacity": 0.85}
        traces.append(_points(name, marker, pick))
    return traces


def _points(name: str, marker: Plain, pick: str) -> Plain:
    """Returns the finished configurations whose positions are under `pick`, as marks over the chosen axes."""
    columns = {"x": "v/{x}", "y": "v/{y}", "customdata": "id"}
    at = {axis: {"$": column, "pick": pick} for axis, column in columns.items()}
    return {"type": "scatter", "mode": "markers", "name": name, "marker": marker, **at}


def _front_traces(sweeps: list[str]) -> list[Plain]:
    dashes, pick = ("solid", "dash", "dot", "dashdot"), "front/{x}/{y}"
    lines: list[Plain] = []
    for index, name in enumerate(base.texts(sweeps, 30)):
        line = {"shape": {"$": "step/{x}"}, "width": 1.6, "dash": dashes[index % len(dashes)], "color": "ink"}
        trace = _points(f"front · {name}" if len(sweeps) > 1 else "front", {}, f"{pick}/{index}")
        del trace["customdata"]
        lines.append(trace | {"mode": "lines", "line": line, "hoverinfo": "skip"})
    style = {"color": {"$": "colour", "pick": pick}, "symbol": {"$": "symbol", "pick": pick}}
    points = _points("on the front", {**style, "size": 11, "line": {"width": 1.5, "color": "ink"}}, pick)
    bars = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": "soft"}
    bars |= {"array": {"$": "above/{y}", "pick": pick}, "arrayminus": {"$": "below/{y}", "pick": pick}}
    # the page's script puts each name where it covers nothing
    names: Plain = {key: points[key] for key in ("type", "x", "y")} | {"mode": "text", "text": {"$": "label", "pick": pick}}
    names |= {"textposition": "top center", "textfont": {"size": 10}, "hoverinfo": "skip", "cliponaxis": False}
    return [*lines, points | {"showlegend": False, "error_y": bars}, names | {"showlegend": False}]


def _note(states: Counter[str], partial: int) -> str:
    parts = [f"{count} {STATES.get(state, state)}" for state, count in states.most_common()]
    crosses = f" × is the mean so far of {partial} that are not complete." if partial else ""
    return f"Configurations: {', '.join(parts)}.{crosses}"


def _help(view: View, ready: list[Row], unpublished: str | None) -> str:
    parts = [
        "A configuration is on the line if no other one is at least as good on both axes and better on one. Drag to select. A "
        "point that is clicked stays in focus, and a line shows its value, to compare others with it.",
        f"The answer, the first axes and ● in the table follow the sweep's objectives: {view.objectives}. Over other axes "
        "the line is the front of those two metrics.",
    ]
    if 0 in base.column(ready, SIZE):
        parts.append("The control, without an adapter, has 0 parameters and is at the left edge.")
    if unpublished is not None:
        parts.append(f"The paper has no rows for {unpublished}; those of other models are hidden.")
    return " ".join(parts)


NO_ROWS = "none"
FOLDER = Path(__file__).parents[1] / "published"
PROTOCOLS = {
    "glue": "customary GLUE: the dev set both selects the epoch and is reported, best of a run's epochs",
    "commonsense": "customary commonsense (LLM-Adapters): tests both select the epoch and are reported",
}


@cache
def published_rows() -> tuple[Plain, ...]:
    """Returns all rows of the paper's two tables: id, model, method, source, suite, protocol, the number of averaged tasks,
    and `values` by metric: the average as `score`, `trainable_parameters` and `score/TASK`."""
    rows: list[Plain] = []
    for suite, protocol in PROTOCOLS.items():
        with (FOLDER / f"published_{suite}.csv").open(encoding="utf-8", newline="") as file:
            for cells in csv.DictReader(file):
                row: Plain = {name: cells.pop(name) for name in ("model", "method", "source")}
                row |= {"id": f"published/{len(rows)}", "suite": suite, "protocol": protocol}
                row["tasks"] = int(cells.pop("averaged_tasks", 8))
                columns = {"average": "score", "trainable_parameters": "trainable_parameters"}
                row["values"] = {columns.get(name, f"score/{name}"): float(cell) for name, cell in cells.items() if cell}
                rows.append(row)
    return tuple(rows)


def published_model(name: str) -> str | None:
    """Returns the paper's name of a model, or None: a hub id or a folder's name is matched by its parts.

    >>> published_model("FacebookAI/roberta-base"), published_model("meta-llama/Meta-Llama-3-8B"), published_model("bert-base")
    ('RoBERTa-base', 'LLaMA3-8B', None)
    """
    plain = re.sub(r"[^a-z0-9]", "", name.rstrip("/").rsplit("/", 1)[-1].lower()).removeprefix("meta").removesuffix("hf")
    models = (str(row["model"]) for row in published_rows())
    return next((model for model in models if re.sub(r"[^a-z0-9]", "", model.lower()) == plain), None)


def _published_values(metrics: list[Column]) -> Plain:
    """Returns the values of the stars of each model, and none for NO_ROWS."""
    values: Plain = {f"published/{NO_ROWS}": []}
    for model in sorted({row["model"] for row in published_rows()}):
        rows, key = [row for row in published_rows() if row["model"] == model], f"published/{model}"
        values[key] = [row["id"] for row in rows]
        values[f"{key}/name"] = [base.text(row["method"]) for row in rows]
        values[f"{key}/legend"] = f"published: {base.text(model)}, {base.text(rows[0]['suite'])}"
        values |= {f"{key}/{metric.name}": base.numbers(row["values"].get(metric.name) for row in rows) for metric in metrics}
    return values


def _published_trace() -> Plain:
    key = "published/{published}"
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": {"$": key + "/legend"},
        "x": {"$": key + "/{x}"},
        "y": {"$": key + "/{y}"},
        "customdata": {"$": key},
        "text": {"$": key + "/name"},
        "textposition": "top center",
        "textfont": {"size": 10},
        "marker": {"symbol": "star-open", "size": 11, "color": "ink", "line": {"width": 1.2}},
        "cliponaxis": False,
    }


def _published_details(row: Plain) -> Plain:
    lines = [["model", row["model"]], ["trainable parameters", row["values"].get(SIZE)], ["score", row["values"].get("score")]]
    lines += [["averaged over", f"{row['tasks']} tasks" if row["tasks"] > 1 else "one task"]]
    lines += [["task", row["suite"]], ["protocol", row["protocol"]], ["source", row["source"]]]
    return {"title": f"{row['method']} (published)", "lines": [line for line in lines if line[1] is not None]}

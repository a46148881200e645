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
from pathlib import Path

import numpy as np

from dashboards.frames import Frames, Row
from dashboards.panels import base
from dashboards.panels.base import Plain, View
from orchestrator.results.front import axes, pareto_front
from orchestrator.results.metrics import Column, colours, titled
from orchestrator.review.front_tables import describe_intervals, scored_on

GREY = "#8A8A8A"
STATES = {
    "done": "done",
    "partial": "still running (×)",
    "waiting": "waiting for seeds (×)",
    "incomplete": "incomplete or with fewer seeds (×)",
    "running": "waiting for a first score",
    "failed": "failed",
    "stopped": "stopped early",
    "interrupted": "interrupted",
    "infeasible": "dropped as infeasible",
}
SI = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0, ""))


def data(view: View) -> Plain:
    """Returns the values of every metric over finished configurations, the front of each pair of metrics, and what is not
    drawn."""
    ready = base.done(view.configurations)
    partial = [row for row in view.configurations if row.state in ("partial", "waiting", "incomplete")]
    states = Counter(row.state for row in view.configurations)
    counts = {state: states[state] for state in STATES}
    if not ready and not partial:
        return {"empty": _why_empty(counts)}
    metrics = base.metrics_of(view)
    lines, possible = _fronts(view, ready, metrics)
    x, y = axes(view.sweeps[0].objectives)
    levels = {row.value("random_guessing") for row in ready}
    return {
        "metrics": metrics,
        "axes": [x, y],
        "sweeps": view.names,
        "id": [row.id for row in ready],
        "label": [row.label for row in ready],
        "method": [row.method for row in ready],
        "sweep": [view.sweeps.index(row.sweep) for row in ready],
        "values": {metric.name: base.numbers(base.column(ready, metric.name)) for metric in metrics},
        "intervals": {metric.name: _interval(ready, metric.name) for metric in metrics},
        "fronts": lines,
        "possible": possible,
        "partial": {
            "id": [row.id for row in partial],
            "method": [row.method for row in partial],
            "values": {metric.name: base.numbers(base.column(partial, metric.name)) for metric in metrics},
        },
        "counts": counts,
        "answers": _recommended(view),
        "scored": _scored(ready),
        "guessing": base.number(*levels) if len(levels) == 1 else None,
        "objectives": view.objectives,
        "published": published(view, metrics),
    }


def _fronts(view: View, ready: list[Row], metrics: list[Column]) -> tuple[Plain, Plain]:
    """Returns positions among the finished ones for each two metrics x and y, in ascending order of x: `{x: {y: [front of each
    sweep, ...]}}`, and `{x: {y: [those that may be on the front of their sweep]}}`."""
    places = {row.id: place for place, row in enumerate(ready)}
    groups = [(sweep, [row for row in ready if row.sweep is sweep]) for sweep in view.sweeps]
    lines: Plain = {metric.name: {} for metric in metrics}
    possible: Plain = {metric.name: {} for metric in metrics}
    for number_x, x in enumerate(metrics):
        for y in metrics[number_x + 1 :]:
            pair = [_front_over(sweep, rows, x, y) for sweep, rows in groups]
            own = [row for sweep, rows in groups if {x.name, y.name} == {*axes(sweep.objectives)} for row in rows]
            open_ = [places[row.id] for row in own if row.summary.possible]
            for a, b in ((x.name, y.name), (y.name, x.name)):
                fronts = [sorted(front, key=lambda row, name=a: row.value(name)) for front in pair]  # type: ignore[misc]
                lines[a][b] = [[places[row.id] for row in front] for front in fronts]
                possible[a][b] = open_
    return lines, possible


def _front_over(sweep: Frames, rows: list[Row], x: Column, y: Column) -> list[Row]:
    """Returns the sweep's own front over its own axes, and over any others that of these two metrics alone."""
    if {x.name, y.name} == {*axes(sweep.objectives)}:
        return [row for row in rows if row.summary.on_front]
    objectives = {metric.name: sweep.objectives.get(metric.name) or metric.better or "minimize" for metric in (y, x)}
    points = np.column_stack([base.column(rows, name) for name in objectives])
    return [row for row, member in zip(rows, pareto_front(points, [*objectives.values()]), strict=True) if member]


def _why_empty(counts: dict[str, int]) -> str:
    if not sum(counts.values()):
        return "This sweep has no configurations yet: the first appear when its first trial starts."
    ended = [f"{count} {state}" for state, count in counts.items() if count and state not in ("running", "waiting")]
    return f"No configuration has a score yet ({', '.join(ended)})." if ended else "No configuration has a score yet."


def _scored(ready: list[Row]) -> str:
    summaries = [row.summary for row in ready]
    text = "; ".join(filter(None, [describe_intervals(summaries), scored_on(summaries)]))
    return f"{text[0].upper()}{text[1:]}."


def _interval(rows: list[Row], name: str) -> list[list[float | int | None]] | None:
    """Returns how far the interval reaches above and below the value, for metrics that have an interval."""
    if not (base.values_of(rows, f"{name}_low") and base.values_of(rows, f"{name}_high")):
        return None
    ends = [(row.value(name), row.value(f"{name}_low"), row.value(f"{name}_high")) for row in rows]
    return [base.numbers(high - value for value, _, high in ends), base.numbers(value - low for value, low, _ in ends)]


def _recommended(view: View) -> list[list[str]]:
    several = len(view.sweeps) > 1
    return [
        [row.id, reason[0].upper() + reason[1:] + (f" ({row.sweep.name})" if several else "")]
        for row, reason in view.recommended()
    ]


def draw(plain: Plain) -> Plain:
    """Draws the figure with its choices: horizontal metric, vertical metric, published rows."""
    metrics = plain["metrics"]
    by_method = colours([*plain["method"], *plain["partial"]["method"]])
    values = _values(plain, metrics, by_method)
    traces = _method_traces(plain, values, by_method)
    if plain["partial"]["id"]:
        traces.append(_partial_trace(plain["partial"], values, by_method))
    if any(any(by_axis.values()) for by_axis in plain["possible"].values()):
        marker = {"color": "ink", "symbol": "circle-open", "size": 13, "line": {"width": 1.2}}
        traces.append(_points("may be on the front", marker, "possible/{x}/{y}"))
    traces += _front_traces(plain["sweeps"])
    if plain["answers"]:
        marker = {"color": "ink", "symbol": "star-diamond-open", "size": 17, "line": {"width": 1.6}}
        traces.append(_points("the answer", marker, "answers"))
    traces.append(published_trace(plain["published"]["rows"], values))
    labels = {metric.name: metric.label if metric.name == "score" else titled(metric.name) for metric in metrics}
    x, y = (name if name in labels else None for name in plain["axes"])
    suites = {row["model"]: f"{row['model']} ({row['suite']})" for row in plain["published"]["rows"]}
    layout = {"xaxis": {"$": "axis/{x}"}, "yaxis": {"$": "axis/{y}"}, "shapes": {"$": "lines/{y}"}, "dragmode": "select"}
    return {
        "choices": [
            base.choice("y", "Vertical axis", labels, y or metrics[0].name),
            base.choice("x", "Horizontal axis", labels, x or metrics[-1].name),
            base.choice("published", "Published rows", {NO_ROWS: "hidden"} | suites, plain["published"]["shown"]),
        ],
        "values": values,
        "figure": {"data": traces, "layout": layout},
        "note": " ".join(filter(None, [_note(plain["counts"]), plain["scored"]])),
        "help": _help(plain),
        "first": plain["answers"][0] if plain["answers"] else None,
        "details": {row["id"]: published_details(row) for row in plain["published"]["rows"]},
    }


def _values(plain: Plain, metrics: list[Column], by_method: dict[str, str]) -> Plain:
    """Returns the data of the traces: columns of the finished points, and by axes the positions of the front's members."""
    values: Plain = {
        "id": plain["id"],
        "label": base.texts(plain["label"], 40),
        "colour": [by_method[method] for method in plain["method"]],
    }
    recommended = {identity for identity, _ in plain["answers"]}
    values["answers"] = [place for place, identity in enumerate(plain["id"]) if identity in recommended]
    values["symbol"] = [base.SYMBOLS[sweep % len(base.SYMBOLS)] for sweep in plain["sweep"]]
    for metric in metrics:
        done, partial = plain["values"][metric.name], plain["partial"]["values"][metric.name]
        factor, values[f"axis/{metric.name}"] = base.axis_of(metric, [*done, *partial])
        if factor != 1:
            done, partial = ([None if value is None else value / factor for value in every] for every in (done, partial))
        if metric.log and 0 in (*done, *partial):
            ticks, (done, partial) = _zeros_at_the_edge(done, partial)
            values[f"axis/{metric.name}"] |= ticks
        values[f"v/{metric.name}"], values[f"so far/{metric.name}"] = done, partial
        # a front's steps go right and then up where less of x is better, up and then right where more is
        values[f"step/{metric.name}"] = "hv" if metric.better == "minimize" else "vh"
        if plain["intervals"][metric.name]:
            values[f"above/{metric.name}"], values[f"below/{metric.name}"] = plain["intervals"][metric.name]
    if plain["guessing"] is not None:
        place = {"textposition": "end", "xanchor": "right", "yanchor": "bottom"}
        label = {"text": "random guessing", "font": {"size": 11, "color": GREY}, **place}
        line = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": plain["guessing"], "y1": plain["guessing"]}
        values["lines/score"] = [line | {"line": {"color": GREY, "width": 1, "dash": "dot"}, "label": label, "layer": "below"}]
    for x, by_y in plain["fronts"].items():
        for y, per_sweep in by_y.items():
            values[f"front/{x}/{y}"] = [index for group in per_sweep for index in group]
            values |= {f"front/{x}/{y}/{sweep}": group for sweep, group in enumerate(per_sweep)}
            values[f"possible/{x}/{y}"] = plain["possible"][x][y]
    return values


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


def _method_traces(plain: Plain, values: Plain, by_method: dict[str, str]) -> list[Plain]:
    pairs = list(zip(plain["method"], plain["sweep"], strict=True))
    traces: list[Plain] = []
    sweeps, methods = base.texts(plain["sweeps"], 30), dict(zip(by_method, base.texts([*by_method], 30), strict=True))
    for group, (method, sweep) in enumerate(sorted(set(pairs))):
        pick = f"group/{group}"
        values[pick] = [index for index, pair in enumerate(pairs) if pair == (method, sweep)]
        name = f"{methods[method]} · {sweeps[sweep]}" if len(sweeps) > 1 else methods[method]
        marker = {"color": by_method[method], "symbol": base.SYMBOLS[sweep % len(base.SYMBOLS)], "size": 8, "opacity": 0.85}
        traces.append(_points(name, marker, pick))
    return traces


def _partial_trace(partial: Plain, values: Plain, by_method: dict[str, str]) -> Plain:
    values["so far"] = partial["id"]
    colour = [by_method[method] for method in partial["method"]]
    marker = {"color": colour, "symbol": "x-thin-open", "size": 8, "line": {"width": 1.6}, "opacity": 0.8}
    at = {"x": {"$": "so far/{x}"}, "y": {"$": "so far/{y}"}, "customdata": {"$": "so far"}}
    return {"type": "scatter", "mode": "markers", "name": "not complete (mean so far)", "marker": marker, **at}


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
    look = {"color": {"$": "colour", "pick": pick}, "symbol": {"$": "symbol", "pick": pick}}
    points = _points("on the front", {**look, "size": 11, "line": {"width": 1.5, "color": "ink"}}, pick)
    bars = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": "soft"}
    bars |= {"array": {"$": "above/{y}", "pick": pick}, "arrayminus": {"$": "below/{y}", "pick": pick}}
    # the page's script puts each name where it covers nothing
    names: Plain = {key: points[key] for key in ("type", "x", "y")} | {"mode": "text", "text": {"$": "label", "pick": pick}}
    names |= {"textposition": "top center", "textfont": {"size": 10}, "hoverinfo": "skip", "cliponaxis": False}
    return [*lines, points | {"showlegend": False, "error_y": bars}, names | {"showlegend": False}]


def _note(counts: Plain) -> str:
    parts = [f"{counts[state]} {words}" for state, words in STATES.items() if counts[state] or state == "done"]
    return f"Configurations: {', '.join(parts)}."


def _help(plain: Plain) -> str:
    parts = [
        "A configuration is on the line if no other one is at least as good on both axes and better on one. Drag to select. A "
        "point that is clicked stays in focus, and a line shows its value, to compare others with it.",
        f"The answer, the first axes and ● in the table follow the sweep's objectives: {plain['objectives']}. Over other axes "
        "the line is the front of those two metrics.",
    ]
    if 0 in plain["values"].get("trainable_parameters", ()):
        parts.append("The control, without an adapter, has 0 parameters and is at the left edge.")
    if plain["published"]["shown"] == NO_ROWS and plain["published"]["of"]:
        parts.append(f"The paper has no rows for {plain['published']['of'][0]}; those of other models are hidden.")
    return " ".join(parts)


NO_ROWS = "none"
FOLDER = Path(__file__).parents[1] / "published"
PROTOCOLS = {
    "glue": "customary GLUE: the dev set both selects the epoch and is reported, best of a run's epochs",
    "commonsense": "customary commonsense (LLM-Adapters): tests both select the epoch and are reported",
}


@cache
def published_rows() -> tuple[Plain, ...]:
    """Returns all rows of the paper's two tables: model, method, source, suite, protocol, the number of averaged tasks, and
    `values` by metric: the average as `score`, `trainable_parameters` and `score/TASK`."""
    rows: list[Plain] = []
    for suite, protocol in PROTOCOLS.items():
        with (FOLDER / f"published_{suite}.csv").open(encoding="utf-8", newline="") as file:
            for cells in csv.DictReader(file):
                row: Plain = {name: cells.pop(name) for name in ("model", "method", "source")}
                row |= {"suite": suite, "protocol": protocol, "tasks": int(cells.pop("averaged_tasks", 8))}
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


def published(view: View, metrics: list[Column]) -> Plain:
    """Returns every published row with its values, and the model whose rows are shown first: if possible, the sweep's."""
    models = [frame.state.sweep.model for frame in view.sweeps if frame.state.started is not None]
    records = [
        row
        | {
            "id": f"published/{index}",
            "averaged": f"{row['tasks']} tasks" if row["tasks"] > 1 else "one task",
            "values": {metric.name: base.number(row["values"].get(metric.name)) for metric in metrics},
        }
        for index, row in enumerate(published_rows())
    ]
    return {"rows": records, "shown": next(filter(None, map(published_model, models)), NO_ROWS), "of": models}


def published_trace(rows: list[Plain], values: Plain) -> Plain:
    """Returns the trace of the stars, and adds the values of each model's rows to `values`."""
    values[f"published/{NO_ROWS}"] = []
    for model in sorted({row["model"] for row in rows}):
        chosen = [row for row in rows if row["model"] == model]
        values[f"published/{model}"] = [row["id"] for row in chosen]
        values[f"published/{model}/name"] = [base.text(row["method"]) for row in chosen]
        values[f"published/{model}/legend"] = f"published: {base.text(model)}, {base.text(chosen[0]['suite'])}"
        for metric in chosen[0]["values"]:
            values[f"published/{model}/{metric}"] = [row["values"][metric] for row in chosen]
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


def published_details(row: Plain) -> Plain:
    """Returns the card's lines on a published row."""
    lines = [["model", row["model"]], ["trainable parameters", row["values"].get("trainable_parameters")]]
    lines += [["score", row["values"].get("score")], ["averaged over", row["averaged"]]]
    lines += [["task", row["suite"]], ["protocol", row["protocol"]], ["source", row["source"]]]
    return {"title": f"{row['method']} (published)", "lines": [line for line in lines if line[1] is not None]}

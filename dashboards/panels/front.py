"""The front: what each configuration scores against what it costs, any two metrics against each other.

Points of configurations that are done; their front as a step line; intervals over seeds on the front (on all points while they
are few); configurations with a value so far as hollow points that no front uses; the literature's rows as stars.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dashboards.panels.base import (
    SYMBOLS,
    Metric,
    Panel,
    Plain,
    View,
    axis,
    choice,
    colours,
    column,
    done,
    front_indices,
    metrics_of,
    number,
    numbers,
    possible_indices,
    text,
)
from dashboards.published import published_model
from orchestrator.results.pareto import knee, log_axes

INTERVALS_UP_TO = 150  # points; past it only the front's own intervals can be read
NO_ROWS = "none"
STATES = ("done", "partial", "incomplete", "running", "failed", "stopped", "interrupted", "infeasible")


def data(view: View) -> Plain:
    """Columns of every metric over the finished configurations, the front of each pair of metrics, and what is not drawn."""
    frame = view.configurations
    ready, partial = done(frame), frame[frame["state"].isin(("partial", "incomplete"))]
    states = frame["state"].value_counts()
    counts = {state: int(states.get(state, 0)) for state in STATES}
    if ready.empty and partial.empty:
        return {"empty": _why_empty(counts)}
    metrics = metrics_of(view)
    values = {metric.name: column(ready, f"m.{metric.name}").to_numpy() for metric in metrics}
    sweeps = ready["sweep"].to_numpy()
    fronts: dict[str, dict[str, list[list[int]]]] = {metric.name: {} for metric in metrics}
    for number_x, x in enumerate(metrics):
        for y in metrics[number_x + 1 :]:
            groups = []
            for name in view.names:
                members = np.flatnonzero(sweeps == name)
                chosen = front_indices(values[x.name][members], values[y.name][members], x.better, y.better)
                groups.append(members[chosen])
            fronts[x.name][y.name] = [one.tolist() for one in groups]
            # the same front, in the order of the other axis
            fronts[y.name][x.name] = [one[np.argsort(values[y.name][one], kind="stable")].tolist() for one in groups]
    exact = [metric for metric in metrics if metric.name != "score" and not metric.name.startswith("score/")]
    return {
        "metrics": [vars(metric) for metric in metrics],
        "sweeps": view.names,
        "id": ready["id"].tolist(),
        "method": ready["method"].astype(str).tolist(),
        "sweep": [view.names.index(name) for name in sweeps],
        "values": {name: numbers(one) for name, one in values.items()},
        "intervals": {metric.name: _interval(ready, metric) for metric in metrics},
        "fronts": fronts,
        "possible": {metric.name: possible_indices(ready, metric) for metric in exact} if "score" in values else {},
        "partial": {
            "id": partial["id"].tolist(),
            "method": partial["method"].astype(str).tolist(),
            "values": {metric.name: numbers(column(partial, f"m.{metric.name}")) for metric in metrics},
        },
        "counts": counts,
        "knee": _knee(ready),
        "published": _published(view, metrics),
    }


def _why_empty(counts: dict[str, int]) -> str:
    if not sum(counts.values()):
        return "This sweep has no configurations yet: the first appear when its first trial starts."
    parts = [f"{count} {state}" for state, count in counts.items() if count]
    return f"No configuration has a score yet ({', '.join(parts)})."


def _interval(frame: Any, metric: Metric) -> list[list[float | int | None]] | None:
    """How far the interval reaches above and below the value, for metrics that have one."""
    low, high = f"m.{metric.name}_low", f"m.{metric.name}_high"
    if low not in frame or high not in frame:
        return None
    value = column(frame, f"m.{metric.name}")
    return [numbers(column(frame, high) - value), numbers(value - column(frame, low))]


def _knee(frame: pd.DataFrame) -> str | None:
    """The configuration at which the front buys most, of all sweeps shown."""
    points = np.column_stack([column(frame, "m.trainable_parameters"), column(frame, "m.score")])
    # of the front alone, as the sweep's own table has it: what is dominated must not stretch the axes
    chosen = front_indices(points[:, 0], points[:, 1], "minimize", "maximize")
    # score first, as a sweep's objectives stand: a front that bends the wrong way has its best score for a knee
    best_first = log_axes(points[chosen][:, ::-1], [False, True])
    index = knee(best_first, ["maximize", "minimize"]) if len(chosen) else None
    return None if index is None else str(frame["id"].iloc[chosen[index]])


def _published(view: View, metrics: list[Metric]) -> Plain:
    rows = view.published
    models: list[str] = [str(model) for frame in view.sweeps for model in _models(frame)]
    shown = next((found for model in models if (found := published_model(model))), NO_ROWS)
    records = []
    for index, row in rows.iterrows():
        scores = {"score": row["average"], "trainable_parameters": row["trainable_parameters"]}
        scores |= {name: row[name] for name in rows.columns if name.startswith("score/")}
        averaged = f"{int(row['averaged_tasks'])} tasks"
        record = {"id": f"published/{index}", "model": row["model"], "method": row["method"], "source": row["source"]}
        record |= {"protocol": row["protocol"], "averaged": averaged, "suite": row["suite"]}
        records.append(record | {"values": {metric.name: number(scores.get(metric.name)) for metric in metrics}})
    return {"rows": records, "shown": shown, "of": models}


def _models(frame: Any) -> list[str]:
    tags = dict(frame.sweep.params) if frame.sweep else {}
    found = [tags["model"]] if "model" in tags else []
    if "p.model" in frame.configurations:
        found += [str(one) for one in frame.configurations["p.model"].dropna().unique()]
    if "p.model" in frame.trials:
        found += [str(one) for one in frame.trials["p.model"].dropna().unique()]
    return list(dict.fromkeys(found))


def draw(plain: Plain) -> Plain:
    """The figure with its three choices: horizontal metric, vertical metric, whose published rows."""
    metrics = [Metric(**one) for one in plain["metrics"]]
    by_method = colours([*plain["method"], *plain["partial"]["method"]])
    groups = sorted(set(zip(plain["method"], plain["sweep"], strict=True)))
    members = [
        [index for index, pair in enumerate(zip(plain["method"], plain["sweep"], strict=True)) if pair == group]
        for group in groups
    ]
    values: Plain = {"id": plain["id"], "colour": [by_method[method] for method in plain["method"]]}
    values["symbol"] = [SYMBOLS[one % len(SYMBOLS)] for one in plain["sweep"]]
    for metric in metrics:
        values[f"v/{metric.name}"] = plain["values"][metric.name]
        values[f"axis/{metric.name}"] = axis(metric)
        values[f"so far/{metric.name}"] = plain["partial"]["values"][metric.name]
        # a front's steps go right and then up where less of x is better, up and then right where more is
        values[f"step/{metric.name}"] = "hv" if metric.better == "minimize" else "vh"
        if plain["intervals"][metric.name]:
            values[f"above/{metric.name}"], values[f"below/{metric.name}"] = plain["intervals"][metric.name]
    for x, others in plain["fronts"].items():
        for y, per_sweep in others.items():
            values[f"front/{x}/{y}"] = [index for group in per_sweep for index in group]
            values |= {f"front/{x}/{y}/{sweep}": group for sweep, group in enumerate(per_sweep)}
            values[f"possible/{x}/{y}"] = plain["possible"].get(x if y == "score" else y, []) if "score" in (x, y) else []
    traces = []
    several = len(plain["sweeps"]) > 1
    few = len(plain["id"]) <= INTERVALS_UP_TO
    for number_, ((method, sweep), indices) in enumerate(zip(groups, members, strict=True)):
        values[f"group/{number_}"] = indices
        name = f"{text(method, 30)} · {text(plain['sweeps'][sweep], 30)}" if several else text(method, 30)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": {"$": "v/{x}", "pick": f"group/{number_}"},
                "y": {"$": "v/{y}", "pick": f"group/{number_}"},
                "customdata": {"$": "id", "pick": f"group/{number_}"},
                "marker": {"color": by_method[method], "symbol": SYMBOLS[sweep % len(SYMBOLS)], "size": 8, "opacity": 0.6},
                **({"error_y": _error(f"group/{number_}", by_method[method])} if few else {}),
            }
        )
    if plain["partial"]["id"]:
        values["so far"] = plain["partial"]["id"]
        colour = [by_method[method] for method in plain["partial"]["method"]]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "not complete (mean so far)",
                "x": {"$": "so far/{x}"},
                "y": {"$": "so far/{y}"},
                "customdata": {"$": "so far"},
                "marker": {"color": colour, "symbol": "circle-open", "size": 8, "opacity": 0.8},
            }
        )
    if any(plain["possible"].values()):
        traces.append(_possible_trace())
    traces += _front_traces(plain["sweeps"], few)
    traces += _published_traces(plain["published"]["rows"], values)
    words = {metric.name: metric.label for metric in metrics}
    x = "trainable_parameters" if "trainable_parameters" in words else metrics[-1].name
    return {
        "choices": [
            choice("y", "Vertical axis", words, "score" if "score" in words else metrics[0].name),
            choice("x", "Horizontal axis", words, x),
            _published_choice(plain["published"]),
        ],
        "values": values,
        "figure": {
            "data": traces,
            "layout": {"xaxis": {"$": "axis/{x}"}, "yaxis": {"$": "axis/{y}"}, "dragmode": "select", "hovermode": "closest"},
        },
        "note": _note(plain),
        "first": [plain["knee"], "The knee of the front: where it buys most"] if plain["knee"] else None,
        "details": {row["id"]: _published_details(row) for row in plain["published"]["rows"]},
    }


def _error(pick: str, colour: Any) -> Plain:
    bar = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 3, "color": colour}
    return bar | {"array": {"$": "above/{y}", "pick": pick}, "arrayminus": {"$": "below/{y}", "pick": pick}}


def _possible_trace() -> Plain:
    pick = "possible/{x}/{y}"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "may be on the front",
        "x": {"$": "v/{x}", "pick": pick},
        "y": {"$": "v/{y}", "pick": pick},
        "customdata": {"$": "id", "pick": pick},
        "marker": {"color": "ink", "symbol": "circle-open", "size": 13, "line": {"width": 1.2}},
    }


def _front_traces(sweeps: list[str], few: bool) -> list[Plain]:
    dashes = ("solid", "dash", "dot", "dashdot")
    lines: list[Plain] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"front · {text(name, 30)}" if len(sweeps) > 1 else "front",
            "x": {"$": "v/{x}", "pick": f"front/{{x}}/{{y}}/{index}"},
            "y": {"$": "v/{y}", "pick": f"front/{{x}}/{{y}}/{index}"},
            "line": {"shape": {"$": "step/{x}"}, "width": 1.6, "dash": dashes[index % len(dashes)], "color": "ink"},
            "hoverinfo": "skip",
        }
        for index, name in enumerate(sweeps)
    ]
    pick = "front/{x}/{y}"
    points: Plain = {
        "type": "scatter",
        "mode": "markers",
        "name": "on the front",
        "showlegend": False,
        "x": {"$": "v/{x}", "pick": pick},
        "y": {"$": "v/{y}", "pick": pick},
        "customdata": {"$": "id", "pick": pick},
        "marker": {
            "color": {"$": "colour", "pick": pick},
            "symbol": {"$": "symbol", "pick": pick},
            "size": 11,
            "line": {"width": 1.5, "color": "ink"},
        },
    }
    # where all points show their interval already, a second bar over it would only blur
    return [*lines, points if few else points | {"error_y": _error(pick, "ink")}]


def _published_traces(rows: list[Plain], values: Plain) -> list[Plain]:
    for model in sorted({row["model"] for row in rows}):
        chosen = [row for row in rows if row["model"] == model]
        values[f"published/{model}"] = [row["id"] for row in chosen]
        values[f"published/{model}/name"] = [text(row["method"]) for row in chosen]
        for metric in chosen[0]["values"]:
            values[f"published/{model}/{metric}"] = [row["values"][metric] for row in chosen]
    key = "published/{published}"
    return [
        {
            "type": "scatter",
            "mode": "markers+text",
            "name": "published",
            "x": {"$": key + "/{x}"},
            "y": {"$": key + "/{y}"},
            "customdata": {"$": key},
            "text": {"$": key + "/name"},
            "textposition": "top center",
            "textfont": {"size": 10},
            "marker": {"symbol": "star-open", "size": 11, "color": "ink", "line": {"width": 1.2}},
            "cliponaxis": False,
        }
    ]


def _published_choice(published: Plain) -> Plain:
    suites = {row["model"]: row["suite"] for row in published["rows"]}
    words = {NO_ROWS: "hidden"} | {model: f"{model} ({suite})" for model, suite in suites.items()}
    return choice("published", "Published rows", words, published["shown"])


def _published_details(row: Plain) -> Plain:
    lines = [["model", row["model"]], ["trainable parameters", row["values"].get("trainable_parameters")]]
    lines += [["score", row["values"].get("score")], ["averaged over", row["averaged"]]]
    lines += [["protocol", row["protocol"]], ["source", row["source"]]]
    return {"title": f"{row['method']} (published)", "lines": [line for line in lines if line[1] is not None]}


def _note(plain: Plain) -> str:
    words = {
        "partial": "still running (hollow)",
        "incomplete": "incomplete (hollow)",
        "running": "waiting for a first score",
        "failed": "failed",
        "stopped": "stopped early",
        "interrupted": "interrupted",
        "infeasible": "dropped as infeasible",
    }
    counts = plain["counts"]
    parts = [f"{counts['done']} done"] + [f"{counts[state]} {word}" for state, word in words.items() if counts[state]]
    sentence = f"Configurations: {', '.join(parts)}."
    if len(plain["id"]) > INTERVALS_UP_TO:
        sentence += " Intervals (95 %, over seeds) are drawn on the front only."
    elif plain["intervals"].get("score"):
        sentence += " Bars are 95 % intervals over seeds."
    if plain["published"]["shown"] == NO_ROWS and plain["published"]["of"]:
        sentence += f" The paper has no rows for {plain['published']['of'][0]}; choose some to compare at your own risk."
    return sentence


PANEL = Panel(
    "front",
    "Front",
    "front",
    "Score against cost. The line joins the configurations that no other one beats in both; drag to select, click for the run.",
    data,
    draw,
    wide=True,
)

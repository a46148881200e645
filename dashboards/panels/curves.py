"""Learning curves: the search score of every trial by step, stopped and failed trials marked where they ended.

The tracking store gives histories trial by trial, which takes time, so the panel shows at most LINES of them: running trials
first, then those of the best configurations.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from dashboards.panels.base import Panel, Plain, View, choice, column, not_cut, number, numbers, score_axis, texts
from orchestrator.results.presentation import colours

LINES = 150
METRICS_BY_STEP = {"search_score": "search score", "train_loss": "training loss"}
ENDS = {"stopped": "line-ns-open", "failed": "x-thin-open"}
"""States that are marked at the end of a line, with their symbols."""


def data(view: View) -> Plain:
    """Returns a line of each trial for each metric that was logged by step: {metric: [{id, task, seed, state, steps, values},
    ...]}."""
    trials = not_cut(view.trials)
    if trials.empty:
        return {"empty": "No trial has started yet, so there are no learning curves."}
    measured = [metric for metric in METRICS_BY_STEP if f"m.{metric}" in trials]
    if not measured:
        return {"empty": "No trial has logged an evaluation yet (no search_score, no train_loss)."}
    evaluated = trials[trials[[f"m.{metric}" for metric in measured]].notna().any(axis=1)]
    chosen = _chosen(view, evaluated)
    lines: dict[str, list[Plain]] = {}
    for metric in measured:
        asked = [
            (run, (state, ended, last))
            for run, state, ended, last in zip(
                chosen["run"], chosen["state"], chosen["changed"], chosen[f"m.{metric}"].map(number), strict=True
            )
        ]
        histories = view.curves(asked, metric)
        lines[metric] = [
            {
                "id": row["configuration"],
                "method": row["method"],
                "task": row["task"],
                "seed": str(row["seed"]),
                "state": row["state"],
                "steps": [step for step, _ in histories[row["run"]]],
                "values": numbers(value for _, value in histories[row["run"]]),
            }
            for row in chosen.to_dict("records")
            if histories.get(row["run"])
        ]
    # what was evaluated once, at the end, is a point of each trial and no curve
    lines = {metric: rows for metric, rows in lines.items() if any(len(row["steps"]) > 1 for row in rows)} or lines
    return {"lines": lines, "left_out": len(evaluated) - len(chosen), "bare": len(trials) - len(evaluated)}


def _chosen(view: View, trials: pd.DataFrame) -> pd.DataFrame:
    scores = dict(zip(view.configurations["id"], column(view.configurations, "m.score"), strict=True))
    order = trials.assign(_running=trials["state"] != "running", _score=-trials["configuration"].map(scores).astype(float))
    return order.sort_values(["_running", "_score"], kind="stable", na_position="last").head(LINES)


def draw(plain: Plain) -> Plain:
    """Draws a line for each trial, by task and metric, with marks at the ends of those that stopped or failed."""
    every = [line for lines in plain["lines"].values() for line in lines]
    tasks = sorted({line["task"] for line in every})
    by_method = colours([line["method"] for line in every])
    layout = {"xaxis": {"title": {"text": "optimizer steps"}}, "yaxis": {"$": "axis/{metric}"}, "hovermode": "closest"}
    return {
        "choices": [
            choice("task", "Task", tasks),
            choice("metric", "Metric", {metric: METRICS_BY_STEP[metric] for metric in plain["lines"]}),
        ],
        "values": _values(plain["lines"], tasks, list(by_method)),
        "figure": {"data": _traces(by_method), "layout": layout},
        "note": _note(plain),
    }


def _values(lines_of: dict[str, list[Plain]], tasks: list[str], methods: list[str]) -> Plain:
    """Returns what the traces and the axis refer to, by metric and task."""
    values: Plain = {}
    for metric, lines in lines_of.items():
        label = METRICS_BY_STEP[metric]
        values[f"axis/{metric}"] = score_axis(label) if metric == "search_score" else {"title": {"text": label}}
        for task in tasks:
            of_task = [line for line in lines if line["task"] == task]
            for index, method in enumerate(methods):
                values |= _joined(f"{metric}/{task}/{index}", [line for line in of_task if line["method"] == method])
            for state in ENDS:
                ends = [line for line in of_task if line["state"] == state]
                values |= {f"{state}/x/{metric}/{task}": [line["steps"][-1] for line in ends]}
                values |= {f"{state}/y/{metric}/{task}": [line["values"][-1] for line in ends]}
                values |= {f"{state}/id/{metric}/{task}": [line["id"] for line in ends]}
    return values


def _traces(by_method: dict[str, str]) -> list[Plain]:
    traces: list[Plain] = []
    for index, (name, colour) in enumerate(zip(texts([*by_method], 30), by_method.values(), strict=True)):
        key = f"{{metric}}/{{task}}/{index}"
        trace: Plain = {"type": "scatter", "mode": "lines+markers", "name": name, "connectgaps": False}
        trace |= {"x": {"$": "x/" + key}, "y": {"$": "y/" + key}, "customdata": {"$": "id/" + key}}
        traces.append(trace | {"line": {"color": colour, "width": 1.3}, "marker": {"size": 3, "color": colour}, "opacity": 0.7})
    for state, symbol in ENDS.items():
        at = {axis: {"$": f"{state}/{axis}/{{metric}}/{{task}}"} for axis in ("x", "y")}
        mark: Plain = {
            "type": "scatter",
            "mode": "markers",
            "name": state,
            "customdata": {"$": f"{state}/id/{{metric}}/{{task}}"},
        }
        traces.append(mark | at | {"marker": {"symbol": symbol, "size": 11, "color": "ink", "line": {"width": 2}}})
    return traces


def _note(plain: Plain) -> str:
    lines = next(iter(plain["lines"].values()))
    stopped, failed = (sum(line["state"] == state for line in lines) for state in ENDS)
    sentences = {
        f"{stopped} stopped early (|)": stopped,
        f"{failed} failed (×)": failed,
        f"{plain['bare']} without an evaluation": plain["bare"],
        f"{plain['left_out']} left out, running ones and those of the best configurations first": plain["left_out"],
    }
    counted = [sentence for sentence, count in sentences.items() if count]
    return f"Of the trials {', '.join(counted)}." if counted else ""


def _joined(key: str, lines: list[Plain]) -> Plain:
    """Joins many lines into one trace, with a gap between two: a trace for each would be slow to draw."""
    x: list[Any] = []
    y: list[Any] = []
    ids: list[Any] = []
    for line in lines:
        x += [*line["steps"], None]
        y += [*line["values"], None]
        ids += [*([line["id"]] * len(line["steps"])), None]
    return {f"x/{key}": x, f"y/{key}": y, f"id/{key}": ids}


PANEL = Panel(
    "curves",
    "Learning curves",
    "curves",
    "Search score and training loss by step, trial by trial; where stopped and failed trials ended.",
    data,
    draw,
    wide=True,
)

"""Learning curves: the search score of every trial by step, stopped and failed trials marked where they ended.

The tracking store gives histories trial by trial, which takes time, so the panel shows at most LINES of them: running trials
first, then those of the best configurations.
"""

from __future__ import annotations

import math

from dashboards.panels.base import Plain, View, best_first, choice, focus_trace, numbers, score_axis, texts
from orchestrator.record.log import read_points
from orchestrator.results.metrics import colours

LINES = 150
ROOM = 1.2
"""The axis reaches so far beyond the last step, for the names."""
MARKED = 30
"""Lines of at most so many points have a mark at each."""
METRICS_BY_STEP = {"search_score": "search score", "train_loss": "training loss"}
ENDS = {"stopped": "line-ns-open", "failed": "x-thin-open"}
"""States that are marked at the end of a line, with their symbols."""


def draw(view: View) -> Plain:
    """Draws a line for each trial, by task and metric, with a name at the end of each configuration's best line, and marks at
    the ends of those that stopped or failed. The page draws the configuration in focus again, over the others."""
    trials = [trial for trial in view.trials if "cut_to" not in trial.entry.trial.parameters]
    if not trials:
        return {"empty": "No trial has started yet, so there are no learning curves."}
    evaluated = [trial for trial in trials if not all(math.isnan(trial.value(metric)) for metric in METRICS_BY_STEP)]
    places = {row.id: place for place, row in enumerate(best_first(view.configurations))}
    best = sorted(evaluated, key=lambda trial: places.get(trial.configuration, len(places)))
    chosen = sorted(best, key=lambda trial: trial.entry.status != "running")[:LINES]
    keys = {sweep.name: [trial.entry.key for trial in chosen if trial.sweep is sweep] for sweep in view.sweeps}
    points = {sweep.name: read_points(sweep.log, keys[sweep.name]) if sweep.log else {} for sweep in view.sweeps}
    lines_of: dict[str, list[Plain]] = {}
    for metric in METRICS_BY_STEP:
        histories = [sorted(points[trial.sweep.name].get(trial.entry.key, {}).get(metric, {}).items()) for trial in chosen]
        lines_of[metric] = [
            {
                "id": trial.configuration,
                "label": f"{named.label} · {trial.sweep.name}" if len(view.sweeps) > 1 else named.label,
                "method": named.method,
                "task": named.task,
                "state": trial.entry.status,
                "steps": [step for step, _ in history],
                "values": numbers(value for _, value in history),
            }
            for trial, history in zip(chosen, histories, strict=True)
            if history and (named := trial.entry.trial)
        ]
    # what was evaluated once, at the end, is a point of each trial and no curve
    lines_of = {metric: rows for metric, rows in lines_of.items() if any(len(row["steps"]) > 1 for row in rows)} or lines_of
    every = [line for lines in lines_of.values() for line in lines]
    if not every:
        return {"empty": "No trial has logged an evaluation yet (no search_score, no train_loss)."}
    tasks = sorted({line["task"] for line in every})
    by_method = colours([line["method"] for line in every])
    layout = {"xaxis": {"title": {"text": "optimizer steps"}}, "yaxis": {"$": "axis/{metric}"}}
    return {
        "choices": [
            choice("task", "Task", tasks),
            choice("metric", "Metric", {metric: METRICS_BY_STEP[metric] for metric in lines_of}),
        ],
        "values": _values(lines_of, tasks, list(by_method)),
        "figure": {"data": _traces(by_method), "layout": layout},
        "note": _note(next(iter(lines_of.values())), len(trials) - len(evaluated), len(evaluated) - len(chosen)),
    }


def _values(lines_of: dict[str, list[Plain]], tasks: list[str], methods: list[str]) -> Plain:
    values: Plain = {}
    for metric, lines in lines_of.items():
        label, scores = METRICS_BY_STEP[metric], (value for line in lines for value in line["values"])
        values[f"axis/{metric}"] = score_axis(label, scores) if metric == "search_score" else {"title": {"text": label}}
        # a mark for each of thousands of points would be slow to draw
        values[f"mode/{metric}"] = (
            "lines" if max((len(line["steps"]) for line in lines), default=0) > MARKED else "lines+markers"
        )
        for task in tasks:
            of_task = [line for line in lines if line["task"] == task]
            for index, method in enumerate(methods):
                values |= _joined(f"{metric}/{task}/{index}", [line for line in of_task if line["method"] == method])
            for state in ENDS:
                values |= _ends(f"{metric}/{task}/{state}", [line for line in of_task if line["state"] == state])
            named = [*{line["id"]: line for line in reversed(of_task)}.values()][::-1]
            last = max((line["steps"][-1] for line in named), default=0)
            named += [line | {"id": None, "label": "", "steps": [ROOM * last]} for line in named[:1]]
            values |= _ends(f"{metric}/{task}/name", named)
            values[f"text/{metric}/{task}/name"] = texts([line["label"] for line in named], 34)
    return values


def _traces(by_method: dict[str, str]) -> list[Plain]:
    """Returns a trace for the lines of each method, for those of the configuration in focus, for the ends and for the names."""

    def trace(key: str, more: Plain) -> Plain:
        at = {"x": {"$": f"x/{key}"}, "y": {"$": f"y/{key}"}, "customdata": {"$": f"id/{key}"}}
        return {"type": "scatter", "mode": "markers", "connectgaps": False, **at, **more}

    traces: list[Plain] = []
    for index, (name, colour) in enumerate(zip(texts([*by_method], 30), by_method.values(), strict=True)):
        style = {"line": {"color": colour, "width": 1.3}, "marker": {"size": 3, "color": colour}, "opacity": 0.7}
        traces.append(trace(f"{{metric}}/{{task}}/{index}", {"mode": {"$": "mode/{metric}"}, "name": name, **style}))
    traces.append(focus_trace("ink"))
    for state, symbol in ENDS.items():
        marker = {"symbol": symbol, "size": 11, "color": "ink", "line": {"width": 2}}
        traces.append(trace(f"{{metric}}/{{task}}/{state}", {"name": state, "marker": marker}))
    names: Plain = {"mode": "text", "text": {"$": "text/{metric}/{task}/name"}, "textfont": {"size": 10}, "hoverinfo": "skip"}
    names |= {"textposition": "middle right", "showlegend": False, "cliponaxis": False}
    return [*traces, trace("{metric}/{task}/name", names)]


def _note(lines: list[Plain], bare: int, left_out: int) -> str:
    stopped, failed = (sum(line["state"] == state for line in lines) for state in ENDS)
    parts = {
        f"{stopped} stopped early (|)": stopped,
        f"{failed} failed (×)": failed,
        f"{bare} with no evaluation yet": bare,
        f"{left_out} not drawn (running trials and those of the best configurations are)": left_out,
    }
    counted = [part for part, count in parts.items() if count]
    return f"Trials: {', '.join(counted)}." if counted else ""


def _ends(key: str, lines: list[Plain]) -> Plain:
    ends = {f"x/{key}": [line["steps"][-1] for line in lines], f"y/{key}": [line["values"][-1] for line in lines]}
    return ends | {f"id/{key}": [line["id"] for line in lines]}


def _joined(key: str, lines: list[Plain]) -> Plain:
    """Joins many lines into one trace, with a gap between two: a trace for each would be slow to draw."""
    columns = {"x": "steps", "y": "values"}
    joined: Plain = {
        f"{name}/{key}": [value for line in lines for value in (*line[column], None)] for name, column in columns.items()
    }
    return joined | {f"id/{key}": [value for line in lines for value in (*[line["id"]] * len(line["steps"]), None)]}

"""The table of configurations: the columns in which they differ. What all of them share stands once above the table.

The page's script sorts, filters and copies the table (CSV, Markdown, LaTeX). Each column therefore says whether it is text or a
number, which way is better, and has the texts of its cells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from dashboards.panels.base import (
    Panel,
    Plain,
    View,
    column,
    intervals_of,
    metrics_of,
    number,
    numbers,
    parameters_that_differ,
    scalar,
)
from dashboards.panels.commands import commands_of
from dashboards.panels.verdicts import fronts, in_words
from orchestrator.results.metrics import COLUMNS, SIZE, Column, amount, heading
from orchestrator.results.summary import Summary
from orchestrator.results.table import describe_trials, describe_tuning, has_tuning

TASK_LABELS = {
    "mnli": "MNLI", "sst2": "SST-2", "mrpc": "MRPC", "cola": "CoLA", "qnli": "QNLI", "qqp": "QQP", "rte": "RTE",
    "stsb": "STS-B",
    "boolq": "BoolQ", "piqa": "PIQA", "siqa": "SIQA", "hellaswag": "Hella", "winogrande": "Wino", "arc_easy": "ARC-e",
    "arc_challenge": "ARC-c", "openbookqa": "OBQA",
}  # fmt: skip
IN_LABEL = ("ranks", "rank", "projections", "cut_to")
"""Parameters that a label says."""


def data(view: View) -> Plain:
    """Returns columns with their values over all configurations, best score first; and what all configurations share."""
    frame = view.configurations
    if frame.empty and len(view.trials):
        return {"empty": "The trials so far only tune: a configuration appears when its first reported trial starts."}
    if frame.empty:
        return {"empty": "This sweep has no configurations yet: the first appear when its first trial starts."}
    frame = frame.assign(_score=column(frame, "m.score")).sort_values("_score", ascending=False, na_position="last")
    by_id = view.summaries
    summaries = [by_id[identity] for identity in frame["id"]]
    differ = [name for name in parameters_that_differ(frame) if name not in ("r1", "r2", "r3")]
    differ += ["ranks"] if "p.ranks" in frame and frame["p.ranks"].nunique() > 1 else []
    marks = fronts(view)
    return {
        "columns": _columns(view, frame, summaries, differ),
        "id": frame["id"].tolist(),
        "label": frame["label"].astype(str).tolist(),
        "front": sorted(name for front in marks for name in front.members),
        "enough": [front.enough for front in marks if front.enough],
        "rule": "within {0.within:g} of the best with a probability of at least {0.sure:g}".format(view.sweeps[0].rule),
        "possible": sorted(name for front in marks for name in front.possible),
        "objectives": in_words(view.sweeps),
        "intervals": intervals_of(frame),
        "complete": (frame["state"] == "done").tolist(),
        "folder": [{sweep.name: sweep.folder for sweep in view.sweeps}[name] for name in frame["sweep"]],
        "commands": [commands_of(view, *row) for row in zip(frame["sweep"], summaries, strict=True)],
        "link": [
            view.link(*pair)
            for pair in zip(frame["experiment_id"], [summary.configuration for summary in summaries], strict=True)
        ],
        "shared": _shared(frame, differ),
    }


def _columns(view: View, frame: pd.DataFrame, summaries: Sequence[Summary], differ: Sequence[str]) -> list[Plain]:
    """Returns the columns: label and the metrics that the page always shows, then parameters, columns that a reader may add,
    and states."""
    objectives = {name for sweep in view.sweeps for name in sweep.objectives}
    worth = [metric for metric in _ordered(metrics_of(view)) if _worth_showing(metric, view, objectives)]
    metrics = [metric for metric in worth if _place(metric) in ("front", "page") or metric.name in objectives]
    columns: list[Plain] = [_text("label", "Configuration", frame["label"])]
    columns += [_text("sweep", "Sweep", frame["sweep"])] if len(view.names) > 1 else []
    columns += [_metric(metric, summaries) for metric in metrics]
    columns += [_text("protocol", "Protocol", frame["protocol"])] if frame["protocol"].nunique() > 1 else []
    columns += [_parameter(name, frame[f"p.{name}"]) for name in differ if name not in ("method", *IN_LABEL)]
    more = [_parameter(name, frame[f"p.{name}"]) for name in IN_LABEL if name in differ]
    more += [_metric(metric, summaries) for metric in worth if metric not in metrics]
    columns += [extra | {"more": True} for extra in more]
    columns += [_words("tuning", "Tuning", describe_tuning, summaries)] if has_tuning(summaries) else []
    columns += [_text("state", "State", frame["state"])] if frame["state"].nunique() > 1 else []
    trials = _words("trials", "Trials" if len(view.trials["task"].unique()) > 1 else "Seeds", describe_trials, summaries)
    return columns + ([trials] if len({*trials["values"]}) > 1 else [])


def _words(key: str, label: str, describe: Callable[[Summary], str], summaries: Sequence[Summary]) -> Plain:
    return {"key": key, "label": label, "kind": "text", "values": [describe(summary) for summary in summaries]}


def _text(key: str, label: str, values: pd.Series[Any]) -> Plain:
    return {"key": key, "label": label, "kind": "text", "values": [scalar(value) for value in values]}


def _parameter(name: str, series: pd.Series[Any]) -> Plain:
    values = [scalar(value) for value in series]
    is_number = all(value is None or isinstance(value, (int, float)) for value in values)
    return {"key": f"p.{name}", "label": name, "kind": "number" if is_number else "text", "values": values}


def _metric(metric: Column, summaries: Sequence[Summary]) -> Plain:
    """Returns a column with its cells as numbers and as text; score and tasks have labels of the page's own."""
    task = metric.name.removeprefix("score/")
    label = TASK_LABELS.get(task, task) if task != metric.name else "# Params" if metric.name == SIZE else heading(metric.label)
    row = replace(metric, interval=metric.interval and task == metric.name)
    plain: Plain = {"key": f"m.{row.name}", "label": label, "kind": row.kind, "better": row.best, "about": row.about}
    plain |= {"values": [number(row.value(summary)) for summary in summaries]}
    plain |= {"texts": [row.text(summary).strip("–") for summary in summaries]}
    if not row.interval:
        return plain
    ends = [summary.bounds(row.name) for summary in summaries]
    return plain | {"low": numbers(end.low for end in ends), "high": numbers(end.high for end in ends)}


def _place(metric: Column) -> str:
    return "front" if metric.name.startswith("score/") else metric.place


def _ordered(metrics: Sequence[Column]) -> list[Column]:
    """Returns the metrics in order: the score and its size, the tasks, what is known of the score, then the rest."""
    rank = {"score": 0, SIZE: 1}
    return sorted(metrics, key=lambda metric: 2 if "/" in metric.name else rank.get(metric.name, 3 + (metric.place != "front")))


def _worth_showing(metric: Column, view: View, objectives: Collection[str]) -> bool:
    if metric.name.startswith("tuning_"):  # they have a column in words
        return False
    if metric.name.startswith("score/"):  # with a single task its score is the score
        return len(view.tasks) > 1
    always = metric.name in ("score", SIZE, *objectives) or metric.kind == "probability"
    return always or column(view.configurations, f"m.{metric.name}").dropna().nunique() > 1


def _shared(frame: pd.DataFrame, differ: Sequence[str]) -> list[list[Any]]:
    lines: list[list[Any]] = []
    for name in ("method", "protocol"):
        if frame[name].nunique() == 1 and frame[name].iloc[0]:
            lines.append([name, str(frame[name].iloc[0])])
    for name in ("examples", "random_guessing"):
        if column(frame, f"m.{name}").nunique() == 1:
            lines.append([COLUMNS[name].label, amount(name, column(frame, f"m.{name}").max())])
    for name in map(str, frame.columns):
        if name.startswith("p.") and name.removeprefix("p.") not in (*differ, "method", "protocol"):
            values = {scalar(value) for value in frame[name]} - {None}
            if len(values) == 1:
                lines.append([name.removeprefix("p."), values.pop()])
    return lines


def draw(plain: Plain) -> Plain:
    """Returns the table as the page shows it: the data itself, which is already columns."""
    return {"table": plain}


PANEL = Panel(
    "table",
    "Configurations",
    "front",
    "Sort by a heading, filter by words, copy what is shown.",
    data,
    draw,
    wide=True,
)

"""The table of configurations: the columns in which they differ. What all of them share stands once above the table.

The page's script sorts, filters and copies the table (CSV, Markdown, LaTeX). Each column therefore says whether it is text or a
number, which way is better, and how its values are written.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from craft.words import format_duration
from dashboards.panels.base import (
    Panel,
    Plain,
    View,
    column,
    metrics_of,
    numbers,
    parameters_that_differ,
    scalar,
)
from dashboards.panels.verdicts import finished, in_words, shown_as_possible, taken, verdict
from orchestrator.results.metrics import Metric, amount, heading

TASK_LABELS = {
    "mnli": "MNLI", "sst2": "SST-2", "mrpc": "MRPC", "cola": "CoLA", "qnli": "QNLI", "qqp": "QQP", "rte": "RTE",
    "stsb": "STS-B",
    "boolq": "BoolQ", "piqa": "PIQA", "siqa": "SIQA", "hellaswag": "Hella", "winogrande": "Wino", "arc_easy": "ARC-e",
    "arc_challenge": "ARC-c", "openbookqa": "OBQA",
}  # fmt: skip
LABELS = {"trainable_parameters": "# Params"}
ALWAYS = {"score", "trainable_parameters", "p_front", "p_within_1"}
SHOWN = ALWAYS | {"examples", "peak_memory_bytes", "seconds"}
"""Metrics with a column from the beginning; the others come when they are asked for."""
IN_LABEL = ("ranks", "rank", "projections", "cut_to")
"""Parameters that a label says."""
TUNING = ("tuning_trials", "tuning_seconds")
TUNING_TRIALS, TUNING_SECONDS = (f"m.{name}" for name in TUNING)


def data(view: View) -> Plain:
    """Columns with their values over all configurations, best score first; and what all configurations share."""
    frame = view.configurations
    if frame.empty and len(view.trials):
        return {"empty": "The trials so far only tune: a configuration appears when its first reported trial starts."}
    if frame.empty:
        return {"empty": "This sweep has no configurations yet: the first appear when its first trial starts."}
    frame = frame.assign(_score=column(frame, "m.score")).sort_values("_score", ascending=False, na_position="last")
    differ = [name for name in parameters_that_differ(frame) if name not in ("r1", "r2", "r3")]
    differ += ["ranks"] if "p.ranks" in frame and frame["p.ranks"].nunique() > 1 else []
    metrics = metrics_of(view)
    objectives = {name for sweep in view.sweeps for name in sweep.objectives}
    worth = [metric for metric in _ordered(metrics) if metric.name not in TUNING]
    worth = [metric for metric in worth if metric.name in ALWAYS | objectives or _worth_showing(metric, frame)]
    shown = [metric for metric in worth if metric.kind in ("score", "chance") or metric.name in SHOWN | objectives]
    columns: list[Plain] = [_text("label", "Configuration", frame["label"]), *(_metric(metric, frame) for metric in shown)]
    if len(view.names) > 1:
        columns.insert(1, _text("sweep", "Sweep", frame["sweep"]))
    if frame["protocol"].nunique() > 1:
        columns.append(_text("protocol", "Protocol", frame["protocol"]))
    columns += [_parameter(name, frame[f"p.{name}"]) for name in differ if name not in ("method", *IN_LABEL)]
    more = [_parameter(name, frame[f"p.{name}"]) for name in IN_LABEL if name in differ]
    columns += [one | {"more": True} for one in (*more, *(_metric(metric, frame) for metric in worth if metric not in shown))]
    if column(frame, TUNING_TRIALS).gt(0).any():
        columns.append({"key": "tuning", "label": "Tuning", "kind": "text", "values": _tuning(frame)})
    if frame["state"].nunique() > 1:
        columns.append(_text("state", "State", frame["state"]))
    trials = [f"{finished}/{total}" for finished, total in zip(frame["finished"], frame["trials"], strict=True)]
    if len(set(trials)) > 1:
        columns.append(
            {
                "key": "trials",
                "label": "Trials" if len(view.trials["task"].unique()) > 1 else "Seeds",
                "kind": "text",
                "values": trials,
            }
        )
    verdicts = [(verdict(sweep, group), group) for sweep, group in finished(view)]
    return {
        "columns": columns,
        "id": frame["id"].tolist(),
        "label": frame["label"].astype(str).tolist(),
        "front": sorted(identity for found, _ in verdicts for identity in found.on_front),
        "enough": [name for _, group in verdicts for name in taken(group)],
        "possible": sorted(identity for found, _ in verdicts for identity in shown_as_possible(found)),
        "objectives": in_words(view.sweeps),
        "complete": (frame["state"] == "done").tolist(),
        "low": numbers(column(frame, "m.score_low")),
        "high": numbers(column(frame, "m.score_high")),
        "run": frame["run_id"].tolist(),
        "link": [view.link(*pair) for pair in zip(frame["experiment_id"], frame["run_id"], strict=True)],
        "shared": _shared(frame, differ),
    }


def _tuning(frame: pd.DataFrame) -> list[str]:
    """What each configuration's tuning took, in words; empty while it is not known."""
    spent = zip(frame["tuned_to"], column(frame, TUNING_TRIALS), column(frame, TUNING_SECONDS), strict=True)
    took = [
        (to, f"{trials:.0f} trials", format_duration(seconds)) if trials > 0 else (to or "not tuned",) if trials == 0 else ()
        for to, trials, seconds in spent
    ]
    return [", ".join(filter(None, words)) for words in took]


def _text(key: str, label: str, values: pd.Series[Any]) -> Plain:
    return {"key": key, "label": label, "kind": "text", "values": [scalar(value) for value in values]}


def _parameter(name: str, series: pd.Series[Any]) -> Plain:
    values = [scalar(value) for value in series]
    is_number = all(value is None or isinstance(value, (int, float)) for value in values)
    return {"key": f"p.{name}", "label": name, "kind": "number" if is_number else "text", "values": values}


def _metric(metric: Metric, frame: pd.DataFrame) -> Plain:
    task = metric.name.removeprefix("score/") if metric.name.startswith("score/") else None
    label = TASK_LABELS.get(task, task) if task else LABELS.get(metric.name) or heading(metric.label)
    values = numbers(column(frame, f"m.{metric.name}"))
    better = None if metric.kind == "chance" or metric.name == "examples" else metric.better
    return {"key": f"m.{metric.name}", "label": label, "kind": metric.kind, "better": better, "values": values}


def _ordered(metrics: list[Metric]) -> list[Metric]:
    """The score and its size, the tasks, what is known of the score, then the rest."""
    rank = {"score": 0, "trainable_parameters": 1, "normalized": 3, "p_front": 3, "p_within_1": 3, "examples": 3}
    return sorted(metrics, key=lambda metric: 2 if metric.name.startswith("score/") else rank.get(metric.name, 4))


def _worth_showing(metric: Metric, frame: pd.DataFrame) -> bool:
    values = column(frame, f"m.{metric.name}").dropna()
    # with a single task its score is the score
    if metric.name.startswith("score/"):
        return sum(str(name).startswith("m.score/") for name in frame.columns) > 1
    return values.nunique() > 1


def _shared(frame: pd.DataFrame, differ: list[str]) -> list[list[Any]]:
    lines: list[list[Any]] = []
    for key, label in (("method", "method"), ("protocol", "protocol")):
        if frame[key].nunique() == 1 and frame[key].iloc[0]:
            lines.append([label, str(frame[key].iloc[0])])
    for name in ("examples", "chance"):
        if column(frame, f"m.{name}").nunique() == 1:
            lines.append([name, amount(name, column(frame, f"m.{name}").max())])
    for name in map(str, frame.columns):
        if name.startswith("p.") and name.removeprefix("p.") not in (*differ, "method", "protocol"):
            values = {scalar(value) for value in frame[name]} - {None}
            if len(values) == 1:
                lines.append([name.removeprefix("p."), values.pop()])
    return lines


def draw(plain: Plain) -> Plain:
    """The table as the page shows it: the data itself, which is already columns."""
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

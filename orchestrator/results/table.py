"""The table of a sweep's configurations: its columns, and a cell of each configuration in each.

The renderers of `orchestrator.review.front_tables` (terminal, CSV, Markdown, LaTeX) and the page's table choose among the
columns of `orchestrator.results.metrics`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from craft.words import format_duration
from orchestrator.results.metrics import COLUMNS, SIZE, Column, column_of, flat_cells, label_of
from orchestrator.results.metrics import full_label as full_label
from orchestrator.results.summary import Summary, shared_metric
from orchestrator.sweepfile.settings import Direction, Objectives


def metric_column(name: str, label: str = "", metric: str = "", ends: bool = True) -> Column:
    """Returns the column of a metric, of a count or of a task's score (`score/TASK`).

    Args:
        ends: whether cells have the intervals of values that have one.
    """
    column = column_of(name)
    return replace(column, label=label or label_of(name, metric), interval=column.interval and ends)


def _in_words(name: str, label: str, read: Callable[[Summary], str]) -> Column:
    return Column(name, label, kind="text", read=read)


def front_columns(summaries: Sequence[Summary], objectives: Objectives, tasks: Sequence[str] = ()) -> list[Column]:
    """Returns the columns of the tables for people; those of `tasks` have no intervals."""
    metric, unit = metric_among(summaries), next((summary.unit for summary in summaries), "")
    return [
        _in_words("mark", "", lambda summary: ("●" if summary.on_front else "") + ("✓" if summary.enough else "")),
        _in_words("configuration", "configuration", full_label),
        *(metric_column(name, unit if name == SIZE else "", metric) for name in front_metrics(summaries, objectives)),
        *(metric_column(f"score/{task}", short_task(task), ends=False) for task in tasks),
        _in_words("trials", "trials" if len(tasks_of(summaries)) > 1 else "seeds", describe_trials),
        *([_in_words("tuning", "tuning", describe_tuning)] if has_tuning(summaries) else []),
    ]


def front_metrics(summaries: Sequence[Summary], objectives: Objectives) -> list[str]:
    """Returns the metrics that tables show: the objectives, and next to the score those with the place `front` that have a
    value. The number of examples is left out where it is the same for all."""
    available = {name for summary in summaries for name in flat_cells(summary)} - {*objectives}
    if len({summary.value("examples") for summary in summaries if summary.complete}) == 1:
        available.discard("examples")
    beside = [name for name, column in COLUMNS.items() if column.place == "front" and name in available]
    return [name for objective in objectives for name in (objective, *(beside if objective == "score" else ()))]


def ranked(summaries: Sequence[Summary], objectives: Objectives) -> list[Summary]:
    """Sorts the rows: complete before incomplete; then by the last objective (the cost), better first; then by the first."""
    names = list(objectives.items())[::-1]

    def place(summary: Summary) -> tuple[Any, ...]:
        return (not summary.complete, *(_worse(summary.value(name), direction) for name, direction in names), summary.label)

    return sorted(summaries, key=place)


def _worse(value: float, direction: Direction) -> float:
    return math.inf if math.isnan(value) else -value if direction == "maximize" else value


def metric_among(summaries: Sequence[Summary]) -> str:
    """Returns the metric that the scores are, if it is the same in all configurations that have one."""
    return shared_metric(summary.metric for summary in summaries if summary.score.n)


def describe_trials(summary: Summary) -> str:
    """Counts the trials by which it is judged, and those that do not count: `3/3`, `1/1, 1 to come`, or `2/3, 1 failed` with
    the first reason; `1/1, only tunes` for a candidate."""
    parts = [f"{summary.finished}/{summary.planned}", *(["only tunes"] if summary.tunes else [])]
    counts = ((summary.failed, "failed"), (summary.stopped, "stopped"), (summary.to_come, "to come"))
    parts += [f"{count} {word}" for count, word in counts if count]
    text = ", ".join(parts)
    if summary.reasons:
        reason = summary.reasons[0].splitlines()[0]
        text += f": {reason[:57]}…" if len(reason) > 58 else f": {reason}"
    return text


def has_tuning(summaries: Sequence[Summary]) -> bool:
    """Returns whether the sweep tuned anything, so that each configuration shows the cost of its tuning."""
    return any(summary.tuning is not None and summary.tuning.tuned for summary in summaries)


def describe_tuning(summary: Summary) -> str:
    """Says what a configuration's tuning chose and took, and which of its numbers are the ends of those tried: `learning_rate
    0.1/0.01, 9 trials, 12 min 03 s, highest learning_rate on rte`; `not tuned`; a dash for one that was cut from another."""
    spent = summary.tuning
    if spent is None:
        return "–"
    if not spent.tuned:
        return "not tuned"
    failed = f" ({spent.failed} failed)" if spent.failed else ""
    took = [f"{spent.trials} trials{failed}", format_duration(spent.seconds), *spent.at_end] if spent.trials else []
    return ", ".join([spent.choice, *took] if spent.choice else took)


def tasks_of(summaries: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(task for summary in summaries for task in summary.tasks))


def short_task(task: str) -> str:
    return task.rsplit("/", 1)[-1]

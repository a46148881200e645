"""The table of a sweep's configurations: its columns, and a cell of each configuration in each.

A column has a kind, digits, a better direction and a function that reads its cell from a summary. The renderers of
`orchestrator.review.front_tables` (terminal, CSV, Markdown, LaTeX) and the page's table choose among these columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from craft.methods import METHODS
from craft.methods.whole import BASE_MODEL
from craft.words import format_duration
from orchestrator.results.intervals import Interval, spread
from orchestrator.results.metrics import METRICS, Kind, amount, label_of, metric_of
from orchestrator.results.summary import Summary, shared_metric
from orchestrator.sweepfile.objectives import Direction, Objectives

Cell = Interval | float | str
"""A value with an interval, an exact value, or text; NaN if there is no value."""


@dataclass(frozen=True)
class Column:
    """A column. `key` is its metric's name, or a name of its own where it holds text."""

    key: str
    label: str
    read: Callable[[Summary], Cell]
    kind: Kind = "text"
    better: Direction | None = None
    digits: int | None = None

    def value(self, summary: Summary) -> float:
        """Returns the cell's number without its interval; NaN for text."""
        cell = self.read(summary)
        return math.nan if isinstance(cell, str) else cell.mean if isinstance(cell, Interval) else cell

    def parts(self, summary: Summary) -> tuple[str, str]:
        """Returns the cell as text: its value, and its interval if it has one."""
        cell = self.read(summary)
        if isinstance(cell, str):
            return cell, ""
        if isinstance(cell, Interval):
            return amount(self.key, cell.mean), spread(cell, 2 if self.digits is None else self.digits)
        return amount(self.key, cell), ""

    def text(self, summary: Summary) -> str:
        return "".join(self.parts(summary))


def metric_column(name: str, label: str = "", metric: str = "", ends: bool = True) -> Column:
    """Returns the column of a metric, of a count or of a task's score (`score/TASK`).

    Args:
        label: its heading; that of the metric if empty.
        metric: what the score is, on all tasks.
        ends: whether cells have the intervals of values that have one.
    """
    row = metric_of(name)

    def read(summary: Summary) -> Cell:
        return summary.bounds(name) if ends and name not in summary.counts else summary.value(name)

    better = None if row.kind == "chance" or name == "examples" else row.better
    return Column(name, label or label_of(name, metric), read, row.kind, better, row.decimals)


def front_columns(summaries: Sequence[Summary], objectives: Objectives, tasks: Sequence[str] = ()) -> list[Column]:
    """Returns the columns of the tables for people; those of `tasks` have no intervals."""
    metric = metric_among(summaries)
    return [
        Column("mark", "", lambda summary: ("●" if summary.on_front else "") + ("✓" if summary.enough else "")),
        Column("configuration", "configuration", full_label),
        *(metric_column(name, metric=metric) for name in front_metrics(summaries, objectives)),
        *(metric_column(f"score/{task}", short_task(task), ends=False) for task in tasks),
        Column("trials", "trials" if len(tasks_of(summaries)) > 1 else "seeds", describe_trials),
        *([Column("tuning", "tuning", describe_tuning)] if has_tuning(summaries) else []),
    ]


def front_metrics(summaries: Sequence[Summary], objectives: Objectives) -> list[str]:
    """Returns the metrics that tables show: the objectives, and next to the score those with the place `front` that have a
    value. The number of examples is left out where it is the same for all."""
    available = {name for summary in summaries for name in (*summary.metrics, *summary.counts)} - {*objectives}
    if len({summary.value("examples") for summary in summaries if summary.complete}) == 1:
        available.discard("examples")
    beside = [name for name, row in METRICS.items() if row.place == "front" and name in available]
    return [shown for name in objectives for shown in (name, *(beside if name == "score" else ()))]


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


def full_label(summary: Summary) -> str:
    """Returns the configuration's label, with the method in front unless the label begins with its name or title."""
    row = METHODS.get(summary.method)
    names = (summary.method, row.title if row else summary.method, BASE_MODEL)
    begins = summary.label.lower().startswith(tuple(name.lower() for name in names))
    return summary.label if begins else f"{summary.method} {summary.label}"


def describe_trials(summary: Summary) -> str:
    """Counts the trials: `3/3`, or `2/3, 1 failed` with the first reason; `1/1, only tunes` for a candidate."""
    parts = [f"{summary.finished}/{summary.planned}", *(["only tunes"] if summary.tunes else [])]
    parts += [f"{count} {word}" for count, word in ((summary.failed, "failed"), (summary.stopped, "stopped")) if count]
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

"""What every panel is made of: the view it reads, the spec it draws, and words, colours and metrics they share.

A panel is a pure function from a `View` (rows of the chosen sweeps) to a spec of plain data, which the page's script can show,
in the live page and in the exported file:

    {"choices": [...], "values": {...}, "figure": {"data": [...], "layout": {...}}, "note": "..."}     a plotly figure
    {"table": {"columns": [...], "rows": [...]}}                                                       a table
    {"pairs": {...}}                                       two pinned configurations (table.py)
    {"empty": "why there is nothing to show"}                          one line; with "hidden": True nothing at all

`note` is one line under the figure, and `help` what the panel's "?" opens.

A choice is a selection box. Wherever the figure has `{"$": "x/{x}/0"}`, the script puts `values["x/<what choice x says>/0"]`
(`"pick": key` takes only the entries whose indices lie under that key), so changing an axis needs no server.
Points carry configuration ids as `customdata`; through these the script links selections, tooltips and the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from craft.results import name_score
from craft.scoring.predictions import Prediction
from craft.words import points
from dashboards.frames import Frames, Row, TrialRow
from orchestrator.results.answer import REASONS
from orchestrator.results.metrics import COLUMNS, SIZE, Column, column_of, label_of, titled, unit_of
from orchestrator.results.summary import shared_metric
from orchestrator.tools.markup import shorten

Plain = dict[str, Any]
Answers = Callable[[TrialRow], dict[str, list[Prediction]]]

WAYS = {"maximize": "more is better", "minimize": "less is better"}
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "pentagon", "hexagon")


@dataclass(frozen=True, eq=False)
class View:
    """The sweeps a page shows. `configurations` and `trials` are those of all sweeps, with ids made unique across sweeps.

    `link` says where MLflow shows a run (None where unknown); `uri` names the tracking store in commands, empty where they need
    not or may not name it.
    """

    sweeps: Sequence[Frames]
    link: Callable[[str, str], str | None] = lambda experiment_id, key: None
    predictions: Answers = lambda trial: {}
    uri: str = ""

    def prefix(self, number: int) -> str:
        """Returns what stands in front of the ids of a sweep's configurations."""
        return f"{number}/" if len(self.sweeps) > 1 else ""

    @cached_property
    def configurations(self) -> list[Row]:
        return [row for number, sweep in enumerate(self.sweeps) for row in sweep.rows(self.prefix(number))]

    @cached_property
    def trials(self) -> list[TrialRow]:
        return [row for number, sweep in enumerate(self.sweeps) for row in sweep.trials(self.prefix(number))]

    @property
    def names(self) -> list[str]:
        return [sweep.name for sweep in self.sweeps]

    @property
    def tasks(self) -> list[str]:
        tasks = {task for row in self.configurations for task in row.summary.tasks}
        return sorted(task for task in tasks if values_of(self.configurations, f"score/{task}"))

    @property
    def objectives(self) -> str:
        """The objectives of the sweeps in words, once where several sweeps share them."""
        names = [[f"{titled(name)} ({WAYS[way]})" for name, way in sweep.objectives.items()] for sweep in self.sweeps]
        return "; ".join(dict.fromkeys(map(", ".join, names)))

    def recommended(self) -> Iterator[tuple[Row, str]]:
        """Yields the configuration that each sweep's answer recommends, and the reason in words."""
        for row in self.configurations:
            reply = row.sweep.answer
            if reply is not None and reply.kind in REASONS and reply.configuration == row.summary.configuration:
                yield row, REASONS[reply.kind].format(within=points(reply.within))


@dataclass(frozen=True)
class Panel:
    """A row of PANELS. `section` groups panels on the page; `about` is a sentence on what the panel shows."""

    name: str
    title: str
    section: str
    about: str
    draw: Callable[[View], Plain]
    wide: bool = False


def metrics_of(view: View) -> list[Column]:
    """Returns the metrics for which some configuration has a value: the score, the size, every task's score, the rest of
    COLUMNS, and other objectives.

    The direction of an objective is that of the first sweep that has it.
    """
    ways = {name: way for sweep in reversed(view.sweeps) for name, way in sweep.objectives.items()}
    score = replace(COLUMNS["score"], label=label_of("score", score_metric(view)))
    tasks = [replace(column_of(f"score/{task}"), place="front") for task in view.tasks]
    rows = [row for row in COLUMNS.values() if row.is_number and row.place not in ("objective", "record")]
    rest = [row for row in rows if row.name not in ("score", SIZE)] + [column_of(name) for name in ways if name not in COLUMNS]
    every = [score, COLUMNS[SIZE], *tasks, *rest]
    measured = [metric for metric in every if values_of(view.configurations, metric.name)]
    return [replace(metric, better=ways.get(metric.name, metric.better)) for metric in measured]


def score_metric(view: View) -> str:
    """Returns the metric of all trials' scores; empty if they differ."""
    return shared_metric(name_score(trial.facts) for trial in view.trials if trial.entry.status == "finished")


def column(rows: Iterable[Row], name: str) -> list[float]:
    """Returns a number of each configuration; NaN where it has none."""
    return [row.value(name) for row in rows]


def values_of(rows: Iterable[Row], name: str) -> set[float]:
    return {value for value in column(rows, name) if not math.isnan(value)}


def best_first(rows: Iterable[Row]) -> list[Row]:
    """Sorts configurations by their scores; those without one come last."""
    return sorted(rows, key=lambda row: math.inf if math.isnan(score := row.value("score")) else -score)


def done(rows: Iterable[Row]) -> list[Row]:
    """Returns the complete configurations. Fronts and importances use no others."""
    return [row for row in rows if row.summary.complete and not math.isnan(row.value("score"))]


def trained(rows: Iterable[Row]) -> list[Row]:
    """Returns those of `done` that were trained: a cut says nothing about how its settings train."""
    return [row for row in done(rows) if "cut_to" not in row.parameters]


def text(value: object, limit: int = 80) -> str:
    """Returns a name as plotly text: its own small markup is switched off and very long names are cut."""
    text = str(value)
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


def texts(names: Sequence[Any], limit: int) -> list[str]:
    """Returns names as plotly text; long ones are cut where different ones stay different."""
    return [text(name, limit=10_000) for name in shorten([*map(str, names)], limit)]


def number(value: Any) -> float | int | None:
    """Returns a number for JSON: six significant digits are enough for a plot, NaN and infinities become null."""
    if value is None or isinstance(value, str):
        return None
    value = float(value)
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.6g}")


def numbers(values: Iterable[Any]) -> list[float | int | None]:
    return [number(value) for value in values]


def scalar(value: Any) -> Any:
    """Returns a parameter's value for JSON: numbers stay numbers, missing becomes None, everything else its text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return None if value is None else str(value)


def parameter(rows: Iterable[Row], name: str) -> list[Any]:
    return [scalar(row.parameters.get(name)) for row in rows]


def parameters_that_differ(rows: Sequence[Row]) -> list[str]:
    """Returns the names of the parameters that take more than one value among the configurations that have them.

    `ranks` is left out where r1, r2 and r3 hold the same numbers. So are `warm_start` and `cut_from`: they name a run.
    """
    names = dict.fromkeys(name for row in rows for name in row.parameters)
    left_out = {"warm_start", "cut_from"} | ({"ranks"} if {"r1", "r2", "r3"} <= names.keys() else set())
    return [name for name in names if name not in left_out and len({*parameter(rows, name)} - {None}) > 1]


def moving_together(rows: Sequence[Row]) -> dict[str, str]:
    """Returns the parameters that differ, by name; those that always change together are under the first one's name.

    The values are what to call them: `r2, r3` where the two ranks are always equal. No data can tell their effects apart.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in parameters_that_differ(rows):
        if name != "method":
            values = parameter(rows, name)
            groups.setdefault(tuple(values.index(value) for value in values), []).append(name)
    return {names[0]: ", ".join(names) for names in groups.values()}


def score_axis(label: str, values: Iterable[float | None]) -> Plain:
    """Returns an axis of these scores, which ends at 100 unless one is above that."""
    axis = {"title": {"text": text(label)}, "type": "linear"}
    return axis if any(value is not None and value > 100 for value in values) else axis | {"maxallowed": 100}


def focus_trace(colour: str) -> Plain:
    """Returns the trace in which the page draws again the lines of the configurations that are selected or in focus."""
    style = {"connectgaps": False, "hoverinfo": "skip", "showlegend": False, "line": {"color": colour, "width": 2.6}}
    return {"type": "scatter", "mode": "lines", "name": "selected", "x": [], "y": [], **style}


def axis_of(metric: Column, values: Iterable[float | None]) -> tuple[float, Plain]:
    """Returns the unit of an axis that shows `values`, by which they are divided, and the axis."""
    if metric.kind == "score":
        return 1, score_axis(metric.label, values)
    factor, unit = unit_of(metric.name, values)
    return factor, {"title": {"text": text(titled(metric.name, unit))}, "type": "log" if metric.log else "linear"}


def plain_table(heads: Iterable[tuple[str, Any]], rows: Sequence[Sequence[Any]]) -> Plain:
    """Returns a table without tools: `heads` are pairs of a column's label and kind, `rows` have a cell for each."""
    columns = []
    for place, (label, kind) in enumerate(heads):
        values, write = [row[place] for row in rows], Column(label, label, kind=kind).write
        texts = [value if isinstance(value, str) else "" if value is None else write(value) for value in values]
        columns.append({"key": f"c{place}", "label": label, "kind": kind, "values": values, "texts": texts})
    return {"table": {"columns": columns, "id": [str(row) for row in range(len(rows))], "plain": True}}


def choice(name: str, label: str, options: Iterable[str] | Mapping[str, str], value: str | None = None) -> Plain:
    """Returns a selection box: values with the texts shown for them; the first is chosen unless `value` names another."""
    labels = dict(options) if isinstance(options, Mapping) else {option: option for option in options}
    choices = [{"value": option, "label": word} for option, word in labels.items()]
    return {"name": name, "label": label, "value": choices[0]["value"] if value is None else value, "options": choices}

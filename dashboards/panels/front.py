"""The front: what each configuration scores against what it costs, any two metrics against each other.

Points are finished configurations. The step line joins those on the front; bars are their intervals; rings mark
those that may be on it; crosses have a value so far and are on no front; stars are the literature's rows. The first axes are
the sweep's objectives, and there the line is the sweep's front.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from dashboards.frames import Frames, Row
from dashboards.panels.base import Plain, View, column, done, intervals_of, metrics_of, number, numbers, values_of
from dashboards.panels.front_figure import STATES
from dashboards.panels.literature import published
from orchestrator.results.front import axes, judge
from orchestrator.results.metrics import Column


def data(view: View) -> Plain:
    """Returns the values of every metric over finished configurations, the front of each pair of metrics, and what is not
    drawn."""
    ready = done(view.configurations)
    partial = [row for row in view.configurations if row.state in ("partial", "waiting", "incomplete")]
    states = Counter(row.state for row in view.configurations)
    counts = {state: states[state] for state in STATES}
    if not ready and not partial:
        return {"empty": _why_empty(counts)}
    metrics = metrics_of(view)
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
        "values": {metric.name: numbers(column(ready, metric.name)) for metric in metrics},
        "bars": intervals_of(ready),
        "intervals": {metric.name: _interval(ready, metric.name) for metric in metrics},
        "fronts": lines,
        "possible": possible,
        "partial": {
            "id": [row.id for row in partial],
            "method": [row.method for row in partial],
            "values": {metric.name: numbers(column(partial, metric.name)) for metric in metrics},
        },
        "counts": counts,
        "answers": _recommended(view),
        "scored": _scored(ready),
        "guessing": number(*levels) if len(levels) == 1 else None,
        "objectives": view.objectives,
        "published": published(view, metrics),
    }


def _fronts(view: View, ready: list[Row], metrics: list[Column]) -> tuple[Plain, Plain]:
    """Returns positions among the finished ones for each two metrics x and y, in ascending order of x.

    Returns:
        `{x: {y: [front of each sweep, ...]}}`, and `{x: {y: [those that may be on the front of their sweep]}}`.
    """
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
    members = judge([row.id for row in rows], np.column_stack([column(rows, name) for name in objectives]), objectives).on_front
    return [row for row in rows if row.id in members]


def _why_empty(counts: dict[str, int]) -> str:
    if not sum(counts.values()):
        return "This sweep has no configurations yet: the first appear when its first trial starts."
    ended = [f"{count} {state}" for state, count in counts.items() if count and state not in ("running", "waiting")]
    return f"No configuration has a score yet ({', '.join(ended)})." if ended else "No configuration has a score yet."


def _scored(ready: list[Row]) -> str:
    """Returns the sentence on seeds and examples that the terminal has under its table."""
    seeds, examples, guessing = (values_of(ready, name) for name in ("seeds", "examples", "random_guessing"))
    parts = ["One seed."] if seeds and max(seeds) == 1 else []
    if len(examples) == 1:
        at = f", where random guessing has {max(guessing):.1f}" if len(guessing) == 1 else ""
        parts.append(f"Scored on {max(examples):,.0f} examples{at}.")
    return " ".join(parts)


def _interval(rows: list[Row], name: str) -> list[list[float | int | None]] | None:
    """Returns how far the interval reaches above and below the value, for metrics that have an interval."""
    if not (values_of(rows, f"{name}_low") and values_of(rows, f"{name}_high")):
        return None
    ends = [(row.value(name), row.value(f"{name}_low"), row.value(f"{name}_high")) for row in rows]
    return [numbers(high - value for value, _, high in ends), numbers(value - low for value, low, _ in ends)]


def _recommended(view: View) -> list[list[str]]:
    """Returns the id of the configuration that each sweep's answer recommends, and the reason in words."""
    several = len(view.sweeps) > 1
    return [
        [row.id, reason[0].upper() + reason[1:] + (f" ({row.sweep.name})" if several else "")]
        for row, reason in view.recommended()
    ]

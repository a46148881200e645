"""The front: what each configuration scores against what it costs, any two metrics against each other.

Points are finished configurations. The step line joins those on the front; bars are their intervals; rings mark
those that may be on it; crosses have a value so far and are on no front; stars are the literature's rows. The first axes are
the sweep's objectives, and there the line is the sweep's front.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboards.panels.base import Panel, Plain, View, column, done, intervals_of, metrics_of, number, numbers
from dashboards.panels.front_figure import draw
from dashboards.panels.literature import published
from dashboards.panels.verdicts import finished, front_over, fronts, in_words
from orchestrator.judging.front import axes
from orchestrator.results.metrics import Column

STATES = ("done", "partial", "waiting", "incomplete", "running", "failed", "stopped", "interrupted", "infeasible")
OF_METRIC = ("name", "label", "better", "kind", "digits")


def data(view: View) -> Plain:
    """Returns the values of every metric over finished configurations, the front of each pair of metrics, and what is not
    drawn."""
    frame = view.configurations
    ready, partial = done(frame), frame[frame["state"].isin(("partial", "waiting", "incomplete"))]
    states = frame["state"].value_counts()
    counts = {state: int(states.get(state, 0)) for state in STATES}
    if ready.empty and partial.empty:
        return {"empty": _why_empty(counts)}
    metrics = metrics_of(view)
    lines, possible = _fronts(view, metrics)
    x, y = axes(view.sweeps[0].objectives)
    return {
        "metrics": [{name: getattr(metric, name) for name in OF_METRIC} for metric in metrics],
        "axes": [x, y],
        "sweeps": view.names,
        "id": ready["id"].tolist(),
        "label": ready["label"].astype(str).tolist(),
        "method": ready["method"].astype(str).tolist(),
        "sweep": [view.names.index(name) for name in ready["sweep"]],
        "values": {metric.name: numbers(column(ready, f"m.{metric.name}")) for metric in metrics},
        "bars": intervals_of(ready),
        "intervals": {metric.name: _interval(ready, metric) for metric in metrics},
        "fronts": lines,
        "possible": possible,
        "partial": {
            "id": partial["id"].tolist(),
            "method": partial["method"].astype(str).tolist(),
            "values": {metric.name: numbers(column(partial, f"m.{metric.name}")) for metric in metrics},
        },
        "counts": counts,
        "answers": _recommended(view),
        "scored": _scored(ready),
        "guessing": number(levels[0]) if len(levels := column(ready, "m.random_guessing").unique()) == 1 else None,
        "objectives": in_words(view.sweeps),
        "published": published(view, metrics),
    }


def _fronts(view: View, metrics: list[Column]) -> tuple[Plain, Plain]:
    """Returns positions among the finished ones for each two metrics x and y, in ascending order of x.

    Returns:
        `{x: {y: [front of each sweep, ...]}}`, and `{x: {y: [those that may be on the front of their sweep]}}`.
    """
    ready = done(view.configurations)
    places = {identity: place for place, identity in enumerate(ready["id"])}
    values = {metric.name: column(ready, f"m.{metric.name}").to_numpy() for metric in metrics}
    groups = list(zip(finished(view), fronts(view), strict=True))
    lines: Plain = {metric.name: {} for metric in metrics}
    possible: Plain = {metric.name: {} for metric in metrics}
    for number_x, x in enumerate(metrics):
        for y in metrics[number_x + 1 :]:
            pair = [front_over(sweep, front, ready_, x, y) for (sweep, ready_), front in groups]
            open_ = [places[name] for front in pair for name in sorted(front.possible)]
            members = [np.array(sorted(map(places.__getitem__, front.members)), dtype=int) for front in pair]
            for a, b in ((x.name, y.name), (y.name, x.name)):
                lines[a][b] = [line[np.argsort(values[a][line], kind="stable")].tolist() for line in members]
                possible[a][b] = open_
    return lines, possible


def _why_empty(counts: dict[str, int]) -> str:
    if not sum(counts.values()):
        return "This sweep has no configurations yet: the first appear when its first trial starts."
    ended = [f"{count} {state}" for state, count in counts.items() if count and state not in ("running", "waiting")]
    return f"No configuration has a score yet ({', '.join(ended)})." if ended else "No configuration has a score yet."


def _scored(ready: Any) -> str:
    """Returns the sentence on seeds and examples that the terminal has under its table."""
    seeds, examples, guessing = (column(ready, f"m.{name}") for name in ("seeds", "examples", "random_guessing"))
    parts = ["One seed."] if seeds.max() == 1 else []
    if examples.nunique() == 1:
        at = f", where random guessing has {guessing.max():.1f}" if guessing.nunique() == 1 else ""
        parts.append(f"Scored on {examples.max():,.0f} examples{at}.")
    return " ".join(parts)


def _interval(frame: Any, metric: Column) -> list[list[float | int | None]] | None:
    """Returns how far the interval reaches above and below the value, for metrics that have an interval."""
    low, high = f"m.{metric.name}_low", f"m.{metric.name}_high"
    if low not in frame or high not in frame:
        return None
    value = column(frame, f"m.{metric.name}")
    return [numbers(column(frame, high) - value), numbers(value - column(frame, low))]


def _recommended(view: View) -> list[list[str]]:
    """Returns the id of the configuration that each sweep's answer recommends, and the reason in words."""
    several = len(view.sweeps) > 1
    return [
        [front.answer, front.reason[0].upper() + front.reason[1:] + (f" ({sweep.name})" if several else "")]
        for sweep, front in zip(view.sweeps, fronts(view), strict=True)
        if front.answer
    ]


PANEL = Panel(
    "front",
    "Front",
    "front",
    "The best score at each size. Drag to select, click a point for its run.",
    data,
    draw,
    wide=True,
)

"""Every number of a configuration: a row of METRICS says its name, direction, kind and place, and `amount` writes it.

A new metric is one row here; what a score may be is a row of `craft.tasks.metrics`.
`dashboards/static/copy.js` writes amounts by the same rules in the browser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from craft.tasks.metrics import METRICS as SCORES
from craft.words import format_bytes, format_duration
from orchestrator.sweepfile.objectives import Direction

Kind = Literal["score", "count", "bytes", "seconds", "share", "chance", "number", "text"]
Place = Literal["front", "page", "menu", "objective"]

P_FRONT, P_ENOUGH, EXPECTED, LUCK = "p_front", "p_enough", "expected", "example_luck"
NORMALIZED, SIZE = "normalized", "trainable_parameters"


@dataclass(frozen=True)
class Metric:
    """A number of a configuration.

    Attributes:
        better: its better direction.
        digits: the number of digits behind the point, for numbers that are not written by their kind alone.
        place: `front` has a column in every table; `page` has one on the page; `menu` has one there that a reader may add;
            `objective` has one only where it is an objective.
        averaged: whether it differs by chance from trial to trial. Then a configuration has the mean of its trials' counts,
            else the largest.
    """

    name: str
    label: str
    better: Direction
    kind: Kind = "number"
    digits: int | None = None
    place: Place = "menu"
    averaged: bool = False

    @property
    def log(self) -> bool:
        """Whether an axis of it is better read in powers of ten."""
        return self.kind == "bytes" or self.name.endswith("_parameters")

    @property
    def decimals(self) -> int | None:
        """The digits behind its point; None where they depend on the value."""
        return 2 if self.digits is None and self.kind in ("score", "chance") else self.digits


METRICS = {
    row.name: row
    for row in (
        Metric("score", "score", "maximize", "score", place="front"),
        Metric("chance", "chance", "maximize", "score", place="objective"),
        Metric(NORMALIZED, "normalized", "maximize", "score", digits=1, place="front"),
        Metric("examples", "examples", "maximize", "count", place="front"),
        Metric(P_FRONT, "P(front)", "maximize", "chance", place="front"),
        Metric(P_ENOUGH, "P(enough)", "maximize", "chance", place="front"),
        Metric(EXPECTED, "expected", "maximize", "score", place="page"),
        Metric(LUCK, "luck of the examples", "minimize"),
        Metric(SIZE, "parameters", "minimize", "count", place="page"),
        Metric("adapter_bytes", "adapter size", "minimize", "bytes"),
        Metric("peak_memory_bytes", "peak memory", "minimize", "bytes", place="page"),
        Metric("step_seconds", "step time", "minimize", "seconds", averaged=True),
        Metric("seconds", "training time", "minimize", "seconds", place="page", averaged=True),
        Metric("head_parameters", "head parameters", "minimize", "count"),
        Metric("total_parameters", "total parameters", "minimize", "count"),
        Metric("optimizer_bytes", "optimizer state", "minimize", "bytes"),
        Metric("tokens_per_second", "tokens per second", "maximize", averaged=True),
        Metric("tuning_trials", "trials of its tuning", "minimize", "count"),
        Metric("tuning_seconds", "time of its tuning", "minimize", "seconds"),
        Metric("energy_kept", "energy of the weights kept", "maximize", "share"),
        Metric("forgetting", "forgetting (nats a token)", "minimize", digits=4),
    )
}
UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "bytes": ((1, "bytes"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB")),
    "seconds": ((1e-3, "ms"), (1, "s"), (60, "min"), (3600, "h")),
    "share": ((0.01, "%"),),
}


def metric_of(name: str) -> Metric:
    """Returns the row of METRICS, or makes one for a task's score (`score/TASK`) or a name that METRICS does not have."""
    if name in METRICS:
        return METRICS[name]
    if name.startswith("score/"):
        return Metric(name, f"score on {name.removeprefix('score/')}", "maximize", "score")
    return Metric(name, name.replace("_", " "), "minimize", "bytes" if name.endswith("_bytes") else "number")


def amount(name: str, value: float) -> str:
    """Writes a metric's value for people: `86.67`, `9,216`, `805.1 MiB`, `7 min 31 s`, `13 %`."""
    metric = metric_of(name)
    if math.isnan(value):
        return "–"
    if metric.decimals is not None:
        return number(value, metric.decimals)
    if metric.kind == "bytes":
        return format_bytes(value)
    if metric.kind == "seconds":
        return format_duration(value) if value >= 10 else f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
    if metric.kind == "share":
        return f"{100 * value:.3g} %" if value < 0.1 else f"{100 * value:.0f} %"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def number(value: float, digits: int = 2) -> str:
    """Writes a value with so many digits behind the point; a dash for NaN."""
    return "–" if math.isnan(value) else f"{round(value, digits) + 0:.{digits}f}"  # + 0: no -0.00


def points(value: float) -> str:
    """Writes a difference of scores: `1 point`, `0.6 points`."""
    return f"{value:g} point{'' if value == 1 else 's'}"


def percent(chance: float) -> str:
    """Writes a chance: `7 %`, `under 1 %`."""
    return "under 1 %" if chance < 0.005 else "over 99 %" if chance > 0.995 else f"{100 * chance:.0f} %"


def unit_of(name: str, values: Iterable[float | None]) -> tuple[float, str]:
    """Returns the unit of an axis that holds `values`, as a factor and a word, by the geometric middle of its ends."""
    units = UNITS.get(metric_of(name).kind, ((1, ""),))
    positive = [value for value in values if value is not None and value > 0] or [1.0]
    middle = math.sqrt(min(positive) * max(positive))
    return max((unit for unit in units if unit[0] <= middle), default=units[0])


def label_of(name: str, metric: str = "") -> str:
    """Returns the heading of a number; that of the score names the `metric` that it is, where all tasks have the same."""
    if name != "score" or not metric:
        return metric_of(name).label
    return metric.replace("_", " ") + (", %" if metric in SCORES and SCORES[metric].percent else "")


def heading(label: str) -> str:
    """Returns the label as the head of a column: its first letter is a capital."""
    return label[:1].upper() + label[1:]


def titled(name: str, unit: str = "", metric: str = "") -> str:
    """Returns the title of an axis; `metric` is what the score is."""
    label = "trainable parameters" if name == SIZE else label_of(name, metric)
    return f"{label} ({unit})" if unit else label

"""How results are named, written and coloured: the same in the terminal, the files of the front, the model card and the page.

`dashboards/static/copy.js` writes amounts by the same rules for what the page formats in the browser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from craft.tasks.metrics import METRICS as TASK_METRICS
from craft.words import format_bytes, format_duration
from orchestrator.results.chances import EXPECTED, LUCK, P_FRONT, P_WITHIN
from orchestrator.results.control import NORMALIZED
from orchestrator.results.intervals import Interval
from orchestrator.sweepfile.objectives import Direction

Kind = Literal["score", "count", "bytes", "seconds", "share", "chance", "number"]

# Okabe and Ito's colours without yellow and black, which vanish on a light and on a dark ground; the blue is a little lighter
# than theirs so that it holds on the dark one.
BLUE = "#1B80C4"
OKABE_ITO = ("#D55E00", BLUE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
MORE_COLOURS = ("#8E5FB5", "#8C6D00", "#17A3A3", "#B0414E", "#6F9A1F", "#5C6BC0", "#9C6B4E")
KNOWN_METHODS = ("craft", "lora", "dora", "pissa", "vera", "lora_xs", "full")


@dataclass(frozen=True)
class Metric:
    """A number of a configuration: its name and label, its better direction, and what kind of amount it is."""

    name: str
    label: str
    better: Direction
    kind: Kind = "number"

    @property
    def log(self) -> bool:
        """Whether an axis of it is better read in powers of ten."""
        return self.kind == "bytes" or self.name.endswith("_parameters")


METRICS = {
    one.name: one
    for one in (
        Metric("score", "score", "maximize", "score"),
        Metric("chance", "chance", "maximize", "score"),
        Metric(NORMALIZED, "normalized", "maximize", "score"),
        Metric(P_FRONT, "P(front)", "maximize", "chance"),
        Metric(P_WITHIN, "P(within 1 of best)", "maximize", "chance"),
        Metric(EXPECTED, "expected", "maximize", "score"),
        Metric(LUCK, "luck of the examples", "minimize"),
        Metric("examples", "examples", "maximize", "count"),
        Metric("trainable_parameters", "parameters", "minimize", "count"),
        Metric("adapter_bytes", "adapter size", "minimize", "bytes"),
        Metric("peak_memory_bytes", "peak memory", "minimize", "bytes"),
        Metric("step_seconds", "step time", "minimize", "seconds"),
        Metric("seconds", "training time", "minimize", "seconds"),
        Metric("head_parameters", "head parameters", "minimize", "count"),
        Metric("total_parameters", "total parameters", "minimize", "count"),
        Metric("optimizer_bytes", "optimizer state", "minimize", "bytes"),
        Metric("tokens_per_second", "tokens per second", "maximize"),
        Metric("tuning_trials", "trials of its tuning", "minimize", "count"),
        Metric("tuning_seconds", "time of its tuning", "minimize", "seconds"),
        Metric("energy_kept", "energy of the weights kept", "maximize", "share"),
        Metric("forgetting", "forgetting (nats a token)", "minimize"),
    )
}
PERCENT = tuple(name for name, metric in TASK_METRICS.items() if metric.percent)
"""Metrics that are shares of something, so that x 100 they are percent."""
UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "bytes": ((1, "bytes"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB")),
    "seconds": ((1e-3, "ms"), (1, "s"), (60, "min"), (3600, "h")),
    "share": ((0.01, "%"),),
}

PHASES = {
    "start": "starting",
    "load": "loading",
    "data": "data",
    "head": "fitting the head",
    "decompose": "decomposing",
    "train": "training",
    "score": "scoring",
    "cut": "cutting",
    "store": "storing",
}
"""Phases of a run (`craft.trainer.meter`), as they are shown."""


def metric_of(name: str) -> Metric:
    """The row of METRICS; for a task's score or an estimate a row made for it."""
    if name in METRICS:
        return METRICS[name]
    if name.startswith("score/"):
        return Metric(name, f"score on {name.removeprefix('score/')}", "maximize", "score")
    return Metric(name, name.replace("_", " "), "minimize", "bytes" if name.endswith("_bytes") else "number")


def amount(name: str, value: float) -> str:
    """A metric's value for people: `86.67`, `9,216`, `805.1 MiB`, `7 min 31 s`, `13 %`."""
    kind = metric_of(name).kind
    if math.isnan(value):
        return "–"
    if kind in ("score", "chance"):
        return f"{round(value, 2) + 0:.2f}"  # + 0: no -0.00
    if kind == "bytes":
        return format_bytes(value)
    if kind == "seconds":
        return format_duration(value) if value >= 10 else f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
    if kind == "share":
        return f"{100 * value:.3g} %" if value < 0.1 else f"{100 * value:.0f} %"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def spread(interval: Interval, digits: int = 2) -> str:
    """` ± 4.46`; ` (97.3 to 100)` for an interval that ends at a bound of the metric; empty where there is none."""
    if not math.isfinite(interval.half):
        return ""
    if abs(interval.high + interval.low - 2 * interval.mean) > 0.01:
        low, high = (f"{end:.1f}".removesuffix(".0") for end in (interval.low, interval.high))
        return f" ({low} to {high})"
    return f" ± {interval.half:.{digits}f}"


def unit_of(name: str, values: Iterable[float | None]) -> tuple[float, str]:
    """The unit of an axis that holds `values`, as a factor and a word, by the geometric middle of its ends."""
    units = UNITS.get(metric_of(name).kind, ((1, ""),))
    known = [value for value in values if value is not None and value > 0] or [1.0]
    middle = math.sqrt(min(known) * max(known))
    return max((unit for unit in units if unit[0] <= middle), default=units[0])


def label_of(name: str, metric: str = "") -> str:
    """The heading of a number; that of the score names the `metric` that it is, where all tasks have the same."""
    if name != "score" or not metric:
        return metric_of(name).label
    return metric.replace("_", " ") + (", %" if metric in PERCENT else "")


def heading(label: str) -> str:
    """The label as the head of a column: its first letter is a capital."""
    return label[:1].upper() + label[1:]


def titled(name: str, unit: str = "", metric: str = "") -> str:
    """The title of an axis; `metric` is what the score is."""
    label = "trainable parameters" if name == "trainable_parameters" else label_of(name, metric)
    return f"{label} ({unit})" if unit else label


def colours(methods: Iterable[str]) -> dict[str, str]:
    """A colour for each method: known methods have fixed ones, the others get the remaining colours in alphabetical order."""
    names = sorted(set(methods))
    taken = {name: OKABE_ITO[KNOWN_METHODS.index(name)] for name in names if name in KNOWN_METHODS}
    free = [colour for colour in (*OKABE_ITO, *MORE_COLOURS) if colour not in taken.values()]
    others = [name for name in names if name not in taken]
    return taken | {name: free[number % len(free)] for number, name in enumerate(others)}

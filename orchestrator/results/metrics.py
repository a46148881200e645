"""The columns of a configuration: COLUMNS has a row for each with its name, heading, direction, kind, place and description.

Terminal, CSV, Markdown, LaTeX, `--json`, MLflow and the page read their cells from these rows. A new column is one row here;
what a score may be is a row of `craft.tasks.metrics`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from craft.methods import METHODS
from craft.methods.whole import BASE_MODEL
from craft.tasks.metrics import METRICS as SCORES
from craft.words import format_bytes, format_duration, plural
from orchestrator.results.intervals import Interval, spread
from orchestrator.sweepfile.settings import Direction

# Okabe and Ito's colours without yellow and black, which vanish on a light and on a dark ground; the blue is a little lighter
# than theirs so that it holds on the dark one.
BLUE = "#1B80C4"
OKABE_ITO = ("#D55E00", BLUE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
MORE_COLOURS = ("#8E5FB5", "#8C6D00", "#17A3A3", "#B0414E", "#6F9A1F", "#5C6BC0", "#9C6B4E")
PALETTE = (*OKABE_ITO, *MORE_COLOURS)
FIXED_METHODS = (
    *("craft", "lora", "dora", "pissa", "vera", "lora_xs", "full"),
    *("head", "bitfit", "ia3", "rslora", "adalora", "craft_star", "houlsby"),
)
"""Methods that have PALETTE's colours, in its order, whichever others are drawn."""

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


def colours(methods: Collection[str]) -> dict[str, str]:
    """Returns a colour for each method by its name. A method without a fixed one has the first that is free from a place on
    that its name decides, and shares it where there are more methods than colours."""
    chosen: dict[str, str] = {name: PALETTE[FIXED_METHODS.index(name)] for name in sorted(methods) if name in FIXED_METHODS}
    for name in sorted({*methods} - chosen.keys()):
        first = zlib.crc32(name.encode()) % len(PALETTE)
        places = (*PALETTE[first:], *PALETTE[:first])
        chosen[name] = next((colour for colour in places if colour not in chosen.values()), places[0])
    return chosen


Summary: TypeAlias = Any
"""`orchestrator.results.summary.Summary`, whose module asks this table how counts are summed up."""
Kind = Literal["score", "count", "bytes", "seconds", "share", "probability", "number", "flag", "text", "texts"]
Place = Literal["front", "page", "menu", "objective", "record"]
Cell: TypeAlias = "Interval | float | bool | str | tuple[str, ...] | None"
"""A value with an interval, an exact value, or text. None, an empty text and NaN stand for no value."""

P_FRONT, P_ENOUGH, EXPECTED, LUCK = "p_front", "p_enough", "expected", "example_luck"
NORMALIZED, SIZE, FEWEST = "normalized", "trainable_parameters", "fewest_parameters"


@dataclass(frozen=True)
class Column:
    """A column of configurations.

    Attributes:
        digits: the number of digits behind the point, for numbers that are not written by their kind alone.
        place: `front` is in every table; `page` is on the page; `menu` is there if a reader adds it; `objective` is in tables
            only as an objective; `record` is for programs. CSV, `--json` and MLflow have all.
        averaged: whether it differs at random from trial to trial. Then a configuration has the mean of its trials' counts,
            else the largest.
        interval: whether it is estimated over seeds and has an interval.
        read: reads its cell, if that is not the summary's metric or count of this name.
    """

    name: str
    label: str
    better: Direction | None = None
    kind: Kind = "number"
    about: str = ""
    digits: int | None = None
    place: Place = "menu"
    averaged: bool = False
    interval: bool = False
    read: Callable[[Summary], Cell] | None = field(default=None, repr=False)

    @property
    def log(self) -> bool:
        """Whether an axis of it is better read in powers of ten."""
        return self.kind == "bytes" or self.name.endswith("_parameters")

    @property
    def decimals(self) -> int | None:
        """The digits behind its point; None where they depend on the value."""
        return 2 if self.digits is None and self.kind in ("score", "probability") else self.digits

    @property
    def is_number(self) -> bool:
        return self.kind not in ("flag", "text", "texts")

    @property
    def best(self) -> Direction | None:
        """The direction of the value that tables set in bold; None where no value is the best."""
        return None if self.kind == "probability" or self.name == "examples" else self.better

    def cell(self, summary: Summary) -> Cell:
        if self.read is not None:
            return self.read(summary)
        return summary.bounds(self.name) if self.interval and self.name not in summary.counts else summary.value(self.name)

    def value(self, summary: Summary) -> float:
        """Returns the cell's number without its interval; NaN for text."""
        cell = self.cell(summary)
        return cell.mean if isinstance(cell, Interval) else math.nan if isinstance(cell, str | tuple | None) else cell

    def parts(self, summary: Summary) -> tuple[str, str]:
        """Returns the cell as text: its value, and its interval if it has one."""
        cell = self.cell(summary)
        if isinstance(cell, str):
            return cell, ""
        if isinstance(cell, tuple):
            return "; ".join(cell), ""
        if self.kind == "flag":
            return "yes" if cell else "", ""
        ends = spread(cell, 2 if self.decimals is None else self.decimals) if isinstance(cell, Interval) else ""
        if self.name == SIZE and FEWEST in summary.counts:
            ends = f" (from {self.write(summary.counts[FEWEST])})"
        return self.write(self.value(summary)), ends

    def text(self, summary: Summary) -> str:
        return "".join(self.parts(summary))

    def write(self, value: float) -> str:
        """Writes a value for people: `86.67`, `9,216`, `805.1 MiB`, `7 min 31 s`, `13 %`; a dash for NaN."""
        if math.isnan(value):
            return "–"
        if self.decimals is not None:
            return number(value, self.decimals)
        if self.kind == "bytes":
            return format_bytes(value)
        if self.kind == "seconds":
            return format_duration(value) if value >= 10 else f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
        if self.kind == "share":
            return f"{100 * value:.3g} %" if value < 0.1 else f"{100 * value:.0f} %"
        return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def full_label(summary: Summary) -> str:
    return with_method(summary.method, summary.label)


def with_method(method: str, label: str) -> str:
    """Returns a configuration's label, with the method in front unless the label begins with its name or title."""
    row = METHODS.get(method)
    names = (method, row.title if row else method, BASE_MODEL)
    return label if label.lower().startswith(tuple(name.lower() for name in names)) else f"{method} {label}"


def sized(summary: Summary) -> str:
    """Returns the configuration's size in brackets, with a space in front; empty if no configuration has one.

    Parameters are counted: ` (9,216 parameters)`. Another size is a column's value: ` (rank 8)`, empty if the label has it.
    """
    size, unit = amount(SIZE, summary.value(SIZE)), summary.unit
    text = f"{size} {plural(summary.value(SIZE), 'parameter')}" if unit == "parameters" else f"{unit} {size}"
    return f" ({text})" if unit and text not in summary.label.split(", ") else ""


def _fact(name: str, kind: Kind, about: str, read: Callable[[Summary], Cell] | None = None) -> Column:
    """Returns a column for programs; `read` reads the summary's attribute of this name if it is not given."""
    return Column(name, name.replace("_", " "), None, kind, about, place="record", read=read or attrgetter(name))


def _tuned(name: str, kind: Kind, about: str, label: str = "") -> Column:
    """Returns a column of what the choice of settings took; its cells are empty in a sweep that does not tune."""
    place: Place = "menu" if label else "record"
    attribute = name.removeprefix("tuning_")

    def read(summary: Summary) -> Cell:
        return getattr(summary.tuning, attribute) if summary.tuning.candidates or kind == "texts" else math.nan

    return Column(name, label or name.replace("_", " "), "minimize", kind, about, place=place, read=read)


ROWS = (
    _fact("configuration", "text", "Its id: 10 hexadecimal digits, a hash of its content."),
    _fact("label", "text", "Its name for people.", full_label),
    _fact("method", "text", "Its method, such as `craft` or `lora`."),
    _fact("protocol", "text", "`honest`: the data of the reported score chose nothing. `customary`: they did."),
    _fact("metric", "text", "What the score is on all of its tasks, such as `accuracy`. Empty if they differ."),
    _fact("cut_from", "text", "The id of the configuration from whose adapters its own are cut. Empty if it was trained.",
          lambda row: row.source),
    _fact("on_front", "flag", "Whether no other complete configuration is better in the objectives."),
    _fact("may_be_on_front", "flag", "Whether its probability of being on the front is not small."),
    _fact("enough", "flag", "Whether it is the smallest that is enough. At most one configuration is."),
    _fact("complete", "flag", "Whether its first trials have all finished. Only complete configurations are ranked."),
    _fact("tunes", "text", "The id of the configuration for which it is a candidate, with search scores alone; or empty."),
    Column("score", "score", "maximize", "score",
           "The reported score, in points, on data that chose nothing (`protocol: honest`).", place="front", interval=True),
    Column("search_score", "search score", "maximize", "score",
           "The score on the split that may choose, in points. Choose by this one.", place="record", interval=True),
    Column("random_guessing", "random guessing", "maximize", "score",
           "The best score of answers that no input decides, such as always the most frequent class.", place="objective"),
    Column(NORMALIZED, "normalized", "maximize", "score",
           "The mean over tasks, on each of which 0 is no adapter and 100 is full fine-tuning.", 1, "front", interval=True),
    Column("examples", "examples", "maximize", "count", "The fewest examples that a task was scored on.", place="front"),
    Column(P_FRONT, "P(front)", "maximize", "probability",
           "P(front): the probability, 0 to 1, that no configuration that costs no more does better. Null with one seed.",
           place="front"),
    Column(P_ENOUGH, "P(enough)", "maximize", "probability", "P(enough): the probability, from 0 to 1, that nothing at all is "
           "better by more than `within` points. Null with one seed.", place="front"),
    Column(EXPECTED, "expected", "maximize", "score", "The expected true score, in points. The highest of many scores is too "
           "high on average; this is not.", place="page"),
    Column(LUCK, "error of the examples", "minimize",
           about="The part of the score's error that the choice of the examples gives to all seeds, in points."),
    Column(SIZE, "parameters", "minimize", "count", "Trainable parameters of the adapter without the task head; of its seeds "
           "the most.", place="page"),
    Column(FEWEST, "fewest parameters", "minimize", "count", "The fewest of its seeds, where they differ."),
    Column("adapter_bytes", "adapter size", "minimize", "bytes", "Bytes that a saved adapter takes, with its task head."),
    Column("peak_memory_bytes", "peak memory", "minimize", "bytes", "The most memory of a training.", place="page"),
    Column("step_seconds", "step time", "minimize", "seconds", "The time of an optimizer step.", averaged=True),
    Column("seconds", "training time", "minimize", "seconds",
           "Training time of one trial, in seconds. Null for what is cut from another adapter.", place="page", averaged=True),
    Column("head_parameters", "head parameters", "minimize", "count", "Parameters of the task head, trained with them."),
    Column("total_parameters", "total parameters", "minimize", "count", "Parameters of the base model and the adapter."),
    Column("optimizer_bytes", "optimizer state", "minimize", "bytes", "Bytes of the optimizer's state."),
    Column("tokens_per_second", "tokens per second", "maximize", about="Tokens read in a second of training.", averaged=True),
    Column("energy_kept", "energy of the weights kept", "maximize", "share",
           "The share, from 0 to 1, of the decomposed weights' squares that the ranks keep."),
    Column("forgetting", "forgetting (nats a token)", "minimize", "number",
           "How much higher the loss on other text is than without the adapter, in nats a token.", 4, interval=True),
    _fact("planned", "count", "The number of trials by which it is judged: tasks times seeds."),
    _fact("finished", "count", "The number of these that have finished."),
    _fact("to_come", "count", "The number of added trials that do not count yet: their seed has not ended everywhere."),
    _fact("failed", "count", "The number of trials that have failed."),
    _fact("stopped", "count", "The number of trials that were never promoted."),
    _fact("seeds", "count", "The number of seeds that have finished every task."),
    _fact("tuned", "flag", "Whether its settings were chosen among others.", lambda row: row.tuning.tuned),
    _fact("tuned_to", "text", "What was chosen, in words.", lambda row: row.tuning.choice),
    _tuned("tuning_trials", "count", "The trainings that tuned. Null if the sweep does not tune.", "trials of its tuning"),
    _tuned("tuning_failed", "count", "Those of these trainings without a score."),
    _tuned("tuning_seconds", "seconds", "Their training time, in seconds.", "time of its tuning"),
    _tuned("tuning_at_end", "texts", "Settings whose best value is the lowest or highest that was tried."),
    _fact("reasons", "texts", "The distinct reasons of failures."),
    _fact("notes", "texts", "What its trials noted."),
)  # fmt: skip
COLUMNS = {row.name: row for row in ROWS}
ALWAYS = [row.name + end for row in ROWS if row.place != "menu" for end in (("", "_low", "_high") if row.interval else ("",))]
"""The columns of every CSV file, also of one in which no trial has finished."""


def flat_cells(summary: Summary) -> dict[str, float | bool | str]:
    """Returns the cells of a configuration that have a value, each as a number or text: those of COLUMNS, then its other
    metrics and counts, and the values chosen for it by task. `NAME_low` and `NAME_high` are the ends of an interval."""
    measured = (*summary.metrics, *(f"score/{task}" for task in summary.tasks), *summary.counts)
    row: dict[str, float | bool | str | None] = {}
    for name in dict.fromkeys((*COLUMNS, *measured)):
        cell = column_of(name).cell(summary)
        if isinstance(cell, Interval):
            row |= {name: cell.mean, f"{name}_low": cell.low, f"{name}_high": cell.high}
        else:
            row[name] = "; ".join(cell) if isinstance(cell, tuple) else cell
    row |= {f"{name}/{task}": value for name, by_task in summary.tuning.values.items() for task, value in by_task.items()}
    # NaN differs from itself.
    return {name: value for name, value in row.items() if value is not None and value != "" and value == value}


UNITS: dict[str, tuple[tuple[float, str], ...]] = {
    "bytes": ((1, "bytes"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB")),
    "seconds": ((1e-3, "ms"), (1, "s"), (60, "min"), (3600, "h")),
    "share": ((0.01, "%"),),
}


def column_of(name: str) -> Column:
    """Returns the row of COLUMNS, or makes one for a task's score (`score/TASK`) or a name that COLUMNS does not have."""
    if name in COLUMNS:
        return COLUMNS[name]
    if name.startswith("score/"):
        return Column(name, f"score on {name.removeprefix('score/')}", "maximize", "score", interval=True)
    kind: Kind = "bytes" if name.endswith("_bytes") else "number"
    return Column(name, name.replace("_", " "), "minimize", kind, interval=True)


def amount(name: str, value: float) -> str:
    return column_of(name).write(value)


def number(value: float, digits: int = 2) -> str:
    """Writes a value with so many digits behind the point; a dash for NaN."""
    return "–" if math.isnan(value) else f"{round(value, digits) + 0:.{digits}f}"  # + 0: no -0.00


def unit_of(name: str, values: Iterable[float | None]) -> tuple[float, str]:
    """Returns the unit of an axis that holds `values`, as a factor and a word, by the geometric middle of its ends."""
    units = UNITS.get(column_of(name).kind, ((1, ""),))
    positive = [value for value in values if value is not None and value > 0] or [1.0]
    middle = math.sqrt(min(positive) * max(positive))
    return max((unit for unit in units if unit[0] <= middle), default=units[0])


def label_of(name: str, metric: str = "") -> str:
    """Returns the heading of a number; that of the score names the `metric` that it is, where all tasks have the same."""
    if name != "score" or not metric:
        return column_of(name).label
    return metric.replace("_", " ") + (", %" if metric in SCORES and SCORES[metric].percent else "")


def heading(label: str) -> str:
    return label[:1].upper() + label[1:]


def titled(name: str, unit: str = "", metric: str = "") -> str:
    """Returns the title of an axis; `metric` is what the score is."""
    label = "trainable parameters" if name == SIZE else label_of(name, metric)
    return f"{label} ({unit})" if unit else label

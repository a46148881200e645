"""The front as a PNG: score against cost, without a browser.

Members of the front are large marks, each with a number next to it, which the list at the side names; bars are their 95 %
intervals, and the step line is the best score at each cost. The others are pale, with a ring around those that the intervals
do not rule out.
Methods differ in colour and in the shape of their marks, so that the picture also reads in grey.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from craft.methods import METHODS
from orchestrator.results.front import axes as axes_of
from orchestrator.results.front import knee
from orchestrator.results.metrics import colours, column_of, full_label, titled, unit_of
from orchestrator.results.summary import Summary, metric_among
from orchestrator.sweepfile.settings import Objectives
from orchestrator.tools.markup import shorten

MARKERS = ("o", "s", "D", "p", "h", "8", "^", "v", "P")
LABELS = 16
"""The number of front points that the list names; the table names all of them."""
PALE = 0.35
LARGE, SMALL = 70, 30
"""The areas of marks, in square points: members of the front, and the others."""
MARKS: dict[bool, dict[str, Any]] = {
    True: {"s": LARGE, "zorder": 4, "edgecolors": "white", "linewidths": 0.8},
    False: {"s": SMALL, "zorder": 2, "alpha": PALE},
}
"""The marks of members of the front, and of the others."""
RING: dict[str, Any] = {"s": LARGE, "marker": "o", "facecolors": "none", "edgecolors": "#333333", "linewidths": 1.0}
NUMBER = (18.0, 10.0)
"""The width and height of a number, in points."""


def write_png(summaries: Sequence[Summary], objectives: Objectives, path: Path, title: str) -> None:
    with warnings.catch_warnings():
        # The font draws boxes for scripts it lacks; the table next to the picture shows such labels.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        draw(summaries, objectives, title).savefig(path, bbox_inches="tight", facecolor="white")


def draw(summaries: Sequence[Summary], objectives: Objectives, title: str) -> Any:
    """Draws the first objective (up) against the last (across); a single objective is drawn against parameters."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    x_name, y_name = axes_of(objectives)
    drawn = [row for row in summaries if row.complete and math.isfinite(row.value(x_name) + row.value(y_name))]
    across, up = [row.value(x_name) for row in drawn], [row.value(y_name) for row in drawn]
    by, unit = unit_of(x_name, across)
    front = sorted((row for row in drawn if row.on_front), key=lambda row: row.value(x_name))
    methods = sorted({row.method for row in drawn})
    looks = {name: (colour, MARKERS[methods.index(name) % len(MARKERS)]) for name, colour in colours(methods).items()}
    figure = Figure(figsize=(6.4, 4.4), dpi=110)  # with the list about as wide as MLflow's page shows a description
    FigureCanvasAgg(figure)
    axes = figure.subplots()

    def places(rows: Sequence[Summary]) -> Any:
        return np.reshape([(row.value(x_name) / by, row.value(y_name)) for row in rows], (-1, 2))

    for name, (colour, marker) in looks.items():
        for on_front, style in MARKS.items():
            mine = places([row for row in drawn if row.method == name and row.on_front == on_front])
            axes.scatter(*mine.T, marker=marker, color=colour, clip_on=False, **style)
    axes.scatter(*places([row for row in drawn if row.possible]).T, zorder=2, clip_on=False, **RING)
    where: Literal["pre", "post"] = "post" if objectives.get(x_name, "minimize") == "minimize" else "pre"
    axes.step(*places(front).T, where=where, color="#333333", linewidth=1.1, zorder=3)
    for row, (x, y) in zip(front, places(front), strict=True):
        value, colour = row.bounds(y_name), looks[row.method][0]
        if value.high > value.low:
            ends = [[y - value.low], [value.high - y]]
            axes.errorbar([x], [y], yerr=ends, fmt="none", elinewidth=1.2, capsize=3, color=colour, zorder=3)
    handles: list[Any] = []
    levels = {row.value("random_guessing") for row in drawn} if y_name == "score" else set()
    if len(levels) == 1 and math.isfinite(guessing := levels.pop()):
        up.append(guessing)
        handles = [axes.axhline(guessing, color="#888888", linewidth=0.9, linestyle=":", zorder=0, label="random guessing")]
    axes.set_xlabel(titled(x_name, unit), parse_math=False)
    axes.set_ylabel(titled(y_name, metric=metric_among(drawn)), parse_math=False)
    axes.set_title(title, loc="left", fontweight="bold", fontsize=11, parse_math=False)
    axes.grid(True, which="major", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if not drawn:
        axes.text(0.5, 0.5, "no configuration is complete", ha="center", va="center", transform=axes.transAxes)
        return figure
    _scale(axes, [value / by for value in across], column_of(x_name).log and any(across))
    _cut(axes, up, y_name)
    if any(row.possible for row in drawn):
        handles.append(axes.scatter([], [], label="may be on the front", **RING))
    _list(axes, front, looks, knee(summaries, objectives), handles)
    _number(axes, places(front[:LABELS]))
    return figure


def _number(axes: Any, members: Any) -> None:
    """Numbers the members, `(n, 2)`, at the right of their marks; those whose numbers would meet share one."""
    at = axes.transData.transform(members) * 72 / axes.figure.dpi
    groups: list[list[int]] = []
    for place in range(len(members)):
        right, up = abs(at[place] - at[groups[-1][-1]]) if groups else NUMBER
        if right < NUMBER[0] and up < NUMBER[1]:
            groups[-1].append(place)
        else:
            groups.append([place])
    for group in groups:
        text = "–".join(dict.fromkeys((str(group[0] + 1), str(group[-1] + 1))))
        axes.annotate(text, members[group[-1]], (6, 6), textcoords="offset points", va="center", fontsize=8, fontweight="bold",
            color="#333333", zorder=5, annotation_clip=False)  # fmt: skip


def _scale(axes: Any, across: Sequence[float], log: bool) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator

    positive = [value for value in across if value > 0]
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if not log or max(positive) < 3 * min(positive):
        return
    low, high = min(positive), max(positive)
    steps = (1, 2, 5) if high < 100 * low else (1,)
    if 0 in across:  # the head alone: the axis is linear from there to the smallest count
        axes.set_xscale("symlog", linthresh=low, linscale=0.5)
        axes.set_xlim(left=-0.3 * low)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [step * 10.0**power for power in powers for step in steps]
        axes.set_xticks([0, *(tick for tick in ticks if low <= tick <= high)])
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.set_xlim(right=high * (high / low) ** 0.05)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _cut(axes: Any, up: Sequence[float], name: str) -> None:
    """Limits the vertical axis to the points: two seeds give intervals far beyond any score. No score is above 100."""
    spread, (low, high) = max(up) - min(up) or 1.0, axes.get_ylim()
    top = min(high, max(up) + spread)
    axes.set_ylim(max(low, min(up) - spread), min(top, 100 + 0.03 * spread) if name.startswith("score") else top)


def _list(
    axes: Any, front: Sequence[Summary], looks: dict[str, tuple[str, str]], chosen: Summary | None, lines: Sequence[Any]
) -> None:
    from matplotlib.lines import Line2D

    def row(label: str, method: str, alpha: float = 1.0) -> Line2D:
        colour, marker = looks[method]
        return Line2D([], [], color=colour, marker=marker, linestyle="none", markersize=6, alpha=alpha, label=label)

    names = shorten([full_label(summary) for summary in front[:LABELS]], 56)
    rows = [
        row(f"{place}  {name}{' (knee)' if summary is chosen else ''}{' ✓' if summary.enough else ''}", summary.method)
        for place, (name, summary) in enumerate(zip(names, front, strict=False), start=1)
    ]
    labelled = {summary.method for summary in front[:LABELS]}
    rows += [row(METHODS[name].title if name in METHODS else name, name, PALE) for name in looks if name not in labelled]
    legend = axes.legend(handles=[*rows, *lines], loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8)
    for entry in legend.get_texts():
        entry.set_parse_math(False)

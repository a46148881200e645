"""The front as a PNG: score against cost, without a browser.

Members of the front are large marks, each with a number next to it, which the list at the side names; bars are their 95 %
intervals, and the step line is the best score at each cost. A number stands at the nearest place that touches nothing; a thin
line leads to its mark if that is far. The others are pale, with a ring around those that the intervals do not rule out.
Methods differ in colour and in the shape of their marks, so that the picture also reads in grey.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from craft.methods import METHODS
from orchestrator.judging.front import axes as axes_of
from orchestrator.judging.front import knee, logarithmic
from orchestrator.results.intervals import Interval
from orchestrator.results.metrics import titled, unit_of
from orchestrator.results.presentation import colours
from orchestrator.results.summary import Summary
from orchestrator.results.table import full_label, metric_among
from orchestrator.sweepfile.objectives import Objectives
from orchestrator.tools.markup import shorten

MARKERS = ("o", "s", "D", "p", "h", "8", "^", "v", "P")
LABELS = 16
"""The number of front points that the list names; the table names all of them."""
PALE = 0.35
RING: dict[str, Any] = {"marker": "o", "facecolors": "none", "edgecolors": "#333333", "linewidths": 1.0}
LARGE, SMALL = 70, 30
"""The areas of marks, in square points: members of the front, and the others."""


def write_png(summaries: Sequence[Summary], objectives: Objectives, path: Path, title: str) -> None:
    """Writes what `draw` draws."""
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
    across, up = [summary.value(x_name) for summary in drawn], [summary.value(y_name) for summary in drawn]
    by, unit = unit_of(x_name, across)
    front = sorted((summary for summary in drawn if summary.on_front), key=lambda summary: summary.value(x_name))
    methods = sorted({summary.method for summary in drawn})
    looks = {name: (colour, MARKERS[methods.index(name) % len(MARKERS)]) for name, colour in colours(methods).items()}
    figure = Figure(figsize=(6.4, 4.4), dpi=110)  # with the list about as wide as MLflow's page shows a description
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, (colour, marker) in looks.items():
        dominated = [summary for summary in drawn if summary.method == name and not summary.on_front]
        _draw_others(axes, dominated, x_name, y_name, by, colour, marker)
    _draw_front(axes, front, x_name, y_name, by, looks, objectives)
    handles: list[Any] = []
    levels = {summary.value("random_guessing") for summary in drawn} if y_name == "score" else set()
    if len(levels) == 1 and math.isfinite(guessing := levels.pop()):
        up.append(guessing)
        handles = [axes.axhline(guessing, color="#888888", linewidth=0.9, linestyle=":", zorder=0, label="random guessing")]
    if not drawn:
        axes.text(0.5, 0.5, "no configuration is complete", ha="center", va="center", transform=axes.transAxes)
    else:
        _scale(axes, [value / by for value in across], logarithmic(x_name, across))
        _cut(axes, up, y_name)
        if any(summary.possible for summary in drawn):
            handles.append(axes.scatter([], [], s=LARGE, label="may be on the front", **RING))
        _list(axes, front, looks, knee(summaries, objectives), handles)
    _name_axes(axes, titled(x_name, unit), titled(y_name, metric=metric_among(drawn)), title)
    if drawn:
        _number_front(axes, drawn, front, x_name, y_name, by, objectives)
    return figure


def _name_axes(axes: Any, across: str, up: str, title: str) -> None:
    axes.set_xlabel(across, parse_math=False)
    axes.set_ylabel(up, parse_math=False)
    axes.set_title(title, loc="left", fontweight="bold", fontsize=11, parse_math=False)
    axes.grid(True, which="major", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _number_front(
    axes: Any, drawn: Sequence[Summary], front: Sequence[Summary], x_name: str, y_name: str, by: float, objectives: Objectives
) -> None:
    plain_points = [(summary.value(x_name) / by, summary.value(y_name)) for summary in drawn if not summary.on_front]
    rings = [(summary.value(x_name) / by, summary.value(y_name)) for summary in drawn if summary.possible]
    members = [(summary.value(x_name) / by, summary.bounds(y_name)) for summary in front]
    _number(axes, members, plain_points, rings, -1 if objectives.get(x_name, "minimize") == "minimize" else 1,
        1 if objectives.get(y_name, "maximize") == "maximize" else -1)  # fmt: skip


def _draw_others(axes: Any, group: Sequence[Summary], x_name: str, y_name: str, by: float, colour: str, marker: str) -> None:
    """Draws one method's configurations that are not on the front."""
    x, y = [summary.value(x_name) / by for summary in group], [summary.value(y_name) for summary in group]
    axes.scatter(x, y, s=SMALL, marker=marker, zorder=2, clip_on=False, color=colour, alpha=PALE)
    ringed = [(summary.value(x_name) / by, summary.value(y_name)) for summary in group if summary.possible]
    if ringed:
        axes.scatter(*zip(*ringed, strict=True), s=LARGE, zorder=2, clip_on=False, **RING)


def _draw_front(
    axes: Any, front: Sequence[Summary], x_name: str, y_name: str, by: float, looks: dict[str, tuple[str, str]],
    objectives: Objectives,
) -> None:  # fmt: skip
    """Draws the step line and the members, each with its interval."""
    x, bounds = [summary.value(x_name) / by for summary in front], [summary.bounds(y_name) for summary in front]
    smaller_is_better = objectives.get(x_name, "minimize") == "minimize"
    where = "post" if smaller_is_better else "pre"
    axes.step(x, [value.mean for value in bounds], where=where, color="#333333", linewidth=1.1, zorder=3)
    for summary, across, value in zip(front, x, bounds, strict=True):
        colour, marker = looks[summary.method]
        if value.high > value.low:
            ends = [[value.mean - value.low], [value.high - value.mean]]
            axes.errorbar([across], [value.mean], yerr=ends, fmt="none", elinewidth=1.2, capsize=3, color=colour, zorder=3)
        axes.scatter([across], [value.mean], s=LARGE, marker=marker, color=colour, edgecolors="white", linewidths=0.8, zorder=4,
            clip_on=False)  # fmt: skip


def _number(
    axes: Any, members: Sequence[tuple[float, Interval]], other_points: Sequence[tuple[float, float]],
    rings: Sequence[tuple[float, float]], better_x: int, better_y: int,
) -> None:  # fmt: skip
    """Numbers the members: each at the nearest place that touches no mark, number, interval, step or frame.

    Beyond the front, towards better values, there are no marks, so places in that direction come first. Intervals and steps are
    crossed where there is no other place; where there is none at all, the number is left out.

    Args:
        better_x, better_y: 1 where more is better, -1 where less is.
    """
    figure, to_pixels = axes.figure, axes.transData.transform
    point, frame = figure.dpi / 72, axes.get_window_extent()
    at = to_pixels([(x, value.mean) for x, value in members] or np.empty((0, 2)))
    marks = [
        *_boxes(np.vstack([at, to_pixels(rings or np.empty((0, 2)))]), point * LARGE**0.5 / 2 + 1),
        *_boxes(to_pixels(other_points or np.empty((0, 2))), point * SMALL**0.5 / 2 + 1),
    ]
    lines = [(*to_pixels((x, value.low)), *to_pixels((x, value.high))) for x, value in members if value.high > value.low]
    for (x, y), (further, higher) in pairwise(at):
        corner = (further, y) if better_x < 0 else (x, higher)
        lines += [(x, y, *corner), (*corner, further, higher)]
    lines = [(min(x, z) - 2, min(y, w) - 2, max(x, z) + 2, max(y, w) + 2) for x, y, z, w in lines]
    # Rings of places around a mark; on each ring the direction beyond the front comes first.
    turns = np.exp(2j * np.pi * np.arange(24) / 24)
    turns = turns[np.argsort(-(turns * complex(better_x, -better_y)).real, kind="stable")]
    ways = (point * np.arange(9, 160, 3)[:, None] * turns).reshape(-1, 1).view(float)
    for place, mark in enumerate(at[:LABELS], start=1):
        text = axes.text(0, 0, str(place), ha="center", va="center", fontsize=8, fontweight="bold", color="#333333", zorder=5)
        box = text.get_window_extent(figure.canvas.get_renderer())
        centers = mark + ways
        half = np.array([box.width, box.height]) / 2 + 1
        wanted = np.hstack([centers - half, centers + half])
        inside = (wanted[:, :2] > frame.min).all(axis=1) & (wanted[:, 2:] < frame.max).all(axis=1)
        free = inside & ~_meet(wanted, marks)
        best = next((places for places in (free & ~_meet(wanted, lines), free) if places.any()), None)
        if best is None:
            text.remove()
            continue
        chosen = int(best.argmax())
        marks.append(tuple(wanted[chosen]))
        ends = axes.transAxes.inverted().transform([centers[chosen], mark])
        text.set(position=ends[0], transform=axes.transAxes)
        if chosen >= 3 * len(turns):
            axes.plot(*ends.T, color="#999999", linewidth=0.6, zorder=1, transform=axes.transAxes)


def _boxes(centers: Any, half: float) -> list[tuple[float, float, float, float]]:
    return [(x - half, y - half, x + half, y + half) for x, y in centers]


def _meet(boxes: Any, rivals: Sequence[tuple[float, ...]]) -> Any:
    """Returns which of the boxes `(n, 4)`, each left, bottom, right and top, overlap one of `rivals`."""
    x_low, y_low, x_high, y_high = boxes.T[:, :, None]
    edges = np.array(rivals).reshape(-1, 4).T[:, None, :]
    return ((x_low < edges[2]) & (x_high > edges[0]) & (y_low < edges[3]) & (y_high > edges[1])).any(axis=1)


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
    """Names the numbered points and, below them, the methods that have none and the lines."""
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

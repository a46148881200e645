"""The front as a PNG: score against cost, without a browser.

Cost runs along a logarithmic x axis where it is a positive count. The step line is the best score at each cost; bars are 95 %
intervals over seeds, pale off the front. Configurations that the intervals do not rule out from it are hollow; the other
dominated ones are pale. Methods differ in colour (Okabe and Ito's palette, made for colour-blind readers) and in marker shape,
so that the picture also reads in grey.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.results.front import axes as axes_of
from orchestrator.results.front import knee, logarithmic
from orchestrator.results.summary import Summary
from orchestrator.review.front_words import TITLES, caption, full_label, possible
from orchestrator.sweepfile.objectives import Objectives

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")  # one more than colours: together they repeat after 72 methods
LOOKS = ("dominated", "possible", "front")
LABELS = 12
"""The number of front points with a label; the table names all of them."""
WIDTH = 135
"""Characters in a line of the caption, about the picture's width."""


def write_png(summaries: Sequence[Summary], objectives: Objectives, path: Path, title: str) -> None:
    """Draws the first objective (up) against the last (across); a single objective is drawn against parameters."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    x_name, y_name = axes_of(objectives)
    drawn = [summary for summary in summaries if summary.complete and _finite(summary, x_name, y_name)]
    figure = Figure(figsize=(8, 5.2), dpi=110, layout="constrained")  # as wide as MLflow's page shows a description
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for index, method in enumerate(dict.fromkeys(summary.method for summary in drawn)):
        group = [summary for summary in drawn if summary.method == method]
        _draw_method(axes, group, x_name, y_name, *colour_and_marker(index), method)
    front = sorted((summary for summary in drawn if summary.on_front), key=lambda summary: summary.value(x_name))
    if front:
        _draw_front(axes, front, x_name, y_name, objectives, knee(summaries, objectives))
    across = [summary.value(x_name) for summary in drawn]
    if logarithmic(x_name, across):
        # The head alone has 0 parameters: the axis is linear from there to the smallest count.
        axes.set_xscale("symlog", linthresh=min(filter(None, across))) if 0 in across else axes.set_xscale("log")
    if drawn:
        # Two seeds give intervals far beyond any score. They are cut at the edge, so that the points stay apart.
        means = [summary.value(y_name) for summary in drawn]
        spread, (low, high) = max(means) - min(means) or 1.0, axes.get_ylim()
        axes.set_ylim(max(low, min(means) - spread), min(high, max(means) + spread))
    if not drawn:
        axes.text(0.5, 0.5, "no configuration is complete", ha="center", va="center", transform=axes.transAxes)
    axes.set_xlabel(f"{TITLES.get(x_name, x_name)}", parse_math=False)
    axes.set_ylabel(f"{TITLES.get(y_name, y_name)}", parse_math=False)
    axes.set_title(title, loc="left", fontweight="bold", parse_math=False)
    axes.grid(True, which="major", alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if drawn:
        axes.legend(frameon=False, fontsize=9)
    below = textwrap.fill(caption(summaries, objectives), WIDTH)
    figure.text(0.01, -0.02, below, fontsize=7.5, color="#444444", va="top", parse_math=False)
    with warnings.catch_warnings():
        # The font draws boxes for scripts it lacks; the table beside the picture shows such labels.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(path, bbox_inches="tight", facecolor="white")


def colour_and_marker(index: int) -> tuple[str, str]:
    """What the method with this place in the legend is drawn with."""
    return COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]


def _draw_method(axes: Any, group: Sequence[Summary], x_name: str, y_name: str, colour: str, marker: str, method: str) -> None:
    for look in LOOKS:
        part = [summary for summary in group if _look(summary) == look]
        if not part:
            continue
        bounds = [summary.bounds(y_name) for summary in part]
        x, y = [summary.value(x_name) for summary in part], [value.mean for value in bounds]
        half = np.array([value.half if math.isfinite(value.half) else 0.0 for value in bounds])
        style = {"alpha": 0.3 if look == "dominated" else 1.0, "zorder": 4 if look == "front" else 2}
        if (half > 0).any():
            bars = style if look == "front" else {"alpha": 0.3, "zorder": 1}  # pale, or many of them hide the points
            axes.errorbar(x, y, yerr=half, fmt="none", elinewidth=1.2, capsize=3, color=colour, **bars)
        named = look == max((_look(summary) for summary in group), key=LOOKS.index)
        hollow = look == "possible"
        axes.scatter(
            x, y, s=56 if look == "front" else 28, marker=marker, linewidths=1.2 if hollow else 0.8,
            facecolors="white" if hollow else colour, edgecolors=colour if hollow else "white",
            label=method.replace("$", "\\$") if named else None, **style,
        )  # fmt: skip


def _look(summary: Summary) -> str:
    if summary.on_front:
        return "front"
    return "possible" if possible(summary) else "dominated"


def _draw_front(
    axes: Any, front: Sequence[Summary], x_name: str, y_name: str, objectives: Objectives, chosen: Summary | None
) -> None:
    """The step line, and labels that lie over the bars but under the points, which they would hide."""
    x, y = [summary.value(x_name) for summary in front], [summary.value(y_name) for summary in front]
    smaller_is_better = objectives.get(x_name, "minimize") == "minimize"
    axes.step(x, y, where="post" if smaller_is_better else "pre", color="#333333", linewidth=1.1, zorder=3, label="front")
    for place, summary in enumerate(front[:LABELS]):
        text = full_label(summary) + (" (knee)" if chosen is not None and summary is chosen else "")
        last = place == len(front) - 1 and place > 0
        axes.annotate(
            text if len(text) < 58 else f"{text[:56]}…", (x[place], y[place]), xytext=(-6, 8) if last else (6, -9),
            textcoords="offset points", fontsize=7.5, ha="right" if last else "left", va="bottom" if last else "top",
            color="#222222", zorder=1.5, parse_math=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
        )  # fmt: skip


def _finite(summary: Summary, *names: str) -> bool:
    return all(math.isfinite(summary.value(name)) for name in names)

"""The panels of the page, in their order on it. A new panel is one file and one row of PANELS."""

from __future__ import annotations

from dashboards.panels import curves, front, mattered, mistakes, progress, table
from dashboards.panels.base import Panel, Plain, View, draw_table

ROWS = (
    Panel("front", "Front", "front", "The best score at each size. Drag to select, click a point for its run.",
          front.data, front.draw, wide=True),
    Panel("pair", "Two configurations", "front", "Pinned side by side, compared seed by seed.",
          table.pairs, lambda plain: {"pairs": plain}, wide=True),
    Panel("versus", "Two sweeps", "front", "Configurations of the same label, compared seed by seed.",
          table.of_two_sweeps, draw_table, wide=True),
    Panel("table", "Configurations", "front", "Sort by a heading, filter by words, copy what is shown.",
          table.data, lambda plain: {"table": plain}, wide=True),
    Panel("importance", "Importance", "mattered", "How much of the score's variance each parameter explains.",
          mattered.importance_data, mattered.importance_draw),
    Panel("parallel", "Parallel coordinates", "mattered",
          "Each line is a configuration. Drag over points of an axis to see those in the table.",
          mattered.parallel_data, mattered.parallel_draw, wide=True),
    Panel("curves", "Learning curves", "curves",
          "Search score and training loss by step, a line for each trial; the configuration in focus is drawn bold.",
          curves.data, curves.draw, wide=True),
    Panel("confusions", "Confusions", "mistakes",
          "How often the recommended configuration answers each label right, and what else.",
          mistakes.confused, draw_table),
    Panel("mistakes", "Most confident mistakes", "mistakes", "Reported rows that the recommended configuration answers wrong, "
          "by their line or number; for values, the largest errors.", mistakes.surest, draw_table, wide=True),
    Panel("progress", "Progress", "progress", "Trainings done, running, stopped, failed and to come.",
          progress.progress_data, draw_table),
    Panel("time", "Where the time went", "progress", "What the trainings of each method spent.",
          progress.time_data, progress.time_draw),
    Panel("failures", "Failures", "progress", "What failed, with the reason each gave.", progress.failures_data, draw_table),
)  # fmt: skip
PANELS: dict[str, Panel] = {row.name: row for row in ROWS}
SECTIONS = {
    "front": "The front",
    "mattered": "What mattered",
    "curves": "Learning curves",
    "mistakes": "Mistakes",
    "progress": "Progress",
}

__all__ = ["PANELS", "SECTIONS", "Panel", "Plain", "View", "spec_of"]


def spec_of(panel: Panel, view: View) -> Plain:
    """Returns a panel's spec, or the reason why there is nothing to show."""
    plain = panel.data(view)
    return plain if "empty" in plain else panel.draw(plain)

"""The panels of the page, in their order on it. A new panel is one function and one row of ROWS."""

from __future__ import annotations

from dashboards.panels import curves, front, mattered, table, trials
from dashboards.panels.base import Panel, Plain, View

ROWS = (
    Panel("front", "Front", "front", "The best score at each size. Drag to select, click a point for its run.",
          front.draw, wide=True),
    Panel("pair", "Two configurations", "front", "Pinned side by side, compared seed by seed.", table.draw_pairs, wide=True),
    Panel("table", "Configurations", "front", "Sort by a heading, filter by words, copy what is shown.",
          table.draw, wide=True),
    Panel("importance", "Importance", "mattered", "How much of the score's variance each parameter explains.",
          mattered.draw_importance),
    Panel("parallel", "Parallel coordinates", "mattered",
          "Each line is a configuration. Drag over points of an axis to see those in the table.",
          mattered.draw_parallel, wide=True),
    Panel("curves", "Learning curves", "curves",
          "Search score and training loss by step, a line for each trial; the configuration in focus is drawn bold.",
          curves.draw, wide=True),
    Panel("confusions", "Confusions", "mistakes",
          "How often the recommended configuration answers each label right, and what else.", trials.draw_confusions),
    Panel("mistakes", "Most confident mistakes", "mistakes", "Reported rows that the recommended configuration answers wrong, "
          "by their line or number; for values, the largest errors.", trials.draw_surest, wide=True),
    Panel("time", "Where the time went", "progress", "What the trainings of each method spent.", trials.draw_time),
    Panel("failures", "Failures", "progress", "What failed, with the reason each gave.", trials.draw_failures),
)  # fmt: skip
PANELS: dict[str, Panel] = {row.name: row for row in ROWS}
SECTIONS = {
    "front": "The front",
    "mattered": "What mattered",
    "curves": "Learning curves",
    "mistakes": "Mistakes",
    "progress": "Time and failures",
}

__all__ = ["PANELS", "SECTIONS", "Panel", "Plain", "View"]

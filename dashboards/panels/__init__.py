"""The panels of the page, in their order on it. A new panel is one file and one row of PANELS."""

from __future__ import annotations

from dashboards.panels import curves, front, importance, mistakes, pair, parallel, progress, table
from dashboards.panels.base import Panel, Plain, View

PANELS: dict[str, Panel] = {
    row.name: row
    for row in (
        front.PANEL,
        pair.PANEL,
        pair.VERSUS,
        table.PANEL,
        importance.PANEL,
        parallel.PANEL,
        curves.PANEL,
        mistakes.CONFUSIONS,
        mistakes.SUREST,
        progress.PROGRESS,
        progress.TIME,
        progress.FAILURES,
    )
}
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

"""Checks of `measure` without the model: that its text is here, and that objectives name what is measured.

Whether its tasks are answered in words is the plan's to find (`craft.scoring.forgetting`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.sweepfile.mistakes import Mistake

if TYPE_CHECKING:
    from orchestrator.sweepfile.sweep import Sweep

MEASURED = {"forgetting": "forgetting"}
"""Metrics that a trial has only where `measure` asks for them -> the key of `measure` to give."""


def check_measures(sweep: Sweep) -> list[Mistake]:
    """Mistakes in the measurements of a sweep whose file is otherwise right."""
    asked = sweep.measure.recorded()
    mistakes = [
        Mistake(("objectives", name), f"is measured only where the file asks for it; add measure: {{{key}: true}}")
        for name, key in MEASURED.items()
        if name in sweep.objectives and key not in asked
    ]
    return mistakes + (_check_forgetting(sweep) if "forgetting" in asked else [])


def _check_forgetting(sweep: Sweep) -> list[Mistake]:
    path = ("measure", "forgetting")
    text = sweep.measure.forgetting.text if sweep.measure.forgetting else None
    if text is None or Path(text).expanduser().is_file():
        return []
    return [Mistake((*path, "text"), f"{text} is no file here; give a text file in UTF-8, or forgetting: true")]

"""Trainings of anybody from Python: `from orchestrator import judge`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.api import Result
from orchestrator.review.run_table import read_table, rows_of


@dataclass(frozen=True)
class Judgement(Result):
    """A table of trainings, judged: a `Result` without adapters, with sentences on how columns were read and what they lack."""

    read: list[str]
    lacks: list[str]


def judge(
    frame: Any,
    *,
    score: str | None = None,
    size: str | None = None,
    seed: str | None = None,
    minimize: bool | None = None,
    within: float | None = None,
) -> Judgement:
    """Judges trainings, one in a row, as those of a sweep: `craft-sweeps judge`. Raises ValueError for what cannot be read.

    Args:
        frame: a DataFrame, a list of dicts, or the path of a file.
        score, size, seed: columns, where they should not be guessed by their names.
        minimize: whether less of the score is better; guessed by its name if None.
        within: the points of the score below the best that are enough; 1 if not given.
    """
    rows = Path(frame) if isinstance(frame, str | Path) else rows_of(frame)
    table = read_table(rows, score, size, seed, minimize, within)
    return Judgement(table.record, table.read, table.lacks)

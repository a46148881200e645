"""Trainings of anybody from Python: `from orchestrator import judge`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.api import Result
from orchestrator.review.run_columns import Call
from orchestrator.review.run_table import read_table, rows_of


@dataclass(frozen=True)
class Judgement(Result):
    """A table of trainings, judged: a `Result` without adapters, with sentences on how columns were read and what they lack."""

    read: list[str]
    lacks: list[str]


def judge(frame: Any, *, within: float | None = None, **said: Any) -> Judgement:
    """Judges trainings, one in a row, as those of a sweep: `craft-sweeps judge`. Raises ValueError for what cannot be read.

    Args:
        frame: a DataFrame, a list of dicts, or the path of a file.
        within: the points of the score below the best that are enough; 1 if not given.
        said: what columns are, where the table does not say it: the options of `craft-sweeps judge` (`Call`).
    """
    rows = Path(frame) if isinstance(frame, str | Path) else rows_of(frame)
    table = read_table(rows, Call(**said), within)
    return Judgement(table.record, table.read, table.lacks)

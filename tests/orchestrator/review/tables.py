"""Tables of made-up trainings, and what is read from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from craft.tasks.files import DataError
from orchestrator.results.summary import Summary
from orchestrator.review.past_sweep import PastSweep
from orchestrator.review.run_columns import Call
from orchestrator.review.run_table import RunTable, read_table

LEVELS = {1: 80.0, 2: 84.0, 4: 86.0, 8: 86.2}
SEEDS = (0, 1, 2)


def score_of(rank: int, seed: int) -> float:
    return LEVELS[rank] + 0.3 * np.random.default_rng([rank, seed]).standard_normal()


def trainings() -> Iterator[tuple[int, int, float]]:
    """Rank, seed and score of each training of the made-up sweep that all tables tell of."""
    for rank in LEVELS:
        for seed in SEEDS:
            yield rank, seed, score_of(rank, seed)


def numbers(summaries: list[Summary]) -> list[tuple[float, ...]]:
    names = ("score", "trainable_parameters", "p_front", "p_enough", "expected")
    return sorted(tuple(summary.value(name) for name in names) for summary in summaries)


def judged_like(record: PastSweep, sweep: PastSweep) -> None:
    """The numbers of a table that another program wrote are those of the sweep, up to the last digits of a CSV file."""
    for name in ("kind", "p_better", "p_decides"):
        assert getattr(record.answer, name) == getattr(sweep.answer, name)
    np.testing.assert_allclose(numbers(record.summaries), numbers(sweep.summaries), rtol=1e-6)


def labels(table: Any) -> list[str]:
    return [row.label for row in table.record.summaries]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def plain_rows(**changes: Any) -> list[dict[str, Any]]:
    rows = [{"method": "lora", "rank": r, "seed": s, "accuracy": v / 100, "params": 100 * r} for r, s, v in trainings()]
    return [row | changes for row in rows]


def lines_of(head: str, cells: Callable[[int, int, float], str]) -> str:
    return "\n".join([head, *(cells(rank, seed, round(value / 100, 5)) for rank, seed, value in trainings())])


def read_lines(folder: Path, lines: str, call: Call | None = None) -> RunTable:
    (folder / "table.csv").write_text(lines)
    return read_table(folder / "table.csv", call)


def refusal(folder: Path, lines: str, call: Call | None = None) -> str:
    """What is said of a table that is not judged."""
    with pytest.raises(DataError) as refused:
        read_lines(folder, lines, call)
    return str(refused.value)

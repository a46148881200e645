"""CSV files that a spreadsheet opens without running a cell."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from orchestrator.tools.filling import write_table


@pytest.mark.parametrize(
    "cell", ["=HYPERLINK(1)", "@SUM(A1)", "+cmd|x", "-1+1", " =A1", "\t=A1", "\r\n@A", "\uff1dA1", "-inf", "-nan"]
)
def test_formulas_are_texts(cell: str, tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", [{cell: cell, "n": -1.5}])
    names, cells = csv.reader((tmp_path / "t.csv").open(newline=""))
    assert (names, cells) == ([f"'{cell}", "n"], [f"'{cell}", "-1.5"])


@pytest.mark.parametrize("cell", ["-1", "+2.5e-3", "a=b", "", "\u2212 1"])
def test_other_cells_stay(cell: str, tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", [{"a": cell}], ["b"])
    assert [*csv.DictReader((tmp_path / "t.csv").open(newline=""))] == [{"b": "", "a": cell}]

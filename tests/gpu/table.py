"""One table of what the checks found, from pytest's own reports: check, result, figure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim"}


@dataclass
class Row:
    """One check. `figure` holds what it measured, why it was skipped, or the last line of its failure."""

    check: str
    result: str = "passed"
    figure: str = ""
    seconds: float = 0.0


class Rows:
    """A pytest plugin that keeps a row of every check."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._told(self._row(report.nodeid), report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self._row(report.nodeid)
        row.seconds += report.duration
        if report.when == "call" and report.passed:
            row.figure = "; ".join(str(value) for name, value in report.user_properties if name == "figure")
        elif not report.passed and row.result != "failed":
            self._told(row, report)

    def _row(self, nodeid: str) -> Row:
        return self.rows.setdefault(nodeid, Row(_name(nodeid)))

    def _told(self, row: Row, report: Any) -> None:
        row.result = report.outcome
        row.figure = report.longrepr[2].removeprefix("Skipped: ") if report.skipped else _last_words(report)

    def write(self, file: Path, machine: str) -> None:
        """As JSON."""
        content = {"machine": machine, "rows": [asdict(row) for row in self.rows.values()]}
        file.write_text(json.dumps(content, indent=1) + "\n")

    def show(self, console: Console, machine: str) -> None:
        table = Table(title=machine, title_justify="left")
        for column in ("check", "result", "figure"):
            table.add_column(column, overflow="fold")
        for row in self.rows.values():
            table.add_row(row.check, f"[{STYLES.get(row.result, '')}]{row.result}[/]", row.figure.replace("[", r"\["))
        console.print(table)


def _name(nodeid: str) -> str:
    """`tests/gpu/craft/test_precision.py::test_it_learns[lora-bf16]` as `precision: it learns, lora-bf16`."""
    file, _, test = nodeid.partition("::")
    test, _, case = test.removeprefix("test_").partition("[")
    words = [test.replace("_", " "), case.removesuffix("]")]
    return f"{Path(file).stem.removeprefix('test_').replace('_', ' ')}: {', '.join(filter(None, words))}".removesuffix(": ")


def _last_words(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    words = crash.message if crash else str(report.longrepr)
    return " ".join(words.split())[:300]

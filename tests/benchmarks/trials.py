"""Reads the CSV of `craft-sweeps export` back; prints tables that are made from such records."""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from orchestrator.results.summary import Entry
from orchestrator.review.trials_file import OF_RESULT, OF_TRIAL
from orchestrator.state.entry import TrialResult

Table = Callable[[pd.DataFrame], Iterable[str]]


def read_trials(file: Path) -> list[Entry]:
    """The trials of such a file."""
    with file.open(newline="", encoding="utf-8") as lines:
        return [_entry(row) for row in csv.DictReader(lines)]


def print_tables(description: str | None, tables: Iterable[Table]) -> None:
    """Prints the tables that are made from a record, whose path is the command's argument."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="the CSV file")
    rows = pd.read_csv(parser.parse_args().record)
    for table in tables:
        print("\n".join(table(rows)), end="\n\n")


def _read(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _entry(row: dict[str, str]) -> Entry:
    cells = {name: _read(cell) for name, cell in row.items() if cell}

    def group(prefix: str) -> dict[str, Any]:
        return {name.removeprefix(prefix): value for name, value in cells.items() if name.startswith(prefix)}

    result = TrialResult(
        cells["key"],
        "finished",
        group("metric."),
        group("count."),
        facts=group("fact."),
        **{name: cells[name] for name in OF_RESULT},
    )
    of_trial = {name: cells[name] for name in OF_TRIAL if name in cells or name != "tunes"}
    return Entry(**of_trial, parameters=group("parameter."), result=result, carried=cells.get("carried"))

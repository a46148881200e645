"""Reads the CSV of `craft-sweeps export` back; prints tables that are made from such records."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd

from craft.tasks.files import read_rows
from orchestrator.results.summary import Entry
from orchestrator.review import trials_file

Table = Callable[[pd.DataFrame], Iterable[str]]


def read_trials(file: Path) -> list[Entry]:
    """The trials of such a file."""
    return trials_file.read_trials(read_rows(file))


def print_tables(description: str | None, tables: Iterable[Table]) -> None:
    """Prints the tables that are made from a record, whose path is the command's argument."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="the CSV file")
    rows = pd.read_csv(parser.parse_args().record)
    for table in tables:
        print("\n".join(table(rows)), end="\n\n")

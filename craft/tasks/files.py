"""Files of examples, read with the place of every row, so that an error can point at it.

CSV, TSV, JSONL, JSON (one list of records) and parquet become `Rows`: columns of plain Python values. Every mistake in a file
is a `DataError`, which names the file, the row and what was expected. Only parquet imports a library.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from craft.results import Unavailable

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")


class DataError(ValueError):
    """Data that cannot be used: the message names the file, the row, and what is expected there."""


class DataUnavailable(DataError, Unavailable):
    """Data that cannot be had here now: a file that is not there or cannot be read, a hub that does not answer."""


@dataclass(frozen=True)
class Rows:
    """The rows of one file or hub split as columns of equal length.

    `lines` holds the line of the file on which each row ends, for formats that have lines; rows of others are counted from 1.
    """

    source: str
    columns: dict[str, list[Any]]
    lines: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def place(self, row: int) -> str:
        """Where row `row` (from 0) stands, for an error message."""
        return f"{self.source}, " + (f"line {self.lines[row]}" if self.lines is not None else f"row {row + 1}")

    def column(self, name: str) -> list[Any]:
        """The column called `name`. Raises DataError with the columns that are there."""
        if name not in self.columns:
            raise DataError(f"{self.source} has no column {name!r}; its columns are: {', '.join(self.columns) or 'none'}")
        return self.columns[name]


def read_rows(path: str | Path) -> Rows:
    """The rows of a file, by its suffix. Raises DataError for a malformed or empty file, DataUnavailable for a missing one."""
    path = Path(path).expanduser()
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: files of examples end in {', '.join(SUFFIXES)}")
    if not path.is_file():
        there = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else None
        beside = f"its folder holds: {', '.join(there[:12]) or 'nothing'}" if there is not None else "nor is its folder there"
        raise DataUnavailable(f"no file {path}; {beside}")
    read = {".csv": _read_csv, ".tsv": _read_csv, ".jsonl": _read_jsonl, ".json": _read_json, ".parquet": _read_parquet}
    try:
        rows = read[path.suffix.lower()](path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: byte {error.start} cannot be read ({error.reason})") from error
    except OSError as error:
        raise DataUnavailable(f"{path} cannot be read: {error.strerror or error}") from error
    if not len(rows):
        raise DataError(f"{path} holds no rows; at least one is needed")
    return rows


def _read_csv(path: Path) -> Rows:
    csv.field_size_limit(2**31 - 1)  # of a cell; Python's own limit of 131,072 is for quotes that are never closed
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        try:
            header = next(reader, [])
            twice = sorted({name for name in header if header.count(name) > 1})
            if twice:
                raise DataError(f"{path}, line 1: column {twice[0]!r} is named twice")
            cells: list[list[str]] = []
            lines: list[int] = []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise DataError(f"{path}, line {reader.line_num}: {len(row)} cells where the header names {len(header)}")
                cells.append(row)
                lines.append(reader.line_num)
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: broken CSV ({error})") from error
    return Rows(str(path), {name: [row[at] for row in cells] for at, name in enumerate(header)}, lines)


def _read_jsonl(path: Path) -> Rows:
    records: list[dict[str, Any]] = []
    lines: list[int] = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(_broken(error, path, number)) from error
            if not isinstance(record, dict):
                raise DataError(f"{path}, line {number}: expected an object, found {type(record).__name__}")
            records.append(record)
            lines.append(number)
    return Rows(str(path), _columns(records), lines)


def _broken(error: ValueError | RecursionError, path: Path, line: int | None = None) -> str:
    """What is wrong with the JSON of a file, or of one of its lines."""
    if isinstance(error, UnicodeDecodeError):
        raise error
    if isinstance(error, json.JSONDecodeError):
        return f"{path}, line {line or error.lineno}, column {error.colno}: broken JSON ({error.msg})"
    place = f"{path}, line {line}" if line else str(path)
    if isinstance(error, RecursionError):
        return f"{place}: lists or objects lie in each other too deeply; a record is one object with plain values"
    return f"{place}: a number is too long to be read ({str(error).split(';')[0]})"


def _read_json(path: Path) -> Rows:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(_broken(error, path)) from error
    if not isinstance(content, list):
        raise DataError(f"{path}: expected a list of records, found {type(content).__name__}")
    for number, record in enumerate(content, 1):
        if not isinstance(record, dict):
            raise DataError(f"{path}, record {number}: expected an object, found {type(record).__name__}")
    return Rows(str(path), _columns(content))


def _read_parquet(path: Path) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise DataUnavailable(f"{path} is not a parquet file that can be read: {error}") from error
    return Rows(str(path), {name: table.column(name).to_pylist() for name in table.column_names})


def _columns(records: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    names: Iterable[str] = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}

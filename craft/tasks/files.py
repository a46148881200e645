"""Files of examples, read with the place of every row, so that an error can point at it.

CSV, TSV, JSONL, JSON (a list of records, or lines) and parquet become `Rows`: columns of plain Python values. Every mistake in
a file is a `DataError`, which names the file, the row and what was expected. Rows that cannot be used are named together, or
left out (`Faults`). Only parquet imports a library.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from craft.results import Unavailable
from craft.tasks.encodings import describe_no_text

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
_LIST = re.compile(r"\s*\[\s*(\{|$)")
"""The beginning of a list of records."""
_STRANGE = {
    rb"version https://git-lfs\.github\.com|oid sha256:": "a pointer of Git LFS and not the file; fetch it with git lfs pull",
    rb"/annex/objects/|(\.\./)*\.git/annex/": "a pointer of git-annex and not the file; fetch it with git annex get",
    rb"(?i)(<!--.*?-->\s*|<\?xml[^>]*>\s*)*<(!doctype|html|head|body)\b": "a web page, such as a login or an error; download "
    "the file itself",
    rb"<\?xml": "XML",
    rb"\x1f\x8b|BZh\d|\xfd7zXZ|\x28\xb5\x2f\xfd": "compressed; unpack it",
    rb"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or save it as CSV",
    rb"\xd0\xcf\x11\xe0": "a spreadsheet of Excel; save it as CSV",
    rb"PAR1": "a parquet file; its name must end in .parquet",
}
"""What a file may begin with that is no file of examples -> the end of the sentence on it."""
_DECIMAL = re.compile(r"\d,\d")
_LINE_END = re.compile(r"\r\n|\r|\n")


SHOWN = 5
"""So many mistakes of a kind are shown with their place."""


class DataError(ValueError):
    """Data that cannot be used: the message names the file, the row, and what is expected there."""


class DataUnavailable(DataError, Unavailable):
    """Data that are not available here now: a file that is not there or cannot be read, a hub that does not answer."""


@dataclass(frozen=True)
class Rows:
    """The rows of one file or hub split as columns of equal length.

    `lines` holds the line of the file on which each row ends, for formats that have lines; rows of others are counted from 1.
    `skipped` counts the rows that were left out because they could not be used.
    """

    source: str
    columns: dict[str, list[Any]]
    lines: Sequence[int] | None = None
    skipped: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def place(self, row: int) -> str:
        """Returns the place of row `row` (from 0) for an error message."""
        return f"{self.source}, {'row' if self.lines is None else 'line'} {self.number(row)}"

    def number(self, row: int) -> int:
        """Returns the number by which people find row `row` (from 0): its line, or else its row from 1."""
        return row + 1 if self.lines is None else self.lines[row]

    def column(self, name: str) -> list[Any]:
        if name not in self.columns:
            raise DataError(f"{self.source} has no column {name!r}; its columns are: {', '.join(self.columns) or 'none'}")
        return self.columns[name]


@dataclass
class Faults:
    """The mistakes of a file: they are caught row by row and reported together, or their rows are left out.

    `skip` is None where nothing lets rows be left out, so that no message offers it.
    """

    source: str
    skip: bool | None = None
    found: list[tuple[int, str, str]] = field(default_factory=list)

    @contextmanager
    def catch(self, row: int, kind: str) -> Iterator[None]:
        """Catches a DataError of row `row`; `kind` is what it is counted by, such as a column."""
        try:
            yield
        except DataError as error:
            self.found.append((row, kind, str(error)))

    @property
    def rows(self) -> set[int]:
        return {row for row, _, _ in self.found}

    def report(self, total: int) -> None:
        """Raises DataError with counts and the first mistakes of each kind, unless their rows are left out."""
        if not self.found or self.skip:
            return
        counts, shown = Counter(kind for _, kind, _ in self.found), Counter[str]()
        lines = []
        for _, kind, message in sorted(self.found):
            shown[kind] += 1
            if shown[kind] <= SHOWN:
                lines.append(message)
        if len(self.found) > 1:
            kinds = ", ".join(f"{kind}: {count:,}" for kind, count in counts.items())
            rest = len(self.found) - len(lines)
            lines.append(f"and {rest:,} more." if rest else "")
            lines[-1] += f"{' ' if rest else ''}{len(self.rows):,} of {total:,} rows of {self.source} cannot be used ({kinds})"
        if self.skip is not None:
            lines[-1] += ". Correct the file; or leave such rows out: skip_bad: true next to train, suggest --skip-bad"
        raise DataError("\n".join(lines))

    def without(self, rows: Rows) -> Rows:
        """Returns the rows that have no mistake. Raises DataError if some have one and are not to be left out."""
        self.report(len(rows))
        if not self.found:
            return rows
        left = [row for row in range(len(rows)) if row not in self.rows]
        columns = {name: [cells[row] for row in left] for name, cells in rows.columns.items()}
        lines = None if rows.lines is None else [rows.lines[row] for row in left]
        return Rows(rows.source, columns, lines, rows.skipped + len(self.rows))


def read_rows(path: str | Path, encoding: str | None = None, skip: bool | None = None) -> Rows:
    """Reads a file by its suffix. `skip`: whether to leave out lines that are no rows; None where that and the encoding of a
    text file (UTF-8 if None) cannot be chosen. Raises DataError for a file that is malformed, empty or missing."""
    path = Path(path).expanduser()
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: files of rows end in {', '.join(SUFFIXES)}; save a spreadsheet as CSV")
    if not path.is_file():
        names = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else None
        advice = f"its folder holds: {', '.join(names[:12]) or 'nothing'}" if names is not None else "nor is its folder there"
        raise DataUnavailable(f"no file {path}; {advice}")
    try:
        utf_8 = codecs.lookup(encoding or "utf-8").name == "utf-8"
    except LookupError:
        raise DataError(f"encoding: got {encoding!r}; a name that Python knows: utf-8, cp1252, utf-16, ...") from None
    faults = Faults(str(path), skip)
    try:
        _refuse_strange(path, encoding)
        if path.suffix.lower() == ".parquet":
            rows = _read_parquet(path)
        else:
            read = _read_csv if path.suffix.lower() in (".csv", ".tsv") else _read_json
            rows = read(path, "utf-8-sig" if encoding is None or utf_8 else encoding, faults)
    except UnicodeError as error:
        raise DataError(describe_no_text(path, encoding, skip is not None)) from error
    except OSError as error:
        raise DataUnavailable(f"{path} cannot be read: {error.strerror or error}") from error
    faults.report(len(rows) + len(faults.rows))
    if not len(rows):
        raise DataError(f"{path} holds no rows; at least one is needed")
    return replace(rows, skipped=len(faults.rows))


def _refuse_strange(path: Path, encoding: str | None) -> None:
    """Raises DataError for a file that is of another kind than its name says, UnicodeError for one with zeros."""
    parquet = path.suffix.lower() == ".parquet"
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if encoding is None and b"\0" in start and not parquet:
        raise UnicodeError("zeros are no letters of UTF-8")
    for pattern, sentence in _STRANGE.items():
        if re.match(pattern, start, re.DOTALL) and not (parquet and start.startswith(b"PAR1")):
            raise DataError(f"{path} is {sentence}")


def _read_csv(path: Path, encoding: str, faults: Faults) -> Rows:
    csv.field_size_limit(2**31 - 1)  # of a cell; Python's own limit of 131,072 is for quotes that are never closed
    tabs, line = path.suffix.lower() == ".tsv", 1
    with path.open(encoding=encoding, newline="") as file:
        opening = file.readline()
        # The comma, unless the first line has none and another usual delimiter.
        delimiter = "\t" if tabs else "," if "," in opening else max(",;\t|", key=opening.count)
        file.seek(0)
        # In TSV a quote is a letter.
        reader = csv.reader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL, strict=True)
        try:
            header = next(reader, [])
            while header and not header[-1].strip():  # empty cells that a spreadsheet leaves at the end
                header.pop()
            twice = sorted({name for name in header if header.count(name) > 1})
            if twice:
                raise DataError(f"{path}, line 1: column {twice[0]!r} is named twice")
            cells: list[list[str]] = []
            lines: list[int] = []
            line = reader.line_num + 1
            for row in reader:
                beyond = [cell for cell in row[len(header) :] if cell.strip()]
                if row and (len(row) < len(header) or beyond):
                    ends = f" (the row ends in line {reader.line_num})" if line < reader.line_num else ""
                    message = f"{path}, line {line}: {len(row)} cells where the header names {len(header)}{ends}"
                    faults.found.append((line, "number of cells", message))
                elif row:
                    cells.append(row[: len(header)])
                    lines.append(reader.line_num)
                line = reader.line_num + 1
        except csv.Error as error:
            ends = f" in line {reader.line_num}" if line < reader.line_num else ""
            raise DataError(
                f"{path}, line {line}: broken CSV in the row that begins here ({error}{ends}). A cell that begins with a quote "
                'ends at the next one; write a quote inside of it twice ("")'
            ) from error
    rows = Rows(str(path), {name: [row[at] for row in cells] for at, name in enumerate(header)}, lines)
    _refuse_swallowed(rows, delimiter)
    return rows


def _refuse_swallowed(rows: Rows, delimiter: str) -> None:
    """Raises DataError for a quoted cell that took in the rows after it, because its quote was meant as a letter."""
    columns, lines = list(rows.columns.values()), rows.lines or ()
    several = [(row, at) for at, cells in enumerate(columns) for row, cell in enumerate(cells) if _LINE_END.search(cell)]
    usual = [{cell for cell in cells if not _LINE_END.search(cell)} for cells in columns] if several else []
    fits = [is_number if cells and all(map(is_number, cells)) else cells.__contains__ for cells in usual]
    for row, at in sorted(several):
        cells = [column[row] for column in columns]
        if _swallows(cells, at, delimiter, fits):
            opened, closed = (lines[row] - len(_LINE_END.findall(" ".join(cells[end:]))) for end in (at, at + 1))
            raise DataError(
                f"{rows.source}, line {opened}: the quote that opens column {list(rows.columns)[at]!r} closes in line {closed} "
                "and the lines between are rows of this file. A cell that holds a quote is written in quotes, and each quote "
                'inside of it twice: """so it"" is"'
            )


def _swallows(cells: Sequence[str], at: int, delimiter: str, fits: Sequence[Callable[[str], bool]]) -> bool:
    """Returns whether the cell at `at` holds rows: its lines have as many cells as rows have, which may be an accident, and in
    some column all of them have what other rows have there, such as a label."""
    first, *inner, last = (line.split(delimiter) for line in _LINE_END.split(cells[at]))
    parts = [first, *(line for line in inner if line != [""]), last]
    rows = [[*cells[:at], *first], *parts[1:-1], [*last, *cells[at + 1 :]]]
    decimals = all(_DECIMAL.search(",".join(part)) for part in parts if len(part) > 1)
    if decimals or any(len(row) != len(cells) for row in rows):
        return False
    return any(all(map(fits[column], of_rows)) for column, of_rows in enumerate(zip(*rows, strict=True)) if column != at)


def is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _read_json(path: Path, encoding: str, faults: Faults) -> Rows:
    """Reads a list of records, or a record a line, whichever the file holds."""
    in_lines, records, lines = path.suffix.lower() == ".jsonl", list[dict[str, Any]](), list[int]()
    with path.open(encoding=encoding) as file:
        text = file.read(4096 if in_lines else -1)
        if not _LIST.match(text) and (in_lines or _holds_several(text)):
            file.seek(0)
            for number, line in enumerate(file, 1):
                if line.strip():
                    with faults.catch(number, "broken lines"):
                        records.append(_record(_parse(line, path, number), f"{path}, line {number}"))
                        lines.append(number)
            return Rows(str(path), _columns(records), lines)
        values = _parse(text + file.read(), path)
    if not isinstance(values, list):
        raise DataError(f"{path}: expected a list of records, found {type(values).__name__}")
    for number, value in enumerate(values, 1):
        with faults.catch(number, "broken records"):
            records.append(_record(value, f"{path}, record {number}"))
    return Rows(str(path), _columns(records))


def _holds_several(text: str) -> bool:
    """Returns whether a text has more after the first value of JSON in it."""
    with suppress(ValueError, RecursionError):
        start = text.lstrip()
        return bool(start[json.JSONDecoder().raw_decode(start)[1] :].strip())
    return False


def _record(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{place}: expected an object, found {type(value).__name__}")
    return value


class KeyTwiceError(ValueError):
    """A key that an object of JSON has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise KeyTwiceError(f"the key {name!r} is given twice in one object, so one of its values would be lost")
    return dict(pairs)


def parse_json(text: str) -> Any:
    """Reads JSON in which no object, at any depth, has a key twice. Raises ValueError."""
    return json.loads(text, object_pairs_hook=_object)


def _place_in_list(text: str) -> int:
    """Finds the line on which the first record begins that has a key twice."""
    decoder, at = json.JSONDecoder(object_pairs_hook=_object), text.index("[") + 1
    with suppress(KeyTwiceError):
        while True:
            at += len(text[at:]) - len(text[at:].lstrip(", \t\r\n"))
            at = decoder.raw_decode(text, at)[1]
    return text.count("\n", 0, at) + 1


def _parse(text: str, path: Path, line: int | None = None) -> Any:
    """Reads the JSON of a file, or of one of its lines. Raises DataError."""
    place = f"{path}, line {line}" if line else str(path)
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {line or error.lineno}, column {error.colno}: broken JSON ({error.msg})") from error
    except KeyTwiceError as error:
        line = line or (_place_in_list(text) if _LIST.match(text) else 1)
        raise DataError(f"{path}, line {line}: {error}") from error
    except RecursionError as error:
        raise DataError(f"{place}: lists or objects are nested too deeply; a record is one object with plain values") from error
    except ValueError as error:
        raise DataError(f"{place}: a number is too long to be read ({str(error).split(';')[0]})") from error


def _read_parquet(path: Path) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise DataUnavailable(f"{path} is not a parquet file that can be read: {error}") from error
    if twice := [name for name in table.column_names if table.column_names.count(name) > 1]:
        raise DataError(f"{path}: column {twice[0]!r} is named twice")
    columns: dict[str, list[Any]] = {}
    for name in table.column_names:
        with explain_column(path, name):
            columns[name] = table.column(name).to_pylist()
    return Rows(str(path), columns)


@contextmanager
def explain_column(source: object, name: str) -> Iterator[None]:
    """Turns the errors of a column that Python has no values for, such as times after the year 9999, into a DataError."""
    try:
        yield
    except (OverflowError, ValueError) as error:
        raise DataError(f"{source}: column {name!r} cannot be read ({error}). Take it out, or store it as text") from error


def _columns(records: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    names: Iterable[str] = dict.fromkeys(name for record in records for name in record)
    return {name: [record.get(name) for record in records] for name in names}

"""Rows as published -> a `Dataset` with the columns `text`, `text_pair` and `label`, every cell checked on the way.

All tasks that are scored by a head go through here, so a bad cell is found before any training, with its file and row.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from unicodedata import category, normalize

from craft.tasks.files import DataError, Faults, Rows, is_number

if TYPE_CHECKING:
    from datasets import Dataset

    from craft.tasks.task import Task

T = TypeVar("T")
ROW = "row"
_MISSING = ("", "-", "--", "nan", "nat", "null", "n/a", "<na>", "#n/a")
_WHOLE = re.compile(r"-?(0|[1-9]\d*)\.0+")
_SEVERAL = re.compile(r"""\[\s*((['"]).*\2|[-+\d.,\s]*)\s*\]|\{\s*(['"\d].*)?\}|\((['"\d].*)?,.*\)|b(['"]).*\5""", re.DOTALL)
"""A list, a vector, an object, a tuple or bytes, as a table writes them into a cell of text."""
_OUTER_BLANKS = re.compile(r"(?<!\w) | (?!\w)")
_FOLDED = 100_000
"""The letters of a text that are folded; texts that differ beyond are different."""
_LARGEST = 3.4028234e38
"""The largest number in float32."""


def to_dataset(rows: Rows, task: Task, *, positions: bool = True, empty: bool = True) -> Dataset:
    """Checks a task's columns and makes a dataset of them in memory: `text` (and `text_pair`), `label` (int64 for classes,
    float32 for regression) and `row`.

    With `positions` a label cell may hold a class's number instead of its name; with `empty` a text may be empty.
    """
    from datasets import Dataset, Features, Value

    names = zip(("text", "text_pair"), task.text, strict=False)
    columns: dict[str, list[Any]]
    columns = {name: read_cells(rows, column, partial(read_text, empty=empty)) for name, column in names}
    if task.labels:
        columns["label"] = read_cells(rows, task.label, partial(class_index, labels=task.labels, positions=positions))
    else:
        columns["label"] = read_cells(rows, task.label, partial(read_number, span=task.span))
    if not len(rows):
        raise DataError(f"{rows.source} holds no rows; at least one is needed")
    kinds = {name: Value("string") for name in columns} | {"label": Value("int64" if task.labels else "float32")}
    return numbered(Dataset.from_dict(columns, features=Features(kinds)), map(rows.number, range(len(rows))))


def read_cells(rows: Rows, column: str, read: Callable[[Any], T], faults: Faults | None = None) -> list[T]:
    """Reads the cells of a column. An error of `read` gets its place: it is raised, or noted where `faults` are collected."""
    values = []
    for row, cell in enumerate(rows.column(column)):
        try:
            values.append(read(cell))
        except DataError as error:
            message = f"{rows.place(row)}: column {column!r} {error}"
            if faults is None:
                raise DataError(message) from error
            faults.found.append((row, f"column {column!r}", message))
    return values


def numbered(split: Dataset, numbers: Iterable[int] | None = None) -> Dataset:
    """Adds the column `row`, the numbers by which people find rows (`Rows.number`), to a split that has none."""
    if ROW in split.column_names:
        return split
    return split.add_column(ROW, list(range(1, len(split) + 1) if numbers is None else numbers))


def class_index(cell: Any, labels: Sequence[str], positions: bool) -> int:
    """Finds the place of a label in `labels`: by name, or with `positions` as a number. Raises DataError.

    Where a name is a number itself, a number is never a position: label 1 of a file may be the second or the third class.
    """
    name = cell.strip() if isinstance(cell, str) and cell.strip() in labels else read_label(cell)
    if name in labels:
        return labels.index(name)
    positions = positions and not any(is_number(label) for label in labels)
    if positions and name in (places := [str(at) for at in range(len(labels))]):
        return places.index(name)
    allowed = ", ".join(f"{at} ({label})" if positions else label for at, label in enumerate(labels))
    read = "" if positions else " (the labels of the training file, or those under `labels`)"
    raise _refusal(cell, f"allowed are: {allowed}{read}")


def read_label(cell: Any) -> str:
    """Reads the name in a label cell. Raises DataError for a cell that holds none, or several."""
    name = label_name(cell)
    refuse_half_characters(str(cell))
    several = isinstance(cell, list | tuple | dict | bytes) or (isinstance(cell, str) and _SEVERAL.fullmatch(cell.strip()))
    if name is not None and not several:
        return name
    advice = ""
    if several:
        advice = ", one for each row. Give the row a name for the combination, or write a row for each label"
    elif cell is not None and str(cell).strip():
        advice = f". If {cell} is a class and no missing value, name all classes under `labels`"
    raise _refusal(cell, f"a label is expected{advice}")


def label_name(cell: Any) -> str | None:
    """Writes a label cell as text: 1, 1.0, "1" and "1.0" are one label; "01" is a code. None for words of a missing value."""
    if type(cell) is int:
        return str(cell)
    name = "" if cell is None else str(int(cell) if isinstance(cell, float) and cell.is_integer() else cell).strip()
    if _WHOLE.fullmatch(name):
        name = "0" if name.startswith("-0.") else name.partition(".")[0]
    return None if name in ("None", "NA") or name.lower() in _MISSING else name


def read_text(cell: Any, empty: bool = False) -> str:
    """Raises DataError for a cell that is no text, or, unless it may be `empty`, has no letter that is seen."""
    if not isinstance(cell, str):
        raise _refusal(cell, "text is expected")
    refuse_half_characters(cell)
    if not empty and is_blank(cell):
        raise _refusal(cell, "text is expected, and this cell is empty")
    return cell


def refuse_half_characters(text: str) -> None:
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError("holds half a surrogate pair, which is no character")


def is_blank(text: str) -> bool:
    """Returns whether `text` is empty, or has only blanks and marks of width zero."""
    return all(category(letter) in ("Cc", "Cf", "Zs", "Zl", "Zp") for letter in text)


def fold(text: str) -> str:
    """Removes what many tokenizers drop: case, accents, forms of Unicode, marks of width zero, blanks but between words."""
    start, tail = text[:_FOLDED], text[_FOLDED:]
    if not start.isascii():
        start = "".join(letter for letter in normalize("NFKD", start) if category(letter) not in ("Mn", "Cf"))
    return _OUTER_BLANKS.sub("", " ".join(start.casefold().split())) + tail


def fingerprint(splits: Iterable[Dataset]) -> str:
    """Computes the SHA-256 of every row of `splits`, in order, which is the same for equal data on any machine."""
    digest = hashlib.sha256()
    for split in splits:
        names = [name for name in split.column_names if name != ROW]  # a blank line more does not change the data
        digest.update(json.dumps([len(split), names]).encode())
        cells = [split[name][:] for name in names]  # whole columns: row by row takes ten times as long
        for row in zip(*cells, strict=True):
            digest.update(json.dumps(row, ensure_ascii=False).encode())
    return digest.hexdigest()


def read_number(cell: Any, span: tuple[float, float] | None = None) -> float:
    """Reads the number of a regression's label. Raises DataError for a cell that holds none, or one out of `span`."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.nan
    except OverflowError:
        value = math.inf
    in_digits = not isinstance(cell, float) and any(map(str.isdecimal, _shown(cell)))
    if isinstance(cell, bool | bytes) or math.isnan(value) or (math.isinf(value) and not in_digits):
        raise _refusal(cell, "a finite number is expected")
    if abs(value) > _LARGEST:
        limit = f"a model computes in float32, which holds numbers up to {_LARGEST:.1e}"
        raise _refusal(cell, f"{limit}. Divide the column, or take its logarithm")
    if span is not None and not span[0] <= value <= span[1]:
        raise _refusal(cell, f"allowed is {span[0]:g} to {span[1]:g}")
    return value


def _refusal(cell: Any, expected: str) -> DataError:
    return DataError(f"holds {_shown(cell)}; {expected}")


def _shown(cell: Any) -> str:
    text = "nothing" if cell is None else repr(cell)
    return text if len(text) <= 60 else text[:57] + "..."

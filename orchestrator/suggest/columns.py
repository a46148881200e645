"""What a file of examples is for: its columns of text, its label, and the kind of task that they make.

a list of turns                                  generation from chats
no label, but prompt and response by their names generation from pairs
numbers that are no class codes                  regression
sentences, nearly all different                  generation: the label is an answer
anything else                                    classification; two columns of text make pairs
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any, get_args

from craft.settings import CustomTask
from craft.tasks.chats import OPTIONS
from craft.tasks.files import DataError, Rows, is_number, read_rows
from craft.tasks.rows import label_name
from craft.tasks.task import Kind
from craft.words import list_some

ANSWERED = (("prompt", "response"), ("prompt", "completion"), ("question", "answer"), ("instruction", "output"))
"""Names of two columns that are a prompt and its response."""
INPUT = "input"
"""The column of Alpaca's files that continues an instruction."""
CODES = 20
"""So many whole numbers may be classes in any order; of more, those that count from 0 or 1."""
NUMBERS = 0.95
"""From this share of numbers on, a label is a number, and other cells are mistakes."""
COMMAS = re.compile(r"-?\d+(,\d+)?")
FREE = 0.5
"""From this share of different cells on, a column of sentences holds texts and no classes."""
REPEATED, TELLS = 0.8, 0.98
"""A column tells the label if this share of its cells repeats, and of these cells this share has its value's usual label."""


def read_task(
    data: str,
    label: str | None,
    text: Sequence[str] | None = None,
    validation: str | None = None,
    kind: str | None = None,
    encoding: str | None = None,
    skip_bad: bool = False,
) -> tuple[CustomTask, list[str]]:
    """Reads what the file asks for.

    Args:
        label: the column to predict; only files of chats or of prompts and responses need none.
        kind: classification, regression or generation, where the file's cells would say another.
    """
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(f"kind: got {kind!r}; allowed are: {', '.join(get_args(Kind))}")
    rows, notes = read_rows(data, encoding, skip_bad), list[str]()
    columns = columns_of(rows, label, tuple(text or ()), kind, notes)
    files = {"train": data, "validation": validation, "encoding": encoding, "skip_bad": skip_bad}
    return CustomTask.model_validate(files | columns), notes


def columns_of(
    rows: Rows, label: str | None, text: tuple[str, ...], kind: str | None = None, notes: list[str] | None = None
) -> dict[str, Any]:
    """Returns the settings of the task that name its kind and columns; adds sentences on a choice to `notes`."""
    if len(text) > 2:
        raise DataError(f"text: {', '.join(text)}: a model reads one column, or two as a pair; join the others in the file")
    if label is None:
        return {"kind": "generation"} | _answers(rows, text)
    cells = rows.column(label)
    if any(isinstance(cell, list) for cell in cells):
        return {"kind": "generation", "messages": label}
    kind = kind or kind_of(cells)
    notes = [] if notes is None else notes
    for column in text:
        if example := _tells(rows.column(column), cells):
            notes.append(f"Warning: column {column} tells the label: each of its values has one label ({example})")
    text = text or _texts(rows, label, notes)
    if label in text:
        raise DataError(f"text: {label} is the label; a model that reads it has nothing to predict")
    if kind == "generation":
        return {"kind": kind, "prompt": list(text), "response": label}
    return {"text": list(text), "label": label} | ({"kind": kind} if kind != "classification" else {})


def kind_of(cells: Sequence[Any]) -> str:
    """Returns the kind of task of a label's cells. Raises DataError for numbers with decimal commas."""
    names = [name for cell in cells if (name := label_name(cell)) is not None]
    numbers, different = [*filter(is_number, names)], {*names}
    if numbers and len(numbers) >= NUMBERS * len(names):
        return "classification" if len({*numbers}) < 3 or _are_codes({*numbers}, len(numbers)) else "regression"
    if commas := all(map(COMMAS.fullmatch, names)) and [name for name in names if "," in name]:
        raise DataError(f"label: {commas[0]!r} has a decimal comma; write points, or give --kind classification for classes")
    sentences = names and median(len(name.split()) for name in names) >= 3
    return "generation" if sentences and len(different) > FREE * len(names) else "classification"


def _are_codes(different: Collection[str], rows: int) -> bool:
    """Returns whether the numbers are codes (of classes or rows): codes are no scale, so no target for regression."""
    values = sorted(map(float, different))
    if not all(value.is_integer() for value in values):
        return False
    counted = values[0] in (0, 1) and values[-1] - values[0] == len(values) - 1
    return counted or len(values) <= CODES or len(values) == rows


def _answers(rows: Rows, text: tuple[str, ...]) -> dict[str, Any]:
    for name, cells in rows.columns.items():
        if name not in OPTIONS and all(isinstance(cell, list) and cell and isinstance(cell[0], Mapping) for cell in cells):
            return {"messages": name}
    for prompt, response in ANSWERED:
        if prompt in rows.columns and response in rows.columns:
            prompts = [prompt, INPUT] if prompt == "instruction" and INPUT in rows.columns else [prompt]
            return {"prompt": [*(text or prompts)], "response": response}
    raise DataError(
        f"{rows.source}: label: name the column to predict; the columns are: {', '.join(rows.columns)}. Chats, and columns "
        f"such as {' and '.join(ANSWERED[0])}, need none"
    )


def _texts(rows: Rows, label: str, notes: list[str]) -> tuple[str, ...]:
    """Finds the columns of text: most of their cells have several words, and they do not tell the label."""
    worded = [name for name, cells in rows.columns.items() if name != label and sum(map(_is_text, cells)) > FREE * len(cells)]
    answers = {name: example for name in worded if (example := _tells(rows.column(name), rows.column(label)))}
    texts = [name for name in worded if name not in answers]
    for name, example in answers.items():
        notes.append(
            f"Left out: column {name}, because it tells the label: each of its values has one label ({example}). "
            f"If it is there before the label is, give it by --text {name}"
        )
    if len(texts) == 2:
        notes.append(
            f"A choice: {texts[0]} and {texts[1]} are read as a pair, because both have several words. "
            f"To read one of them alone: --text {texts[0]}"
        )
    if len(texts) in (1, 2):
        return tuple(texts)
    seen = f"{', '.join(texts)} look like texts" if texts else "no column looks like text"
    seen += "".join(f"; {name} tells the label ({example}) and is left out" for name, example in answers.items())
    raise DataError(f"{rows.source}: text: name the column that the model reads, or two for a pair: {seen}; all columns: "
                    f"{', '.join(rows.columns)}")  # fmt: skip


def _tells(cells: Sequence[Any], labels: Sequence[Any]) -> str:
    """Returns values of a column with the one label that each of them has; empty if the column does not tell the label."""
    of_value: dict[str, Counter[str | None]] = {}
    for cell, label in zip(cells, labels, strict=True):
        if isinstance(cell, str) and cell.strip():
            of_value.setdefault(cell.strip().casefold(), Counter())[label_name(label)] += 1
    repeated = {value: counts for value, counts in of_value.items() if counts.total() > 1}
    rows, every = sum(counts.total() for counts in repeated.values()), sum(counts.total() for counts in of_value.values())
    usual = {value: counts.most_common(1)[0] for value, counts in repeated.items()}
    told = rows >= REPEATED * every and sum(count for _, count in usual.values()) >= TELLS * rows
    if not told or len({label for label, _ in usual.values()}) < 2:
        return ""
    return list_some([f"{value[:40]!r}: {label}" for value, (label, _) in usual.items()], 3)


def _is_text(cell: Any) -> bool:
    return isinstance(cell, str) and len(cell.split()) > 1 and any(map(str.isalpha, cell))

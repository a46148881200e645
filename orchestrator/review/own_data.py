"""What a reader should know of a task's rows before anything trains on them: classes, doubts about labels, skipped rows, and
how a tokenizer reads the texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np

from craft.settings import CustomTask, GenerationSettings
from craft.tasks import chats
from craft.tasks.custom import count_classes, usable_rows
from craft.tasks.files import is_number
from craft.tasks.rows import is_blank
from craft.tasks.splits import Splits, take_sample
from craft.tasks.task import Task
from craft.words import list_some, printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST = 2**16
"""Tokens of a text that are counted, at most."""
_FEW, _SHOWN = 5, 12
_SAMPLE, _MOST_ROWS = 1000, 50_000


def unread_columns(settings: CustomTask) -> tuple[str, ...]:
    options = chats.OPTIONS if settings.messages else ()
    used = {*settings.text, settings.label, *settings.prompt, settings.response, settings.messages, *options}
    return tuple(name for name in usable_rows(settings, settings.train).columns if name not in used)


def describe_skipped(settings: CustomTask) -> Iterator[str]:
    """Says how many rows of each file are left out under `skip_bad`."""
    for part in settings.parts:
        rows = usable_rows(settings, part)
        if rows.skipped:
            total = len(rows) + rows.skipped
            yield f"{rows.skipped:,} of {total:,} rows of {rows.source} are left out, because they cannot be used"


def describe_classes(task: Task, settings: CustomTask) -> Iterator[str]:
    """Says how many rows of the training file each class has; then yields a line for each doubt about the labels."""
    counts, spellings = count_classes(settings), dict[str | Decimal, list[str]]()
    positive = f"; f1 is of the class {task.labels[task.positive]!r}" if len(counts) == 2 else ""
    yield f"{len(counts)} classes: {_listed(counts)}{positive}"
    for name in counts:
        spellings.setdefault(_plain(name), []).append(name)
    for names in spellings.values():
        if len(names) > 1:
            yield f"{' and '.join(map(repr, names))} are different classes here: correct the labels if they should be one"
    if rare := {name: count for name, count in counts.items() if count < _FEW}:
        yield f"of fewer than {_FEW} rows, too few to learn and score: {_listed(rare)}"
    for name in counts:
        parts = [part.strip() for part in re.split(r"[,;|/+&]", name)]
        if len(parts) > 1 and counts.keys() >= {*parts}:
            yield f"{name!r} joins other classes ({', '.join(parts)}): a classification has one label a row"
        if _plain(name) in ("none", "missing"):
            yield f"class {name!r}: leave these rows out if it says that there is no label"


def _plain(name: str) -> str | Decimal:
    """Removes what may differ between spellings of a word or a number: blanks, case, forms of Unicode, zeros."""
    letters = "".join(letter for letter in unicodedata.normalize("NFKC", name).casefold() if not is_blank(letter))
    with suppress(InvalidOperation):  # Decimal compares all digits; a float has 16 of them
        return Decimal(letters) if is_number(letters) else letters
    return letters


def _listed(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: -item[1])
    return list_some([f"{printable(name)} {count}" for name, count in most], _SHOWN)


def token_lengths(task: Task, rows: Any, tokenizer: PreTrainedTokenizerBase, settings: GenerationSettings) -> np.ndarray:
    """Counts the tokens that a model would read of each of some training rows if no more than `LONGEST` were cut, (n,)."""
    from craft.scoring.encoding import encode_split, encode_texts

    if task.kind != "generation":
        return encode_split(rows, task.kind, tokenizer, LONGEST).lengths
    assert task.form is not None
    key, form = (tokenizer.name_or_path, rows._fingerprint), task.form(tokenizer, settings)
    return encode_texts(rows, tokenizer, settings, LONGEST, key=key, form=form).lengths


def doubt_reading(task: Task, splits: Splits, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[str]:
    """Describes how the tokenizer reads the rows: all of a file of some size, a sample of the training rows of a larger one,
    for unknown tokens alone."""
    from craft.scoring.encoding import describe_reading, describe_unknown, encode

    if task.kind == "generation":
        responses = [str(cell) for cell in take_sample(splits.train, _SAMPLE)["response"]]
        ids = tokenizer(responses, add_special_tokens=False)["input_ids"]
        return [*describe_unknown(np.concatenate([np.asarray(row, dtype=np.int64) for row in ids]), tokenizer)]
    if len(splits.train) > _MOST_ROWS:
        splits = replace(splits, train=take_sample(splits.train, _SAMPLE), reported={}, search=take_sample(splits.search, 1))
    key = "doubts", tokenizer.name_or_path, len(splits.train), len(splits.reported)
    return [*describe_reading(splits, encode(splits, task, tokenizer, max_length, key=key), tokenizer)]

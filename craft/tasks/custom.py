"""Tasks made of the user's own files: a row of TASKS from a `data.custom` block of the sweep file.

    data:
      custom:
        tickets: {train: tickets.csv, text: [subject, body], label: queue, metric: macro_f1}
        helpdesk: {kind: generation, train: chat.jsonl, prompt: question, response: answer}     (craft.tasks.chats)
    tasks: [custom/tickets]

The training file is opened when the row is made, because the number of classes decides the size of the head: a missing file
or column is thus found while the sweep file is checked. Without a validation file a seeded share of the training rows is what
gets reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from craft.settings import CustomTask, DataSettings, GenerationSettings, HubSplit
from craft.tasks import chats
from craft.tasks.chats import ChatForm, check_chats, control_tokens
from craft.tasks.files import DataError, Faults, Rows, read_rows
from craft.tasks.hub_splits import file_stamp, read_split
from craft.tasks.rows import (
    class_index,
    fingerprint,
    fold,
    label_name,
    read_cells,
    read_label,
    read_number,
    read_text,
    to_dataset,
)
from craft.tasks.task import RawData, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REPORTED_SHARE = 0.1
_REPORTED_SEED = 20260118  # not the search split's: the two cuts must be drawn apart
_MOST_CLASSES, _MOST_ANSWERS = 1000, 32
_NAMES = 10
"""So many labels, each of one row, are names of rows and no classes."""


def row(name: str, settings: CustomTask) -> Task:
    return _row(name, settings, *map(file_stamp, settings.parts))  # the stamps are part of the cache's key


@lru_cache(maxsize=64)
def _row(name: str, settings: CustomTask, *_stamps: tuple[int, int] | None) -> Task:
    from craft.tasks.metrics import CLOZE, METRICS

    usable_rows(settings, settings.train)
    in_words = settings.kind == "generation"
    classes = count_classes(settings) if settings.kind == "classification" else {}
    usual = tuple(metric for metric, scores in METRICS.items() if scores.fits(settings.kind, len(classes)))
    metric = settings.metric or usual[0]
    if metric not in usual:
        unknown = "" if metric in METRICS else "unknown "
        raise ValueError(f"data.custom.{name}.metric: {unknown}metric {metric!r} does not fit; allowed are: {', '.join(usual)}")
    if (package := METRICS[metric].package) and find_spec(package) is None:
        raise ValueError(f"data.custom.{name}.metric: {metric} is computed by {package}: pip install 'craft-sweeps[{metric}]'")
    positive, train = _positive(name, settings, classes), settings.train
    source = Path(train).name if isinstance(train, str) else train.path
    return Task(
        f"custom/{name}", f"{name} ({source})", settings.kind, settings.text, settings.label or "", tuple(classes), usual,
        metric, load, groups=chats.same_opening if in_words else None,
        meaning=chats.meaning if in_words else fold, positive=positive,
        form=partial(ChatForm, answers=_answers(settings) if metric == CLOZE else ()) if in_words else None,
    )  # fmt: skip


def _answers(settings: CustomTask) -> tuple[str, ...]:
    """Returns the different answers of the files, among which the metric `cloze` chooses."""
    if settings.response is None:
        raise ValueError("the metric cloze compares the answers of a column: give the columns prompt and response")
    parts = settings.parts
    places = " and ".join(map(str, parts))
    answers = sorted({answer for part in parts for answer in usable_rows(settings, part).column(settings.response)})
    if not 2 <= len(answers) <= _MOST_ANSWERS:
        raise ValueError(
            f"the metric cloze compares 2 to {_MOST_ANSWERS} answers, and {settings.response} of {places} has "
            f"{len(answers):,} different ones: take likelihood or exact_match"
        )
    return tuple(answers)


def load(task: Task, data: DataSettings) -> RawData:
    """Reads the user's rows and checks every cell. Raises DataError with file, row and column."""
    from craft.tasks.splits import groups_of, set_apart

    settings = data.own(task.name)
    assert settings is not None, "its row is made of these"
    parts = settings.parts
    tables = [usable_rows(settings, part) for part in parts]
    if task.kind == "generation":
        splits = [chats.to_dataset(table, settings) for table in tables]
    else:
        splits = [to_dataset(table, task, positions=settings.labels is not None, empty=False) for table in tables]
    digest = fingerprint(splits)
    if settings.validation is None:
        share, rows = settings.reported or _REPORTED_SHARE, splits[0]
        splits = list(set_apart(task, rows, share, _REPORTED_SEED, groups_of(task, rows), "reported"))
    return RawData(
        splits[0], {"": splits[1]}, digest, tuple(Path(part).expanduser() for part in parts if isinstance(part, str))
    )


def count_classes(settings: CustomTask) -> dict[str, int]:
    """Counts the training rows of each class, in the order of the classes. Raises DataError for labels that are no classes."""
    assert settings.label is not None, "checked with the settings"
    rows = usable_rows(settings, settings.train)
    if settings.labels is not None:
        names = _named_labels(settings.labels)
        numbers = Counter(read_cells(rows, settings.label, partial(class_index, labels=names, positions=True)))
        return {name: numbers[number] for number, name in enumerate(names)}
    counts = Counter(read_cells(rows, settings.label, read_label))
    place, scale = f"{rows.source}: column {settings.label!r} holds", "For numbers on a scale set kind: regression"
    if len(counts) == len(rows) >= _NAMES:
        raise DataError(f"{place} {len(counts)} different labels in {len(rows)} rows: is it the label? {scale}")
    if not 2 <= len(counts) <= _MOST_CLASSES:
        raise DataError(f"{place} {len(counts)} different labels; classification needs 2 to {_MOST_CLASSES}. {scale}")
    try:
        order = sorted(sorted(counts), key=int)
    except ValueError:
        order = sorted(counts)
    return {name: counts[name] for name in order}


def _named_labels(names: Sequence[str]) -> tuple[str, ...]:
    labels = tuple(label_name(name) or name for name in names)
    if len(labels) < 2 or len(set(labels)) < len(labels):
        raise DataError(f"labels: {', '.join(labels)}: two or more different names are needed")
    return labels


def _positive(name: str, settings: CustomTask, classes: Mapping[str, int]) -> int:
    """Returns the number of the class that metrics of one class score: that of the settings, or the rarer of two."""
    labels, counts = [*classes], [*classes.values()]
    if settings.positive is None:
        return int(len(counts) != 2 or counts[1] <= counts[0])
    label = label_name(settings.positive)
    if len(labels) != 2 or label not in labels:
        allowed = (
            f"allowed are: {', '.join(labels)}" if len(labels) == 2 else f"it is for two classes, and here are {len(labels)}"
        )
        raise ValueError(f"data.custom.{name}.positive: got {settings.positive!r}; {allowed}")
    return labels.index(label)


def check_texts(task: CustomTask, tokenizer: PreTrainedTokenizerBase, settings: GenerationSettings) -> None:
    """Checks that the tokenizer reads the texts of the files as texts. Raises DataError with the place of a control token, or
    of instructions that it would not read as they are."""
    form, tokens = ChatForm(tokenizer, settings), control_tokens(tokenizer)
    for part in task.parts:
        rows = usable_rows(task, part)
        if task.kind == "generation":
            check_chats(rows, task, form)
        for column in task.text:
            hits = [(row, match[0]) for row, cell in enumerate(rows.column(column)) if (match := tokens.search(str(cell)))]
            if hits:
                more = f", as do {len(hits) - 1} more rows" if hits[1:] else ""
                raise DataError(
                    f"{rows.place(hits[0][0])}: column {column!r} holds {hits[0][1]!r}{more}; the tokenizer reads it as a "
                    "control token and not as text: take it out, or write it in another way"
                )


def usable_rows(settings: CustomTask, part: str | HubSplit) -> Rows:
    """Reads one of the task's files and checks each cell that the task uses. Raises DataError that names all cells that cannot
    be used; under `skip_bad` their rows are left out."""
    return _usable(settings, part, file_stamp(settings.train), file_stamp(part))


@lru_cache(maxsize=8)
def _usable(settings: CustomTask, part: str | HubSplit, *_stamps: tuple[int, int] | None) -> Rows:
    rows = read_rows(part, settings.encoding, settings.skip_bad) if isinstance(part, str) else read_split(part)
    faults, readers = Faults(rows.source, settings.skip_bad), dict[str, Callable[[Any], Any]]()
    if settings.messages is not None:
        rows.column(settings.messages)
        for row in range(len(rows)):
            with faults.catch(row, f"column {settings.messages!r}"):
                list(chats.read_row(rows, settings, row))
    elif settings.response is not None:
        readers = dict.fromkeys((*settings.prompt, settings.response), read_text)
        readers |= dict.fromkeys(settings.prompt[1:], lambda cell: cell is None or read_text(cell, empty=True))
    elif settings.label is not None:
        labels = _named_labels(settings.labels) if settings.labels is not None else ()
        if settings.kind == "classification" and settings.labels is None and part != settings.train:
            labels = tuple(count_classes(settings))
        readers = dict.fromkeys(settings.text, read_text)
        readers[settings.label] = read_number if settings.kind == "regression" else read_label
        if labels and settings.kind == "classification":
            readers[settings.label] = partial(class_index, labels=labels, positions=settings.labels is not None)
    for column, read in readers.items():
        read_cells(rows, column, read, faults)
    return faults.without(rows)

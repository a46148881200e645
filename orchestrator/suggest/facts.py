"""What a sweep file rests on: facts of the rows, of the model and of this machine (trainings at once, batch, speed).

What a file of examples is for follows from its columns of text and its label:

a list of turns                                  generation from chats
no label, but prompt and response by their names generation from pairs
numbers that are no class codes                  regression
sentences, nearly all different                  generation: the label is an answer
anything else                                    classification; two columns of text make pairs
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, get_args

from craft.settings import CustomTask, DataSettings, TrainingSettings
from craft.spec import RunSpec
from craft.tasks import custom, find_task
from craft.tasks.chats import OPTIONS
from craft.tasks.files import DataError, Rows, is_number, read_rows
from craft.tasks.rows import label_name
from craft.tasks.splits import Splits, load_splits, take_sample
from craft.tasks.task import Kind, Task
from craft.words import format_bytes, list_some
from orchestrator.plan.ways import CONTEXT_BYTES, fit_batches, usable_gpus
from orchestrator.record.manifest import cores
from orchestrator.review.own_data import describe_classes, describe_skipped, doubt_reading, token_lengths, unread_columns

if TYPE_CHECKING:
    from datasets import Dataset

    from craft.trainer.probe import Speed


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
    tells = rows >= REPEATED * every and sum(count for _, count in usual.values()) >= TELLS * rows
    if not tells or len({label for label, _ in usual.values()}) < 2:
        return ""
    return list_some([f"{value[:40]!r}: {label}" for value, (label, _) in usual.items()], 3)


def _is_text(cell: Any) -> bool:
    return isinstance(cell, str) and len(cell.split()) > 1 and any(map(str.isalpha, cell))


SAMPLE = 1000
CUT = 2.0
"""The percentage of inputs that `max_length` may cut."""
SKEWED = 0.75
"""From this share of the largest class on, accuracy says little of the other classes."""
ENOUGH_REPORTED, MOST_REPORTED = 1000, 0.25
ENOUGH_SEARCH, MOST_SEARCH = 100, 0.15


@dataclass(frozen=True)
class DataFacts:
    """Facts of the rows.

    Attributes:
        custom_task: the task's settings, with its metric and the share of reported rows.
        train, search, reported: rows of each split.
        classes: rows of each class of the training file; none for other kinds.
        lengths: tokens of an input: median, 98th percentile, most.
        max_length: tokens that cut at most `CUT` % of the inputs, and no more than the model takes.
    """

    name: str
    custom_task: CustomTask
    kind: Kind
    train: int
    search: int
    search_fraction: float
    reported: int
    classes: Mapping[str, int]
    lengths: tuple[int, int, int]
    max_length: int
    doubts: tuple[str, ...]
    unread: tuple[str, ...]
    choices: tuple[str, ...]

    @property
    def settings(self) -> DataSettings:
        return DataSettings(custom={self.name: self.custom_task}, search_fraction=self.search_fraction)


@dataclass(frozen=True)
class ModelFacts:
    """Facts of the base model: `least` is the smallest side of q, k, v and o."""

    layers: int
    hidden: int
    parameters: int
    projections: tuple[str, ...]
    least: int


def describe_data(name: str, custom_task: CustomTask, model: str, choices: Sequence[str] = ()) -> DataFacts:
    """Reads the rows as the sweep's trials will. Raises ValueError for a mistake in them."""
    task = find_task(f"custom/{name}", DataSettings(custom={name: custom_task}))
    raw = task.load(task, DataSettings(custom={name: custom_task}))
    classes = custom.count_classes(custom_task) if task.labels else {}
    file = [raw.train, *(raw.reported.values() if custom_task.validation is None else ())]
    rows, changes = sum(map(len, file)), dict[str, Any]()
    if classes and max(classes.values()) > SKEWED * sum(classes.values()):
        changes["metric"] = "macro_f1"
    if custom_task.validation is None:
        changes["reported"] = share = _share(rows, ENOUGH_REPORTED, MOST_REPORTED)
        rows -= round(share * rows)
    custom_task, fraction = custom_task.model_copy(update=changes), _share(rows, ENOUGH_SEARCH, MOST_SEARCH)
    data = DataSettings(custom={name: custom_task}, search_fraction=fraction)
    task = find_task(f"custom/{name}", data)
    splits = load_splits(task, data)
    lengths, max_length, texts = _read_tokens(task, data, splits, model)
    labels = [*[*describe_classes(task, custom_task)][1:], *_contradictions(file)] if task.labels else []
    doubts = (*describe_skipped(custom_task), *labels, *splits.notes, *texts)
    return DataFacts(
        name, custom_task, task.kind, len(splits.train), len(splits.search), fraction,
        sum(map(len, splits.reported.values())), classes, lengths, max_length, doubts,
        unread_columns(custom_task), tuple(choices),
    )  # fmt: skip


def _contradictions(file: Sequence[Dataset]) -> Iterator[str]:
    labels: dict[tuple[str, ...], list[int]] = {}
    for part in file:
        texts = [part[name][:] for name in ("text", "text_pair") if name in part.column_names]
        for *cells, label in zip(*texts, part["label"][:], strict=True):
            labels.setdefault(tuple(map(str.strip, cells)), []).append(label)
    count = sum(len(same) for same in labels.values() if len({*same}) > 1)
    if count:
        yield f"{count:,} rows share their text but not their label; no model can get all of them right"


def _share(rows: int, enough: int, most: float) -> float:
    """Returns the share of the rows, a tenth or more, that has `enough` of them, if that is not above `most`."""
    return round(min(most, max(0.1, enough / rows)), 2)


def _read_tokens(
    task: Task, data: DataSettings, splits: Splits, model: str
) -> tuple[tuple[int, int, int], int, tuple[str, ...]]:
    """Returns lengths of a sample, the length at which inputs are cut, and doubts about the texts."""
    import numpy as np

    from craft.models import Base
    from craft.models.loading import load_tokenizer, meta_model
    from craft.scoring.encoding import positions

    tokenizer = load_tokenizer(model)
    custom.check_texts(data.custom[task.name.removeprefix("custom/")], tokenizer, data.generation)
    lengths = token_lengths(task, take_sample(splits.train, SAMPLE), tokenizer, data.generation)
    usual = int(np.percentile(lengths, 100 - CUT))
    most = positions(tokenizer, meta_model(Base(model, task.kind, task.labels)))
    length = min(most, 16 * math.ceil(max(usual, 16) / 16))
    doubts = tuple(doubt_reading(task, splits, tokenizer, length))
    return (int(np.median(lengths)), usual, int(max(lengths))), length, doubts


def describe_model(model: str, kind: Kind, labels: tuple[str, ...]) -> ModelFacts:
    """Reads layers and projections from `config.json`. Raises ValueError for a model that is not here or not suited."""
    from craft.models import Base
    from craft.models.loading import meta_model
    from craft.models.projections import find_layout, find_projections, linear_modules

    base = meta_model(Base(model, kind, labels))
    stacks = find_projections(base, ("q", "k", "v", "o"))
    config = base.config.get_text_config()
    projections = []
    for word in find_layout(linear_modules(base)):
        with suppress(ValueError):  # a layout has projections that not all of its models have
            projections += [word] if find_projections(base, (word,)) else []
    sides = [side for stack in stacks.values() for layer in stack for side in layer.shape]
    parameters = sum(weight.numel() for weight in base.parameters())
    return ModelFacts(int(config.num_hidden_layers), int(config.hidden_size), parameters, tuple(projections), min(sides))


PROCESS_BYTES = 2**30
"""Host memory of a training without its tensors: Python and its libraries."""
MOST_AT_ONCE = 8
"""More trainings than this at once leave cores idle at the end of a sweep."""
PROBE_SECONDS = 60.0


@dataclass(frozen=True)
class Machine:
    """What each training gets of the machine (`cpu` cores, `gpu` 0 or 1, estimated bytes), and how fast it is."""

    training: TrainingSettings
    cpu: int
    gpu: int
    at_once: int
    memory: int
    speed: Speed

    @property
    def batch(self) -> int:
        """Rows of an optimizer step."""
        return self.training.batch_size * self.training.gradient_accumulation


def measure_machine(run: RunSpec) -> Machine:
    """Fits a run to the machine and times a few of its steps. Raises ValueError if it does not fit or cannot be trained."""
    from craft.models.files import fetch_weights, resolve_model
    from craft.results import OutOfMemory, RunFailed
    from craft.trainer.counting import estimated_memory
    from craft.trainer.probe import device_memory, measure_speed

    with suppress(OSError, ValueError):  # what is missing is named by the probe
        fetch_weights(resolve_model(run.model, run.revision), run.revision)
    gpus, memory = usable_gpus(), device_memory()
    free = memory - (CONTEXT_BYTES if gpus else PROCESS_BYTES)
    precision = {"precision": "bf16-mixed"} if gpus else {}
    training = fit_batches(run, free, **precision) or fit_batches(run, free, **precision, gradient_checkpointing=True)
    if training is None:
        raise ValueError(f"model {run.model}: a step of one row needs more than the {format_bytes(free)} of this machine")
    run = run.model_copy(update={"training": training})
    step = estimated_memory(run)
    most = max(1, min(MOST_AT_ONCE, memory // (step + PROCESS_BYTES)))
    cpu = max(1, cores() // len(gpus)) if gpus else math.ceil(cores() / most)
    try:
        speed = measure_speed(run, PROBE_SECONDS, cpu)
    except (RunFailed, OutOfMemory) as error:
        raise ValueError(str(error)) from error
    if speed is None:
        raise ValueError(
            f"model {run.model}: no step could be timed: its weights are not on this machine, or a step takes minutes"
        )
    return Machine(training, cpu, int(bool(gpus)), len(gpus) or cores() // cpu, step, speed)

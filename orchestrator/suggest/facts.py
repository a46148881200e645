"""What a sweep file rests on: facts of the rows, of the model and of this machine (trainings at once, batch, speed)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from craft.settings import CustomTask, DataSettings, TrainingSettings
from craft.spec import RunSpec
from craft.tasks import custom, find_task
from craft.tasks.splits import Splits, load_splits, take_sample
from craft.tasks.task import Kind, Task
from craft.words import format_bytes
from orchestrator.plan.ways import CONTEXT_BYTES, usable_gpus
from orchestrator.record.manifest import cores
from orchestrator.review.own_data import describe_classes, describe_skipped, doubt_reading, token_lengths, unread_columns

if TYPE_CHECKING:
    from datasets import Dataset

    from craft.trainer.probe import Speed


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
    classes = custom.count_classes(task.labels, custom_task) if task.labels else {}
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
    training = run.training.model_copy(update={"precision": "bf16-mixed"} if gpus else {})
    while estimated_memory(run.model_copy(update={"training": training})) > free:
        smaller = training.in_smaller_batches()
        if smaller is None and training.gradient_checkpointing:
            raise ValueError(f"model {run.model}: a step of one row needs more than the {format_bytes(free)} of this machine")
        training = smaller or training.model_copy(update={"gradient_checkpointing": True})
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

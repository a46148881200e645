"""The sweep file: what it may say, read and checked whole before torch, Ray or MLflow is imported.

`load_sweep(path, overrides)` gives a `Sweep`, or a `SweepError` with every mistake at once: file, line, path, what was given,
what is allowed, the nearest valid name. What only the model or the data can tell (a rank above a dimension, a projection the
model lacks) is left to `orchestrator.plan`, which still comes before any training.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from craft.results import Counts
from craft.settings import DataSettings, Protocol, Settings, TrainingSettings
from craft.tasks import TASKS, expand_tasks, find_task, suite_names
from orchestrator.budget import Budget
from orchestrator.mistakes import Mistake, SweepError, YamlPath, dotted, from_pydantic, nearest, shown, unknown
from orchestrator.prerequisites import check_prerequisites
from orchestrator.resources import Resources
from orchestrator.search_settings import ReplicationSettings, SchedulerSettings, SearchSettings, check_search
from orchestrator.space import Block, parse_block
from orchestrator.yaml_source import Source, YamlProblem, read_yaml

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
PLANNED_METRICS = ("trainable_parameters", "head_parameters", "total_parameters", "adapter_bytes", "estimated_memory_bytes")
"""What is known of a configuration before it trains: what `constraints` may bound."""

Direction = Literal["maximize", "minimize"]
DEFAULT_OBJECTIVES: dict[str, Direction] = {"score": "maximize", "trainable_parameters": "minimize"}


class Bounds(Settings):
    """What a metric known before training must keep to."""

    max: float | None = None
    min: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Bounds:
        if self.max is None and self.min is None:
            raise ValueError("a constraint has max, min, or both")
        if self.max is not None and self.min is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is larger than max {self.max:g}")
        return self


class TrackingSettings(Settings):
    """Where runs are recorded: an MLflow tracking URI. SQLite in the current folder unless given."""

    uri: str = "sqlite:///mlflow.db"

    @field_validator("uri")
    @classmethod
    def _no_password(cls, uri: str) -> str:
        if re.search(r"://[^/@]*:[^/@]+@", uri):
            raise ValueError("holds a password; give it by MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD instead")
        if not uri.strip() or any(ord(letter) < 32 for letter in uri):
            raise ValueError("is empty or holds control characters; an MLflow URI such as sqlite:///mlflow.db")
        return uri


class Sweep(Settings):
    """A whole sweep file, checked. `space` is kept as it was written; `blocks` is what it means."""

    name: str
    model: str = Field(min_length=1, max_length=400, description="hub id or local folder")
    revision: str | None = Field(None, max_length=100, description="of a hub model")
    tasks: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = Field((0,), min_length=1, max_length=1000)
    objectives: dict[str, Direction] = Field(default_factory=lambda: dict(DEFAULT_OBJECTIVES), min_length=1)
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    task_training: dict[str, dict[str, Any]] = Field(default_factory=dict)
    space: tuple[Any, ...] = Field(min_length=1)
    search: SearchSettings = Field(default_factory=SearchSettings)
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)
    constraints: dict[str, Bounds] = Field(default_factory=dict)
    replication: ReplicationSettings | None = None
    budget: Budget = Field(default_factory=Budget)
    resources: Resources = Field(default_factory=Resources)
    tracking: TrackingSettings = Field(default_factory=TrackingSettings)
    data: DataSettings = Field(default_factory=DataSettings)
    protocol: Protocol = "honest"
    warm_start: dict[str, str] = Field(default_factory=dict, description="task -> the task from whose adapter its runs start")
    storage: str = Field("runs", min_length=1, description="the folder that gets a folder for each sweep")

    _source: Source | None = PrivateAttr(None)

    @field_validator("name")
    @classmethod
    def _is_a_folder_name(cls, name: str) -> str:
        if not NAME.fullmatch(name) or name.endswith("."):
            raise ValueError(
                f"got {shown(name)}; it names the sweep's folder: 64 letters, digits and - _ . at most, a letter or digit first"
            )
        return name

    @field_validator("model")
    @classmethod
    def _is_printable(cls, model: str) -> str:
        if not model.isprintable() or model != model.strip():
            raise ValueError(f"got {shown(model)}; a hub id such as FacebookAI/roberta-base, or a folder")
        return model

    @field_validator("seeds", mode="before")
    @classmethod
    def _whole_seeds(cls, seeds: Any) -> Any:
        if isinstance(seeds, list):
            for seed in seeds:
                if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
                    raise ValueError(f"got the seed {shown(seed)}; seeds are whole numbers from 0 to 4294967295")
            if len(set(seeds)) != len(seeds):
                raise ValueError(f"got {shown(seeds)}; each seed once")
        return seeds

    @field_validator("storage")
    @classmethod
    def _is_a_path(cls, storage: str) -> str:
        if not storage.isprintable():
            raise ValueError(f"got {shown(storage)}; a folder's path")
        return storage

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(block for index, content in enumerate(self.space) if (block := parse_block(content, index)[0]))

    @cached_property
    def task_names(self) -> tuple[str, ...]:
        """The tasks, suites written out."""
        return tuple(expand_tasks(self.tasks, self.data))

    @property
    def folder(self) -> Path:
        """Where the sweep keeps everything: `storage/name`."""
        return Path(self.storage) / self.name

    def block_at(self, path: YamlPath) -> Block | None:
        """The method block at `("space", index)`, from which a configuration came."""
        return next((block for block in self.blocks if block.path == path), None)

    def training_for(self, task: str, chosen: dict[str, Any], block: Block | None = None) -> TrainingSettings:
        """The settings for `task` where a configuration of `block` has `chosen` some itself.

        The block's settings for the task win over a configuration's choice, that over the task's own settings, those over its
        suite's, those over `training`.
        """
        suite = task.split("/", 1)[0]
        own = block.task_training if block else {}
        layers = (
            self.training.model_dump(exclude_unset=True),
            self.task_training.get(suite, {}),
            self.task_training.get(task, {}),
        )
        merged: dict[str, Any] = {}
        for layer in (*layers, chosen, own.get(suite, {}), own.get(task, {})):
            merged |= layer
        return TrainingSettings.model_validate(merged)

    def resources_for(self, block: Block | None) -> Resources:
        """What each trial of a block's configurations gets: what the block says, and the file's `resources` for the rest."""
        if block is None or not block.resources:
            return self.resources
        return Resources.model_validate(self.resources.model_dump(exclude_unset=True) | block.resources)

    @property
    def shares(self) -> list[Resources]:
        """What trials of this sweep get, each that differs from the others once."""
        found: list[Resources] = []
        for block in self.blocks:
            resources = self.resources_for(block)
            found += [] if resources in found else [resources]
        return found

    def where(self, path: YamlPath) -> str:
        """`file:line` of a path of the file, for later messages."""
        return self._source.where(path) if self._source else self.name

    def to_yaml(self) -> str:
        """The effective file: loads to an equal sweep."""
        return yaml.safe_dump(self.model_dump(mode="json", exclude_none=True), sort_keys=False, width=120)


def load_sweep(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Sweep:
    """The sweep file at `path` with `overrides` (`key.path=value`) applied.

    Raises:
        SweepError: with every mistake found, one line each.
    """
    try:
        source = read_yaml(Path(path))
        if source.content is None:
            raise SweepError([f"{source.name}: is empty; a sweep file has at least name, model, tasks and space"])
        if not isinstance(source.content, dict):
            raise SweepError(
                [f"{source.where(())}: holds {shown(source.content)}; a sweep file is a mapping that begins with name:"]
            )
        for assignment in overrides:
            source.override(assignment)
    except YamlProblem as problem:
        raise SweepError([str(problem)]) from None
    sweep, mistakes = check(source.content)
    if sweep is None or mistakes:
        ordered = sorted(mistakes, key=lambda one: source.line(one.path))
        raise SweepError([f"{source.where(one.path)}: {dotted(one.path)}: {one.message}" for one in ordered])
    sweep = _absolute(sweep)
    sweep._source = source
    return sweep


def check(content: dict[str, Any]) -> tuple[Sweep | None, list[Mistake]]:
    """The sweep that plain data say, and everything wrong with it."""
    mistakes: list[Mistake] = []
    sweep = None
    try:
        sweep = Sweep.model_validate(content)
    except ValidationError as error:
        mistakes += from_pydantic(error, Sweep)
    blocks: list[Block] = []
    space = content.get("space")
    for index, written in enumerate(space if isinstance(space, list) else ()):
        block, wrong = parse_block(written, index)
        mistakes += wrong
        blocks += [block] if block else []
    mistakes += check_search(content, blocks, sweep)
    mistakes += _check_names(content)
    mistakes += _check_tasks(content)
    mistakes += check_prerequisites(sweep) if sweep and not mistakes else []
    return sweep, mistakes


def _absolute(sweep: Sweep) -> Sweep:
    """The sweep with its local paths absolute, taken from the current folder: trials run in folders of their own."""
    data = sweep.data
    custom = {
        name: task.model_copy(
            update={"train": _absolute_path(task.train), "validation": task.validation and _absolute_path(task.validation)}
        )
        for name, task in data.custom.items()
    }
    root = data.root and _absolute_path(data.root)
    model = _absolute_path(sweep.model) if Path(sweep.model).expanduser().is_dir() else sweep.model
    return sweep.model_copy(
        update={
            "model": model,
            "data": data.model_copy(update={"root": root, "custom": custom}),
            "storage": _absolute_path(sweep.storage),
        }
    )


def _absolute_path(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  (keeps links as they are; Path would not tidy)


def metric_names() -> list[str]:
    """Metrics a sweep may aim at: the score, and what a finished run is known to cost."""
    return ["score", *Counts.__dataclass_fields__, "seconds"]


def _section(content: dict[str, Any], key: str) -> dict[str, Any]:
    section = content.get(key)
    return section if isinstance(section, dict) else {}


def _check_names(content: dict[str, Any]) -> list[Mistake]:
    known = {"objectives": metric_names(), "constraints": list(PLANNED_METRICS)}
    return [
        Mistake((section, name), unknown("metric", name, names))
        for section, names in known.items()
        for name in _section(content, section)
        if name not in names
    ]


def _check_tasks(content: dict[str, Any]) -> list[Mistake]:
    try:
        data = DataSettings.model_validate(content.get("data", {}))
    except ValidationError:
        return []  # custom tasks cannot be named before `data` is right
    known = [*TASKS, *(f"custom/{given}" for given in data.custom), *suite_names(data.custom)]
    mistakes = []
    for given in data.custom:
        if not NAME.fullmatch(given):
            mistakes.append(Mistake(("data", "custom", given), "a task's name: up to 64 letters, digits, - _ or ."))
            continue
        try:
            find_task(f"custom/{given}", data)  # opens the file: a missing one, or a missing column, shows now
        except ValueError as error:
            mistakes.append(Mistake(("data", "custom", given), str(error)))
    tasks = content.get("tasks")
    given_tasks: list[Any] = tasks if isinstance(tasks, list) else []
    for index, name in enumerate(given_tasks):
        if isinstance(name, str) and name not in known:
            mistakes.append(Mistake(("tasks", index), _unknown_task(name, known, data)))
        elif isinstance(name, str) and name in given_tasks[:index]:
            mistakes.append(Mistake(("tasks", index), f"{shown(name)} is given twice"))
    for name, settings in _section(content, "task_training").items():
        if name not in known:
            mistakes.append(Mistake(("task_training", name), _unknown_task(name, known, data)))
        elif isinstance(settings, dict):
            try:
                TrainingSettings.model_validate(settings)
            except ValidationError as error:
                mistakes += from_pydantic(error, TrainingSettings, ("task_training", name))
    return mistakes


def _unknown_task(name: str, known: list[str], data: DataSettings) -> str:
    hint = nearest(name, known) or nearest(f"glue/{name}", known)
    tasks = ", ".join(one for one in known if "/" in one)
    return f"unknown task {shown(name)}.{hint} Suites: {', '.join(suite_names(data.custom))}. Tasks: {tasks}"

"""`Sweep`: everything that a sweep file says, as one checked class. No torch, Ray or MLflow.

`load_sweep` (`orchestrator.sweepfile.load`) makes a `Sweep` from a file. Some mistakes show only against the model or the data
(a rank above a dimension, a projection that the model lacks); `orchestrator.plan.plan` finds those, before any training.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, PrivateAttr, field_validator

from craft.settings import DataSettings, MeasureSettings, ProjectionMap, Protocol, Settings, TrainingSettings
from craft.tasks import expand_tasks, find_task
from orchestrator.sweepfile.mistakes import YamlPath, by_field, shown
from orchestrator.sweepfile.plain_yaml import Source
from orchestrator.sweepfile.resources import Resources
from orchestrator.sweepfile.settings import (
    DEFAULT_OBJECTIVES,
    TUNED_FORMS,
    Bounds,
    Budget,
    Direction,
    Enough,
    Metric,
    PlannedMetric,
    ReplicationSettings,
    SchedulerSettings,
    SearchSettings,
    Seeds,
    TrackingSettings,
    tuned_settings,
)
from orchestrator.sweepfile.space.blocks import parse_block
from orchestrator.sweepfile.space.dimensions import Block

DEFAULT_STORAGE = "runs"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Sweep(Settings):
    """A sweep file, checked. `space` holds the method blocks as they were written; `blocks` holds them parsed."""

    name: str = Field(
        description="Name of the sweep and of its folder. Up to 64 letters, digits, `-`, `_` and `.`.",
        json_schema_extra={"pattern": f"^{NAME.pattern}$"},
    )
    model: str = Field(min_length=1, max_length=400, description="A hub id, a folder, or `FOLDER/FILE.gguf`.")
    revision: str | None = Field(None, max_length=100, description="Revision of a hub model.")
    projection_map: ProjectionMap = Field(
        {},
        description="For an unknown model family: word -> end of a module's path, as in `{q: attention.wq}`. The end is a "
        "regular expression, with `[0/3]` for the first of three equal parts.",
    )
    tasks: tuple[str, ...] = Field(min_length=1, description="Tasks and suites.")
    seeds: Seeds = Field((0,), description="Seeds of the trials.")
    plugins: tuple[str, ...] = Field(
        (),
        max_length=100,
        description="Modules or files with own parts ([extending.md](extending.md)).",
    )
    objectives: dict[Metric, Direction] = Field(
        DEFAULT_OBJECTIVES,
        min_length=1,
        description="Metrics of the front, with directions.",
    )
    enough: Enough = Field(default_factory=Enough)
    # A section without a description here has that of its class.
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    task_training: dict[str, dict[str, Any]] = Field({}, description="`training` settings of single tasks or suites.")
    space: tuple[Any, ...] = Field(min_length=1, description="Method blocks.")
    compare: Literal["fair"] | None = Field(
        None,
        description="`fair`: every configuration is tuned with an equal budget and a seed that is not reported "
        "([search.md](search.md)).",
    )
    tuning_seeds: Seeds | None = Field(
        None, description="With `compare: fair`: the seeds that tune, none of `seeds`; `[1000]` if absent."
    )
    tuned: dict[str, dict[str, Any]] | None = Field(
        None,
        description="With `compare: fair`: the settings to tune, as names, or as name: values; `[learning_rate]` if absent.",
        json_schema_extra={"anyOf": TUNED_FORMS},
    )
    search: SearchSettings = Field(default_factory=SearchSettings)
    scheduler: SchedulerSettings = Field(default_factory=SchedulerSettings)
    constraints: dict[PlannedMetric, Bounds] = Field({}, description="Bounds; a configuration outside them is not trained.")
    replication: ReplicationSettings | None = Field(None, description="Which configurations get further seeds.")
    budget: Budget = Field(default_factory=Budget)
    resources: Resources = Field(default_factory=Resources)
    tracking: TrackingSettings = Field(default_factory=TrackingSettings)
    data: DataSettings = Field(default_factory=DataSettings)
    measure: MeasureSettings = Field(default_factory=MeasureSettings)
    protocol: Protocol = Field(
        "honest",
        description="Rows for choices: held out of training (`honest`), or the reported rows (`customary`).",
    )
    warm_start: dict[str, str] = Field({}, description="For a task, the task whose adapter its trials start from.")
    storage: str = Field(DEFAULT_STORAGE, min_length=1, description="Folder of the sweeps' folders.")

    _source: Source | None = PrivateAttr(None)
    _chosen: str | None = PrivateAttr(None)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not NAME.fullmatch(name) or name.endswith("."):
            rule = "it names the sweep's folder: 64 letters, digits and - _ . at most, a letter or digit first"
            raise ValueError(f"got {shown(name)}; {rule}")
        return name

    @field_validator("model")
    @classmethod
    def _check_model(cls, model: str) -> str:
        if not model.isprintable() or model != model.strip():
            raise ValueError(f"got {shown(model)}; a hub id such as FacebookAI/roberta-base, a folder, or FOLDER/FILE.gguf")
        return model

    @field_validator("tuned", mode="before")
    @classmethod
    def _read_tuned(cls, tuned: Any) -> Any:
        return None if tuned is None else tuned_settings(tuned)

    @field_validator("task_training")
    @classmethod
    def _rename_settings(cls, by_task: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {task: by_field(TrainingSettings, settings) for task, settings in by_task.items()}

    @field_validator("storage")
    @classmethod
    def _check_storage(cls, storage: str) -> str:
        if not storage.isprintable():
            raise ValueError(f"got {shown(storage)}; a folder's path")
        return storage

    @property
    def chosen(self) -> str | None:
        """The searcher that `auto` means, and the reason (`orchestrator.sweepfile.sections`)."""
        return self._chosen

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(block for index, written in enumerate(self.space) if (block := parse_block(written, index)[0]))

    @cached_property
    def task_names(self) -> tuple[str, ...]:
        """The sweep's tasks, with every suite replaced by its tasks."""
        return tuple(expand_tasks(self.tasks, self.data))

    @cached_property
    def has_heads(self) -> bool:
        """Whether any task is answered by a head, not in words."""
        return any(find_task(name, self.data).kind != "generation" for name in self.task_names)

    @property
    def folder(self) -> Path:
        """The folder in which the sweep keeps everything: `storage/name`."""
        return Path(self.storage) / self.name

    @property
    def tunes(self) -> bool:
        """Whether `seeds` only tune, so that their scores are not reported."""
        return self.replication is not None

    @property
    def tuned_settings(self) -> tuple[str, ...]:
        return self.replication.tuned if self.replication is not None else ()

    @property
    def reported_seeds(self) -> tuple[int, ...]:
        """The seeds with which configurations are reported, those that may be added for the front left out."""
        return self.seeds if self.replication is None else self.replication.seeds

    def block_at(self, path: YamlPath) -> Block:
        """Returns the method block at the path `("space", index)`."""
        return next(block for block in self.blocks if block.path == path)

    def training_for(self, task: str, chosen: dict[str, Any], block: Block | None = None) -> TrainingSettings:
        """Returns the training settings of a trial on `task`, whose configuration has `chosen` some settings itself.

        From the strongest to the weakest: the block's settings for the task, its settings for the suite, the configuration's
        choice, the file's settings for the task, its settings for the suite, and `training`.
        """
        merged = self.training.model_dump(exclude_unset=True)
        for layer in (self.task_training, {task: chosen}, block.task_training if block else {}):
            merged |= layer.get(task.split("/", 1)[0], {}) | layer.get(task, {})
        settings = TrainingSettings.model_validate(merged)
        return settings if self.has_heads else settings.without_head()

    def resources_for(self, block: Block) -> Resources:
        """Returns the resources of a trial from `block`: the block's own amounts, and the file's `resources` for the rest."""
        if not block.resources:
            return self.resources
        return Resources.model_validate(self.resources.model_dump(exclude_unset=True) | block.resources)

    @property
    def shares(self) -> list[Resources]:
        """The distinct resources that trials of this sweep get."""
        shares = [self.resources_for(block) for block in self.blocks]
        return [share for index, share in enumerate(shares) if share not in shares[:index]]

    @property
    def written(self) -> Any:
        """What its file says, without defaults and changes; None if it was not read from a file."""
        return self._source.written if self._source else None

    def where(self, path: YamlPath) -> str:
        """Returns `file:line` of a path of the file, for messages of later checks."""
        return self._source.where(path) if self._source else self.name

    def to_yaml(self) -> str:
        """Returns the effective file as YAML; it loads to an equal sweep."""
        document = self.model_dump(mode="json")
        if document["training"]["max_steps"] is not None:
            del document["training"]["epochs"]  # it would have no effect
        return yaml.safe_dump(document, sort_keys=False, width=120)

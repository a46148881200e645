"""What one training run is, as data: `RunSpec` and its parts. No torch here.

A `RunSpec` holds everything that decides a run's numbers: the model, the task, the method with its parameters, the training
settings, the seed, where the data lie and the protocol under which the score is to be read. The sweep file is validated
against these models, `RunSpec.key` names the run by its content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import not_
from typing import Any

from pydantic import Field, model_validator

from craft.methods import find_method
from craft.methods.method import Method, starting_rate
from craft.models import Base
from craft.settings import (
    CutFrom,
    DataSettings,
    MeasureSettings,
    ProjectionMap,
    Protocol,
    Settings,
    TrainingSettings,
    WarmStart,
    content_hash,
    without_places,
)
from craft.tasks import TASKS, find_task
from craft.tasks.task import Kind, Task

BUDGET = "parameters:"
"""Begins the name of what an adapter is cut to where that is a number of parameters."""
RECOVERY = 0.1
"""How much longer an adapter is trained after it was cut, as a share of its run's steps."""


class RunSpec(Settings):
    """A training run. Equal content gives an equal `key`, on any machine."""

    model: str
    revision: str | None = None
    projection_map: ProjectionMap = Field({}, exclude_if=not_)
    task: str
    method: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    data: DataSettings = Field(default_factory=DataSettings)
    protocol: Protocol = "honest"
    seed: int = Field(0, ge=0, lt=2**32)
    warm_start: WarmStart | None = None
    cut_from: CutFrom | None = None
    measure: MeasureSettings = Field(default_factory=MeasureSettings)
    search_only: bool = Field(False, exclude_if=not_)
    """Whether the reported rows are not scored, because the run only helps to choose settings."""

    @model_validator(mode="after")
    def _method_knows_its_parameters(self) -> RunSpec:
        checked = find_method(self.method).parameters.model_validate(self.parameters)
        object.__setattr__(self, "parameters", checked.model_dump(mode="json"))
        return self

    @model_validator(mode="after")
    def _words_need_no_head(self) -> RunSpec:
        if self._kind == "generation":
            object.__setattr__(self, "training", self.training.without_head())
        return self

    @property
    def _kind(self) -> str | None:
        task = self.data.own(self.task) or TASKS.get(self.task)
        return task.kind if task else None

    @property
    def row(self) -> Method:
        return find_method(self.method)

    @property
    def typed_parameters(self) -> Any:
        """The method's parameters as its own model."""
        return self.row.parameters.model_validate(self.parameters)

    @property
    def task_row(self) -> Task:
        """The row of its task. Raises ValueError if it is not known, or a file of the user's cannot be read."""
        return find_task(self.task, self.data)

    def base(self, kind: Kind, labels: Sequence[str], pad_token_id: int | None = None, name: str | None = None) -> Base:
        """Describes the base model with the head of a task; `name` is its place on this machine, if that is another one."""
        row, training = self.row, self.training
        return Base(
            name or self.model, kind, tuple(labels), self.revision, training.precision, row.master_weights, pad_token_id,
            row.quantization, self.projection_map,
        )  # fmt: skip

    @property
    def has_rate(self) -> bool:
        """Whether `learning_rate` decides anything: a head alone has its own rate, a model that is scored as it is none."""
        return self.row.adapts or (self._kind != "generation" and self.training.head_learning_rate is None)

    def with_rate(self, width: Callable[[], int]) -> RunSpec:
        """Returns this run with the learning rate of its method, if it has none; `width` gives the model's hidden size."""
        if self.training.learning_rate is not None:
            return self
        rate = starting_rate(self.row, self.typed_parameters, width())
        return self.model_copy(update={"training": self.training.model_copy(update={"learning_rate": rate})})

    @property
    def key(self) -> str:
        """16 hexadecimal digits that name this run by its effective content."""
        return content_hash(self.identity(), 16)

    def identity(self) -> dict[str, Any]:
        """Returns what the key is made of, as plain data.

        Left out is what does not affect this run's numbers (where model and data are on this machine, other tasks' files and
        settings), and each setting that has its default: a new setting changes no key. The method's parameters are written out.
        """
        identity = without_places(self.model_dump(mode="json", exclude_defaults=True))
        identity |= {"protocol": self.protocol, "seed": self.seed, "parameters": self.parameters}
        if self.warm_start is not None:
            identity["warm_start"] = self.warm_start.run
        data = identity.pop("data", {})
        data.pop("root", None)
        custom = {name: task for name, task in data.pop("custom", {}).items() if f"custom/{name}" == self.task}
        written = data.pop("generation", {}) if self._kind == "generation" else {}
        data.pop("generation", None)
        if self.task not in TASKS:
            names = ("prompt", "loss", "date", "beams", "max_new_tokens")
            written = {name: value for name, value in written.items() if name in names}
        data |= {name: part for name, part in (("custom", custom), ("generation", written)) if part}
        return identity | ({"data": data} if data else {})

    def cut_to(self, to: str, recovery: float) -> RunSpec:
        """Returns this run with `cut_from` set: its adapter cut to `to`. The new key names the cut."""
        return self.model_copy(update={"cut_from": CutFrom(run=self.key, to=to, recovery=recovery)})

"""What one training run is, as data: `RunSpec` and its parts. No torch here.

A `RunSpec` holds everything that decides a run's numbers: the model, the task, the method with its parameters, the training
settings, the seed, where the data lie and the protocol under which the score is to be read. The sweep file is validated
against these models, `python -m craft.train` fills one from its flags, and `RunSpec.key` names the run by its content.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationInfo, model_validator

from craft.methods import find_method
from craft.settings import (
    RECORDED,
    CutFrom,
    DataSettings,
    MeasureSettings,
    Protocol,
    Settings,
    TrainingSettings,
    WarmStart,
    content_hash,
    with_older,
)
from craft.tasks import TASKS

BUDGET = "parameters:"
"""Begins the name of what an adapter is cut to where that is a number of parameters."""
RECOVERY = 0.1
"""How much longer an adapter is trained after it was cut, as a share of its run's steps."""


class RunSpec(Settings):
    """One training run, whole. Equal content gives an equal `key`, on any machine."""

    model: str
    revision: str | None = None
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

    @model_validator(mode="after")
    def _method_knows_its_parameters(self, info: ValidationInfo) -> RunSpec:
        method = find_method(self.method)
        checked = method.parameters.model_validate(self.parameters, context=info.context).model_dump(mode="json")
        object.__setattr__(self, "parameters", checked)
        return self

    @model_validator(mode="after")
    def _words_need_no_head(self) -> RunSpec:
        if self._kind == "generation":
            object.__setattr__(self, "training", self.training.without_head())
        return self

    @property
    def _kind(self) -> str | None:
        if self.task.startswith("custom/"):
            own = self.data.custom.get(self.task.removeprefix("custom/"))
            return own.kind if own else None
        return TASKS[self.task].kind if self.task in TASKS else None

    @classmethod
    def recorded(cls, content: Any) -> RunSpec:
        """The run of a record that some version wrote: it may hold settings that new runs are refused."""
        return cls.model_validate(with_older(content), context=RECORDED)

    @property
    def key(self) -> str:
        """16 hexadecimal digits that name this run by its effective content."""
        return content_hash(self.identity(), 16)

    def identity(self) -> dict[str, Any]:
        """What the key is made of, as plain data.

        What does not affect this run's numbers is left out: where the data folder lies, other tasks' files and settings.
        """
        own = self.training.identity(find_method(self.method).master_weights)
        content = self.model_dump(mode="json") | {"training": own}
        content["parameters"] = {name: one for name, one in self.parameters.items() if (name, one) != ("rate_scaling", "none")}
        del content["warm_start"]
        if self.warm_start is not None:
            content["warm_start"] = self.warm_start.run
        if self.cut_from is None:
            del content["cut_from"]
        del content["measure"]
        if measured := self.measure.recorded():
            content["measure"] = measured
        data = content["data"]
        del data["root"]
        row = TASKS.get(self.task)
        grouped = self._kind == "generation" if row is None else row.groups is not None
        if not (self.data.search_groups and self.protocol == "honest" and grouped):
            del data["search_groups"]
        data["custom"] = {name: one for name, one in data["custom"].items() if f"custom/{name}" == self.task}
        if self._kind != "generation":
            del data["generation"]
        elif row is None:
            data["generation"] = {name: data["generation"][name] for name in ("prompt", "loss", "beams", "max_new_tokens")}
        return content

    def cut_to(self, to: str, recovery: float) -> RunSpec:
        """The run of this one's adapter cut to `to` (`craft.trainer.cutting.Cut`), whose key names the cut adapter."""
        return self.model_copy(update={"cut_from": CutFrom(run=self.key, to=to, recovery=recovery)})

"""`Trial`: one configuration on one task with one seed, and why the sweep has it; a plan describes it, and the log keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import GetPydanticSchema

Number: TypeAlias = Annotated[float, GetPydanticSchema(lambda _, schema_of: schema_of(int | float))]
"""A number that stays an int if it is one."""
Reason = Literal["listed", "candidate", "transferred", "replicated", "added", "cut", "source"]


@dataclass(frozen=True)
class Why:
    """Why a sweep has a trial.

    ==============  ==========================================================  ========================================
    reason          the trial                                                   `of`
    ==============  ==========================================================  ========================================
    `listed`        is of a point of the file's space, or of a drawn one        empty
    `candidate`     helps to choose settings, and its scores are not reported   the id of the group that chooses
    `transferred`   has the learning rate of another configuration              that configuration's id
    `replicated`    is one more seed of what results have chosen                empty
    `added`         was decided while the sweep ran                             the reason, in words
    `cut`           is cut from the adapter of a training                       the key of the training
    `source`        is trained for what is cut from it, and not reported        the id of the tuned configuration
    ==============  ==========================================================  ========================================

    Attributes:
        training: why the training of a cut exists.
    """

    reason: Reason = "listed"
    of: str = ""
    training: Why | None = None


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep, by its description.

    Attributes:
        key: names its run by the content (`craft.spec.RunSpec.key`).
        configuration: the id of the configuration that it belongs to.
        label: the configuration's.
        parameters: everything that decides its run, flat (`orchestrator.plan.parameters`).
        planned: its counts as known before training.
    """

    key: str
    configuration: str
    label: str
    method: str
    task: str
    seed: int
    protocol: str
    parameters: Mapping[str, Any]
    why: Why = field(default_factory=Why)
    planned: Mapping[str, Number] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name for people."""
        return f"{self.label} · {self.task} · seed {self.seed}"

    @property
    def is_cut(self) -> bool:
        """Whether it is cut from the adapter of a training, and not trained."""
        return self.why.reason == "cut"

    @property
    def training(self) -> str:
        """The key of the training from whose adapter it is cut, or its own key."""
        return self.why.of if self.is_cut else self.key

    @property
    def group(self) -> str | None:
        """The id of the group among whose candidates it, or the training of a cut, helps to choose."""
        why = self.why.training or self.why
        return why.of if why.reason == "candidate" else None

    @property
    def is_reported(self) -> bool:
        """Whether its scores are reported."""
        return self.group is None and self.serves is None

    @property
    def serves(self) -> str | None:
        """The id of the tuned configuration of which a size has another choice, and is cut from this training."""
        return self.why.of if self.why.reason == "source" else None

    @property
    def added(self) -> str | None:
        """Why it, or the training of a cut, was added while the sweep ran, in words."""
        why = self.why.training or self.why
        return why.of if why.reason == "added" else None

    @property
    def transferred(self) -> str | None:
        """The id of the configuration whose learning rate it has."""
        return self.why.of if self.why.reason == "transferred" else None

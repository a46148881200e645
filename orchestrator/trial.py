"""One trial: a configuration on one task with one seed. What Ray schedules, with no Ray in it.

`run_trial` is `craft.training.train_run` with a trial's manners: it works in a folder of its own, resumes from the checkpoint
it is given, and turns every end into a `TrialResult`. A test calls it as a cluster does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from craft.spec import RunSpec

Status = Literal["finished", "failed", "stopped"]


@dataclass(frozen=True)
class TrialSpec:
    """A trial to run: `key` names it by content, `configuration` is the id of the configuration it belongs to."""

    run: RunSpec
    configuration: str
    label: str

    @property
    def key(self) -> str:
        return self.run.key

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run.model_dump(mode="json"), "configuration": self.configuration, "label": self.label}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrialSpec:
        return cls(RunSpec.model_validate(content["run"]), content["configuration"], content["label"])


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended. `stopped` is a scheduler's early stop: its metrics are those of its last evaluation."""

    key: str
    status: Status
    metrics: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    error: str | None = None
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrialResult:
        return cls(**content)

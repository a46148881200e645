"""A trial, one configuration on one task with one seed, and its result. Nothing here knows Ray.

Ray schedules trainings: trials that are trained, each with the trials of the sizes to which its adapter is cut. These are the
training's outputs, and each has a result of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from craft.results import Progress, RunResult, SizeResult
from craft.spec import RunSpec
from orchestrator.sweepfile.resources import Resources

Status = Literal["finished", "failed", "stopped", "interrupted"]


@dataclass(frozen=True)
class TrialSpec:
    """A trial to run: `key` names it by content, `configuration` is the id of the configuration it belongs to; `resources` are
    its share of a machine and no part of its identity.

    `sizes` are the trials that are cut from this one's adapter, ascending. `tunes` names the configurations among which it
    helps to choose one (`Planner.group`); None where nothing is tuned, and for the further seeds of those that were chosen.
    `carried` is the label of the configuration whose learning rate it has (`orchestrator.plan.carrying`).
    """

    run: RunSpec
    configuration: str
    label: str
    resources: Resources = field(default_factory=Resources)
    tunes: str | None = None
    sizes: tuple[TrialSpec, ...] = ()
    carried: str | None = None

    @cached_property
    def key(self) -> str:
        return self.run.key

    @property
    def outputs(self) -> tuple[TrialSpec, ...]:
        """The trials that its training gives a result: its sizes, and itself last."""
        return (*self.sizes, self)

    def to_json(self) -> dict[str, Any]:
        names: dict[str, Any] = {"configuration": self.configuration, "label": self.label}
        names |= {name: value for name in ("tunes", "carried") if (value := getattr(self, name))}
        names |= {"sizes": [one.to_json() for one in self.sizes]} if self.sizes else {}
        return {"run": self.run.model_dump(mode="json"), "resources": self.resources.model_dump(mode="json"), **names}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrialSpec:
        resources = Resources.model_validate(content.get("resources", {}))
        return cls(
            RunSpec.model_validate(content["run"]),
            content["configuration"],
            content["label"],
            resources,
            content.get("tunes"),
            tuple(cls.from_json(one) for one in content.get("sizes", ())),
            content.get("carried"),
        )


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended.

    `stopped` is a scheduler's early stop: its metrics are those of its last evaluation. `interrupted` is the sweep's own stop:
    the trial goes on from its last checkpoint when the sweep does. `retryable` marks a failure that is not the
    configuration's fault (a crash, a full disk): a resumed sweep tries such a trial again.
    """

    key: str
    status: Status
    metrics: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    error: str | None = None
    retryable: bool = False
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_size(cls, key: str, size: SizeResult, notes: Sequence[str] = ()) -> TrialResult:
        """The result of an adapter that was cut to a size: `seconds` are those of cutting and scoring it."""
        facts = {name: value for name, value in size.facts.items() if name != "adapter"}
        every = [*notes, *size.notes]
        return cls(key, "finished", size.metrics, size.counts, seconds=size.seconds, notes=every, facts=facts)

    def with_facts(self, **facts: Any) -> TrialResult:
        return replace(self, facts={**self.facts, **facts})

    @property
    def settled(self) -> bool:
        """Whether nothing is left to run for this trial, now or on a resume."""
        return self.status in ("finished", "stopped") or (self.status == "failed" and not self.retryable)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrialResult:
        """Raises TypeError for what is no result: an unknown or missing key, a metric or count that is no number."""
        found = cls(**content)
        wrong = [f"{name} is {value!r}" for name, value in (found.metrics | found.counts).items() if not _is_number(value)]
        if wrong:
            raise TypeError(f"{', '.join(wrong)}, which is no number")
        return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Ended:
    """How an output of a training ended; with its adapter's folder where it finished, and the same of each of its sizes."""

    result: TrialResult
    adapter: Path | None = None
    sizes: list[Ended] = field(default_factory=list)


class Train(Protocol):
    """The shape of `craft.trainer.training.train_run`."""

    def __call__(
        self,
        spec: RunSpec,
        directory: Path,
        *,
        report: Callable[[Progress], None],
        resume_from: Path | None,
        on_step: Callable[[int, int], None],
        sizes: Sequence[int] = (),
    ) -> RunResult: ...

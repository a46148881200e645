"""A trial, one configuration on one task with one seed, and its result. Nothing here knows Ray.

Ray schedules trainings: trials that are trained, each with the trials of the sizes to which its adapter is cut. These are the
training's outputs, and each has a result of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from craft.results import Progress, RunResult, SizeResult
from craft.spec import RunSpec
from orchestrator.plan.parameters import flat_parameters
from orchestrator.state.entry import Entry, TrialResult
from orchestrator.sweepfile.resources import Resources


@dataclass(frozen=True)
class Trial:
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
    sizes: tuple[Trial, ...] = ()
    carried: str | None = None

    @cached_property
    def key(self) -> str:
        return self.run.key

    @property
    def outputs(self) -> tuple[Trial, ...]:
        """The trials that its training gives a result: its sizes, and itself last."""
        return (*self.sizes, self)

    def entry(self, result: TrialResult | None = None, planned: Mapping[str, float] | None = None) -> Entry:
        """Returns the trial's description, with its result if it has one.

        Args:
            planned: its configuration's counts as known before training.
        """
        run, flat = self.run, flat_parameters(self.run)
        names = (self.key, self.configuration, self.label, flat["method"], run.task, run.seed, run.protocol)
        return Entry(*names, flat, result, self.tunes, self.carried, planned or {})

    def to_json(self) -> dict[str, Any]:
        names: dict[str, Any] = {"configuration": self.configuration, "label": self.label}
        names |= {name: value for name in ("tunes", "carried") if (value := getattr(self, name))}
        names |= {"sizes": [one.to_json() for one in self.sizes]} if self.sizes else {}
        return {"run": self.run.model_dump(mode="json"), "resources": self.resources.model_dump(mode="json"), **names}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Trial:
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


def result_of_size(key: str, size: SizeResult, notes: Sequence[str] = ()) -> TrialResult:
    """Returns the result of an adapter that was cut to a size: `seconds` are those of cutting and scoring it."""
    facts = {name: value for name, value in size.facts.items() if name != "adapter"}
    return TrialResult(
        key, "finished", size.metrics, size.counts, seconds=size.seconds, notes=[*notes, *size.notes], facts=facts
    )


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

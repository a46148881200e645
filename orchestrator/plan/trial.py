"""A trial, one configuration on one task with one seed; and a job, the trials that run in one process. No Ray here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from craft.results import Progress, RunResult
from craft.spec import RunSpec
from orchestrator.plan.parameters import flat_parameters
from orchestrator.state.entry import TrialResult
from orchestrator.state.trial import Trial, Why
from orchestrator.sweepfile.resources import Resources


@dataclass(frozen=True)
class PlannedTrial:
    """A trial to run. Its run's content names it.

    Attributes:
        run: a training, or the cut of another trial's adapter (`run.cut_from`).
        resources: its share of a machine, no part of its identity.
        configuration, label, why, planned: those of `Trial`.
    """

    run: RunSpec
    configuration: str
    label: str
    resources: Resources = field(default_factory=Resources)
    why: Why = field(default_factory=Why)
    planned: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits that name the run by its content."""
        return self.run.key

    @property
    def source(self) -> str | None:
        """The key of the trial whose adapter it starts from: by a cut or by a warm start."""
        start = self.run.cut_from or self.run.warm_start
        return None if start is None else start.run

    @cached_property
    def trial(self) -> Trial:
        """Its description."""
        run, flat = self.run, flat_parameters(self.run)
        names = (self.key, self.configuration, self.label, flat["method"], run.task, run.seed, run.protocol)
        return Trial(*names, flat, self.why, self.planned)


@dataclass(frozen=True)
class Job:
    """What Ray runs in one process with one loaded base model: a training, then the cuts of its adapter, ascending.

    A job is named by its training, whose checkpoints a later session continues from.
    """

    training: PlannedTrial
    cuts: tuple[PlannedTrial, ...] = ()

    @property
    def key(self) -> str:
        return self.training.key

    @property
    def trials(self) -> tuple[PlannedTrial, ...]:
        """Its trials in the order in which they run."""
        return (self.training, *self.cuts)

    @property
    def keys(self) -> list[str]:
        return [trial.key for trial in self.trials]

    @property
    def source(self) -> str | None:
        """The key of the trial that must have ended before the job can start."""
        return self.training.source

    def to_json(self) -> dict[str, Any]:
        """Returns the job as plain data."""
        return dict(_adapter().dump_python(self, mode="json"))

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Job:
        """Raises ValueError for what is no job of this version."""
        return _adapter().validate_python(fields)


@cache
def _adapter() -> TypeAdapter[Job]:
    return TypeAdapter(Job)


def jobs_of(trials: Iterable[PlannedTrial]) -> list[Job]:
    """Returns the jobs of trials, in the order of their trainings: each training with its cuts."""
    trainings: dict[str, PlannedTrial] = {}
    cuts: dict[str, list[PlannedTrial]] = {}
    for trial in trials:
        if trial.run.cut_from is None:
            trainings[trial.key] = trial
        else:
            cuts.setdefault(trial.run.cut_from.run, []).append(trial)
    return [Job(training, tuple(cuts.get(key, ()))) for key, training in trainings.items()]


def result_of_cut(key: str, cut: RunResult, notes: Sequence[str] = ()) -> TrialResult:
    """Returns the result of a cut adapter: `seconds` are those of cutting, training on and scoring it."""
    facts = {name: value for name, value in cut.facts.items() if name != "adapter"}
    counts, notes = cut.counts.known(), [*notes, *cut.notes]
    return TrialResult(key, "finished", cut.metrics, counts, seconds=cut.seconds, notes=notes, facts=facts)


@dataclass(frozen=True)
class Outcome:
    """How a trial of a job ended, with the folder of its adapter if it finished."""

    result: TrialResult
    adapter: Path | None = None


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
        cuts: Sequence[int] = (),
    ) -> RunResult: ...

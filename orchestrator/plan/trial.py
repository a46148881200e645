"""A trial, one configuration on one task with one seed; and a job, the trials that run in one process. No Ray here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from craft.results import Progress, RunResult
from craft.spec import RunSpec
from orchestrator.plan.parameters import flat_parameters
from orchestrator.state.entry import Entry, TrialResult
from orchestrator.sweepfile.resources import Resources


@dataclass(frozen=True)
class Trial:
    """A trial to run. Its run's content names it.

    Attributes:
        run: a training, or the cut of another trial's adapter (`run.cut_from`).
        configuration: the id of the configuration that it belongs to.
        resources: its share of a machine, no part of its identity.
        tunes: the group of configurations among which it helps to choose (`Identity.group`); such a trial is not reported.
        carried: the label of the configuration whose learning rate it has (`orchestrator.plan.carrying`).
    """

    run: RunSpec
    configuration: str
    label: str
    resources: Resources = field(default_factory=Resources)
    tunes: str | None = None
    carried: str | None = None

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits that name the run by its content."""
        return self.run.key

    @property
    def source(self) -> str | None:
        """The key of the trial whose adapter it starts from: by a cut or by a warm start."""
        start = self.run.cut_from or self.run.warm_start
        return None if start is None else start.run

    def entry(self, result: TrialResult | None = None, planned: Mapping[str, float] | None = None) -> Entry:
        """Returns the trial's description, with its result if it has one.

        Args:
            planned: its configuration's counts as known before training.
        """
        run, flat = self.run, flat_parameters(self.run)
        names = (self.key, self.configuration, self.label, flat["method"], run.task, run.seed, run.protocol)
        return Entry(*names, flat, result, self.tunes, self.carried, planned or {})

    def to_json(self) -> dict[str, Any]:
        """Returns the trial as plain data."""
        names = {"configuration": self.configuration, "label": self.label, "tunes": self.tunes, "carried": self.carried}
        return {"run": self.run.model_dump(mode="json"), "resources": self.resources.model_dump(mode="json"), **names}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Trial:
        """Raises ValueError for what is no trial of this version."""
        models = {"run": RunSpec.model_validate(fields["run"]), "resources": Resources.model_validate(fields["resources"])}
        return cls(**{**fields, **models})


@dataclass(frozen=True)
class Job:
    """What Ray runs in one process with one loaded base model: a training, then the cuts of its adapter, ascending.

    A job is named by its training, whose checkpoints a later session continues from.
    """

    training: Trial
    cuts: tuple[Trial, ...] = ()

    @property
    def key(self) -> str:
        return self.training.key

    @property
    def trials(self) -> tuple[Trial, ...]:
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
        return {"training": self.training.to_json(), "cuts": [cut.to_json() for cut in self.cuts]}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Job:
        """Raises ValueError for what is no job of this version."""
        return cls(Trial.from_json(fields["training"]), tuple(map(Trial.from_json, fields["cuts"])))


def jobs_of(trials: Iterable[Trial]) -> list[Job]:
    """Returns the jobs of trials, in the order of their trainings: each training with its cuts."""
    trainings: dict[str, Trial] = {}
    cuts: dict[str, list[Trial]] = {}
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

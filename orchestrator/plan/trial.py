"""A trial: its description, its result, what runs it; and a job, the trials that run in one process. No Ray here.

`Trial` is one configuration on one task with one seed, as the log keeps it; `PlannedTrial` has the run that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import GetPydanticSchema, TypeAdapter

from craft.results import RunResult
from craft.spec import RunSpec
from orchestrator.plan.configuration import flat_parameters
from orchestrator.sweepfile.mistakes import is_number
from orchestrator.sweepfile.resources import Resources

Number: TypeAlias = Annotated[float, GetPydanticSchema(lambda _, schema_of: schema_of(int | float))]
"""A number that stays an int if it is one."""
Status = Literal["finished", "failed", "stopped", "interrupted"]
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
        parameters: everything that decides its run, flat (`orchestrator.plan.configuration`).
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
        return f"{self.label} · {self.task} · seed {self.seed}"

    @property
    def is_cut(self) -> bool:
        return self.why.reason == "cut"

    @property
    def training(self) -> str:
        """The key of the training from whose adapter it is cut, or its own key."""
        return self.why.of if self.is_cut else self.key

    @property
    def group(self) -> str | None:
        """The id of the group of candidates to which it belongs, or the training of a cut; None if it tunes nothing."""
        why = self.why.training or self.why
        return why.of if why.reason == "candidate" else None

    @property
    def is_reported(self) -> bool:
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


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended.

    `stopped` is the end of a trial that was never promoted: its metrics are those of its last evaluation. `retryable` marks a
    failure that is not the configuration's fault (a crash, a full disk): the next session runs such a trial again. `seconds`
    of a cut adapter are those of cutting and scoring it.
    """

    key: str
    status: Status
    metrics: dict[str, Number] = field(default_factory=dict)
    counts: dict[str, Number] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    error: str | None = None
    retryable: bool = False
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def with_facts(self, **facts: Any) -> TrialResult:
        return replace(self, facts={**self.facts, **facts})

    def of_cut(self, key: str) -> TrialResult:
        """Returns the result of a cut for which its training, which has this result, returned none."""
        if self.status == "finished":
            return TrialResult(key, "failed", error="its training finished without this size", retryable=True)
        return replace(self, key=key, metrics={}, counts={}, seconds=0.0)

    @property
    def settled(self) -> bool:
        """Whether no later session runs the trial again."""
        return self.status != "failed" or not self.retryable

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> TrialResult:
        """Raises TypeError for what is no result: an unknown or missing key, a metric or count that is no number."""
        result = cls(**fields)
        wrong = [f"{name} is {value!r}" for name, value in (result.metrics | result.counts).items() if not is_number(value)]
        if wrong:
            raise TypeError(f"{', '.join(wrong)}, which is no number")
        return result


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

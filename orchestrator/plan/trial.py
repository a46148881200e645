"""One trial: a configuration on one task with one seed. What Ray schedules, with no Ray in it.

`run_trial` is `craft.trainer.training.train_run` with a trial's manners: it works in a folder of its own, resumes from the
checkpoint it is given, and turns every end that a second try cannot better into a `TrialResult` with the reason. What a second
try may better (a lost disk, a poisoned GPU) it lets through, so that whoever scheduled the trial starts it again. A test calls
it as a cluster does.
"""

from __future__ import annotations

import errno
import gc
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from craft.results import Progress, RunFailed, RunResult
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.trainer.checkpoint import newest_valid
from orchestrator.sweepfile.resources import Resources

Status = Literal["finished", "failed", "stopped", "interrupted"]


@dataclass(frozen=True)
class TrialSpec:
    """A trial to run: `key` names it by content, `configuration` is the id of the configuration it belongs to; `resources` are
    its share of a machine, which are no part of what it is."""

    run: RunSpec
    configuration: str
    label: str
    resources: Resources = field(default_factory=Resources)

    @property
    def key(self) -> str:
        return self.run.key

    def to_json(self) -> dict[str, Any]:
        names = {"configuration": self.configuration, "label": self.label}
        return {"run": self.run.model_dump(mode="json"), "resources": self.resources.model_dump(mode="json"), **names}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrialSpec:
        resources = Resources.model_validate(content.get("resources", {}))
        return cls(RunSpec.model_validate(content["run"]), content["configuration"], content["label"], resources)


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

    @property
    def settled(self) -> bool:
        """Whether nothing is left to run for this trial, now or on a resume."""
        return self.status in ("finished", "stopped") or (self.status == "failed" and not self.retryable)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TrialResult:
        return cls(**content)


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
    ) -> RunResult: ...


def run_trial(
    spec: TrialSpec,
    directory: Path,
    report: Callable[[Progress], None],
    on_step: Callable[[int, int], None] = lambda step, total_steps: None,
    resume_from: Path | None = None,
    train: Train | None = None,
) -> tuple[TrialResult, Path | None]:
    """Runs a trial in `directory` and returns how it ended, with its adapter's folder where it finished.

    Memory that runs out (host or GPU) is answered once by smaller micro-batches with more accumulation, the effective batch
    the same, from the last checkpoint; the result says so in its notes.

    Args:
        report: called with every evaluation's progress; what it raises passes through.
        on_step: called after every optimizer step with its number and that of the last.
        resume_from: a checkpoint's folder from an earlier try of the same trial.
        train: what runs the training; `craft.trainer.training.train_run` unless given.

    Raises:
        OSError, RuntimeError: for faults of the machine, which another try may not meet.
    """
    train = train or _train_run()
    started = time.monotonic()
    notes: list[str] = []
    run = spec.run
    from_report: list[Exception] = []

    def passed_on(progress: Progress) -> None:
        try:
            report(progress)
        except Exception as error:
            from_report.append(error)
            raise

    while True:
        try:
            result = train(run, directory, report=passed_on, resume_from=resume_from, on_step=on_step)
            return _finished(spec, result, notes), result.adapter
        except Exception as error:
            if error in from_report or (is_transient(error) and not out_of_memory(error)):
                raise
            what = reason(error)
            if not out_of_memory(error):
                return _failed(spec, what, notes, started), None
        smaller = None if notes else _smaller(run.training)
        if smaller is None:
            tried = f" ({notes[0]})" if notes else ""
            named = what if what.startswith("out of memory") else f"out of memory: {what}"
            return _failed(spec, f"{named}{tried}", notes, started), None
        notes.append(f"micro-batches of {smaller.batch_size} x {smaller.gradient_accumulation} after memory ran out")
        run = run.model_copy(update={"training": smaller})
        resume_from = newest_valid(directory) or resume_from
        _release_memory()


def out_of_memory(error: BaseException) -> bool:
    """Whether host or GPU memory ran out, by torch's, Python's or the system's word for it."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and any(word in text for word in _MEMORY_WORDS))
    )


def is_transient(error: BaseException) -> bool:
    """Whether another try, perhaps on another machine, may succeed: input/output errors and a GPU in a bad state."""
    if isinstance(error, OSError):
        return not isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("CUDA error", "NCCL error", "cuDNN error"))


def reason(error: BaseException) -> str:
    """One line for the results' table: the message; for an unexpected kind of error also its kind and where it arose."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, RunFailed | ValueError | MemoryError):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"


_MEMORY_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")


def _train_run() -> Train:
    from craft.trainer.training import train_run

    return train_run


def _smaller(training: TrainingSettings) -> TrainingSettings | None:
    from craft.trainer.training import smaller_micro_batch

    return smaller_micro_batch(training)


def _release_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _finished(spec: TrialSpec, result: RunResult, notes: list[str]) -> TrialResult:
    return TrialResult(
        key=spec.key,
        status="finished",
        metrics=result.metrics,
        counts=result.counts.known(),
        steps=result.steps,
        seconds=result.seconds,
        notes=[*notes, *result.notes],
        facts={**result.facts, "best_step": result.best_step},
    )


def _failed(spec: TrialSpec, why: str, notes: list[str], started: float) -> TrialResult:
    return TrialResult(spec.key, "failed", seconds=time.monotonic() - started, error=why, notes=notes)

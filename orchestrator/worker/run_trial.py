"""Runs one trial and turns whatever happens into a result."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

from craft.results import Progress, RunResult
from craft.settings import TrainingSettings
from craft.trainer.checkpoint import newest_valid
from orchestrator.plan.trial import Train, TrialResult, TrialSpec
from orchestrator.worker.errors import is_transient, out_of_memory, reason


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

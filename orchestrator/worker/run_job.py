"""Runs the trials of one job and turns results and errors into outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from craft.results import Leave, Progress, RunResult, is_out_of_memory
from craft.settings import TrainingSettings
from craft.spec import BUDGET, RunSpec
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.words import format_bytes
from orchestrator.plan.trial import Job, Outcome, PlannedTrial, Train, TrialResult, result_of_cut
from orchestrator.sweepfile.resources import Resources
from orchestrator.worker.crash import is_transient, reason
from orchestrator.worker.surroundings import free_memory, train_of


def run_job(
    job: Job,
    directory: Path,
    report: Callable[[Progress], None],
    on_step: Callable[[int, int], None] = lambda step, total_steps: None,
    resume_from: Path | None = None,
    train: Train | None = None,
) -> list[Outcome]:
    """Runs a job in `directory` and returns how its training ended, and how its cuts did if that finished.

    Memory that runs out (host or GPU) is answered by smaller batches (`TrainingSettings.in_smaller_batches`), again and again,
    each time from the last checkpoint. The effective batch stays the same, and the result's notes tell the batches. Where the
    smallest do not fit, the trial fails, and a resumed sweep tries it again: on a larger share of a machine it may fit.

    Args:
        report: called with every evaluation's progress; what it raises passes through.
        on_step: called after every optimizer step with its number and that of the last; may raise `Leave`.

    Raises:
        Leave: `on_step` raised it; a checkpoint of the step has been reported.
        Exception: a fault of the machine (`is_transient`), which another try may not meet.
    """
    train = train_of(train)
    started = time.monotonic()
    run, tried = job.training.run, [job.training.run.training]
    from_report: list[Exception] = []

    def passed_on(progress: Progress) -> None:
        try:
            report(progress)
        except Exception as error:
            from_report.append(error)
            raise

    def failed(why: str, *, retryable: bool = False) -> list[Outcome]:
        seconds, notes = time.monotonic() - started, note_smaller_batches(tried)
        return [Outcome(TrialResult(job.key, "failed", seconds=seconds, error=why, notes=notes, retryable=retryable))]

    while True:
        try:
            cuts = {"cuts": [size_of(cut) for cut in job.cuts]} if job.cuts else {}
            result = train(run, directory, report=passed_on, resume_from=resume_from, on_step=on_step, **cuts)
            return _finished(job, result, note_smaller_batches(tried))
        except Leave:
            raise
        except Exception as error:
            if error in from_report or (is_transient(error) and not is_out_of_memory(error)):
                raise
            why = reason(error)
            if not is_out_of_memory(error):
                return failed(why)
            scoring = getattr(error, "scoring", False)
        if (smaller := in_smaller_batches(run, tried, scoring)) is None:
            return failed(no_room(why, tried, job.training.resources), retryable=True)
        run, resume_from = smaller, find_newest_checkpoint(directory) or resume_from


def in_smaller_batches(run: RunSpec, tried: list[TrainingSettings], scoring: bool) -> RunSpec | None:
    """Returns a run whose memory ran out in smaller batches, which are added to `tried`, and frees memory; None if it has the
    smallest. Called while no error is handled, whose traceback would keep what it holds."""
    if (smaller := run.training.in_smaller_batches(scoring=scoring)) is None:
        return None
    tried.append(smaller)
    free_memory()
    return run.model_copy(update={"training": smaller})


def size_of(trial: PlannedTrial) -> int:
    """Returns the number of parameters to which a trial cuts the adapter of its source."""
    assert trial.run.cut_from is not None
    return int(trial.run.cut_from.to.removeprefix(BUDGET))


def _finished(job: Job, result: RunResult, notes: list[str]) -> list[Outcome]:
    training = TrialResult(
        key=job.key,
        status="finished",
        metrics=result.metrics,
        counts=result.counts.known(),
        steps=result.steps,
        seconds=result.seconds,
        notes=[*notes, *result.notes],
        facts={**result.facts, "best_step": result.best_step, "phases": result.phases},
    )
    cuts = zip(job.cuts, result.cuts, strict=True)
    return [
        Outcome(training, result.adapter),
        *(Outcome(result_of_cut(cut.key, size, notes), size.adapter) for cut, size in cuts),
    ]


def note_smaller_batches(tried: Sequence[TrainingSettings]) -> list[str]:
    """Returns a note on the batches that a trial ended with, if it did not begin with them."""
    first, last = tried[0], tried[-1]
    batches = []
    if last.batch_size != first.batch_size:
        batches.append(f"micro-batches of {last.batch_size} x {last.gradient_accumulation}")
    if last.eval_batch_size != first.eval_batch_size:
        batches.append(f"evaluation batches of {last.eval_batch_size}")
    return [f"{' and '.join(batches)} after memory ran out"] if batches else []


def no_room(why: str, tried: Sequence[TrainingSettings], resources: Resources) -> str:
    """Returns why a trial failed that does not fit even in the smallest batches."""
    import torch

    named = why if why.startswith("out of memory") else f"out of memory: {why}"
    steps = ", ".join(dict.fromkeys(f"{settings.batch_size} x {settings.gradient_accumulation}" for settings in tried))
    scored = ", ".join(dict.fromkeys(str(settings.eval_batch_size) for settings in tried))
    tried_batches = f"{named} (tried micro-batches of {steps}; evaluation batches of {scored})."
    advice = "; --resume tries it again. In another sweep: training.gradient_checkpointing, or a smaller max_length"
    if resources.gpu and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        has = f"It has {resources.gpu / resources.count:g} of a GPU of {format_bytes(total)} and reserved"
        has += f" {format_bytes(torch.cuda.max_memory_reserved())} of it"
        return f"{tried_batches} {has}: give it more (resources.gpu, a larger GPU, method: qlora){advice}"
    if resources.memory is not None:
        has = f"resources.memory: {format_bytes(resources.memory)}: give it more, or a larger machine"
    else:
        has = "no limit of its own: give it a larger machine, or fewer neighbours (resources.memory)"
    return f"{tried_batches} It has {has}{advice}"

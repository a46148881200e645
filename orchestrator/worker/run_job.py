"""Runs the trials of one job and turns results and errors into outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from craft.results import Leave, Progress, RunFailed, RunResult, Train, is_out_of_memory
from craft.settings import TrainingSettings
from craft.spec import BUDGET, RunSpec
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.words import format_bytes
from orchestrator.plan.trial import Job, Outcome, PlannedTrial, TrialResult, result_of_cut
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
    started, run_training = time.monotonic(), train_of(train)
    tried, from_report = [job.training.run.training], list[Exception]()

    def passed_on(progress: Progress) -> None:
        try:
            report(progress)
        except Exception as error:
            from_report.append(error)
            raise

    cuts = {"cuts": [size_of(cut) for cut in job.cuts]} if job.cuts else {}

    def attempt(run: RunSpec) -> RunResult:
        start = (find_newest_checkpoint(directory) if len(tried) > 1 else None) or resume_from
        return run_training(run, directory, report=passed_on, resume_from=start, on_step=on_step, **cuts)

    try:
        result = in_batches_that_fit(job.training.run, tried, attempt, from_report)
    except Failed as error:
        why = no_room(error.why, tried, job.training.resources) if error.no_memory else error.why
        seconds, notes = time.monotonic() - started, note_smaller_batches(tried)
        end = TrialResult(job.key, "failed", seconds=seconds, error=why, notes=notes, retryable=error.no_memory)
        return [Outcome(end)]
    return _finished(job, result, note_smaller_batches(tried))


@dataclass
class Failed(Exception):
    """A run has failed; with `no_memory` it does not fit in the smallest batches."""

    why: str
    no_memory: bool


def in_batches_that_fit(
    run: RunSpec,
    tried: list[TrainingSettings],
    attempt: Callable[[RunSpec], RunResult],
    passed_on: Sequence[Exception] = (),
) -> RunResult:
    """Returns what `attempt` returns for a run, or for the run in smaller batches as long as memory runs out.

    Each smaller batch is added to `tried`. Raises Failed; Leave, faults of the machine and errors in `passed_on` pass through.
    """
    while True:
        try:
            return attempt(run)
        except Leave:
            raise
        except Exception as error:
            no_memory = is_out_of_memory(error)
            if error in passed_on or (is_transient(error) and not no_memory):
                raise
            why, scoring = reason(error), getattr(error, "scoring", False)
        # No error is handled here, whose traceback would keep the memory.
        if not no_memory or (smaller := run.training.in_smaller_batches(scoring=scoring)) is None:
            raise Failed(why, no_memory)
        tried.append(smaller)
        free_memory()
        run = run.model_copy(update={"training": smaller})


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
    return [Outcome(training, result.adapter), *(_outcome_of(cut, size, notes) for cut, size in cuts)]


def _outcome_of(cut: PlannedTrial, size: RunResult | RunFailed, notes: list[str]) -> Outcome:
    if isinstance(size, RunFailed):
        return Outcome(TrialResult(cut.key, "failed", error=reason(size), notes=notes))
    return Outcome(result_of_cut(cut.key, size, notes), size.adapter)


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

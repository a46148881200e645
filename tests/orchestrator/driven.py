"""A driver without Ray: tests start its jobs and say how they end."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.driver.display import Display
from orchestrator.driver.driver import Driver
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Job, Outcome, PlannedTrial, TrialResult
from orchestrator.record.folder import SweepFolder
from orchestrator.record.options import Options

Score = Callable[[PlannedTrial], float]


@contextmanager
def driving(plan: Plan, folder: Path, **options: Any) -> Iterator[Driver]:
    """A session that has begun, with the record in `folder`."""
    display = Display(io.StringIO(), "quiet")
    driver = Driver(plan, SweepFolder(folder.absolute()), Options(resume=True, **options), display)
    driver.begin()
    try:
        yield driver
    finally:
        driver.close()


def start_next(driver: Driver) -> Job:
    """Starts the next job."""
    job = driver.next_job()
    driver.record_start(job.key)
    return job


def finished(trial: PlannedTrial, score: Score, size: Score = lambda trial: 10.0, seconds: float = 1.0) -> TrialResult:
    """A result with the same score on both splits."""
    value, counts = float(score(trial)), {"trainable_parameters": float(size(trial))}
    return TrialResult(trial.key, "finished", {"score": value, "search_score": value}, counts, seconds=seconds)


def outcomes(job: Job, score: Score, size: Score = lambda trial: 10.0) -> Sequence[Outcome]:
    """The outcomes of a job whose trials all finish, with adapters named after them; its training takes 9 s, a cut 1 s."""
    return [
        Outcome(finished(trial, score, size, 9.0 if trial is job.training else 1.0), Path(trial.key)) for trial in job.trials
    ]


def run_some(
    plan: Plan, folder: Path, end: Callable[[Job], Sequence[Outcome]], at_most: int = 1000, notes: list[str] | None = None
) -> list[PlannedTrial]:
    """Runs what is wanted, one job at a time, until so many have ended; `notes` gets what the strategy said."""
    ran = list[PlannedTrial]()
    with driving(plan, folder) as driver:
        while len(ran) < at_most and (job := driver.next_job()) is not None:
            driver.record_start(job.key)
            driver.record_end(job.key, end(job))
            ran.append(job.training)
        assert driver.is_over or len(ran) == at_most
        if notes is not None:
            notes += driver.notes
    return ran

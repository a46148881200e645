"""`Agenda`: what the strategy of a sweep wants, as jobs in the session's queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.driver.display import Display
from orchestrator.driver.queue import Queue
from orchestrator.driver.session_log import SessionLog
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Job, jobs_of
from orchestrator.record.folder import SweepFolder
from orchestrator.search.scheduler import make_scheduler
from orchestrator.search.stages import make_strategy
from orchestrator.search.strategy import refusal
from orchestrator.state.entry import TrialResult
from orchestrator.state.events import Ended, Wanted


class Agenda(SessionLog):
    """The log of a session, with the jobs that remain by it.

    Attributes:
        plan: of the sweep file that counts now.
        strategy: says which trials are wanted.
        queue: the session's jobs: those that wait, and those that run.
        notes: sentences on what was decided, for the end of the session.
    """

    def __init__(self, plan: Plan, folder: SweepFolder, display: Display, clock: Callable[[], float] = time.monotonic) -> None:
        self.plan, self.strategy, self._scheduler = plan, make_strategy(plan), make_scheduler(plan.sweep)
        super().__init__(folder, display, self._scheduler)
        self.queue, self.notes = Queue(self._scheduler, clock), list[str]()
        self._asked_at = -1

    @property
    def promotes(self) -> bool:
        """Whether trials may have to wait for their turn."""
        return self._scheduler is not None

    def next_job(self, only: Sequence[str] | None = None) -> Job | None:
        """Returns the job that is to start now; None if all that is left must wait, or nothing is left (`is_over`).

        Args:
            only: keys of the jobs to choose from, if not from all.
        """
        while self.state.held is None:
            job = self.queue.take_next(self.state, only)
            if job is not None or only is not None or not (self._ask() or self._draw()):
                return job
        return None

    def _ask(self) -> bool:
        """Asks the strategy again if something has ended or was drawn since; returns whether it wants more."""
        if self._asked_at == self.changes:
            return False
        self._asked_at = self.changes
        wanted = self.strategy.wanted(self.state)
        self.notes = [*dict.fromkeys([*self.notes, *self.strategy.notes(self.state)])]
        new = [trial for trial in wanted if trial.key not in self.state.wanted]
        if not new:
            return False
        recorded = self.state.entries
        described = [trial.trial for trial in new if trial.key not in recorded or recorded[trial.key].trial != trial.trial]
        self.record(Wanted(keys=[trial.key for trial in new], trials=described))
        for job in jobs_of(wanted):
            if self.queue.jobs.get(job.key) != job:
                self._add(job)
        self.display.expect(len(self.queue.jobs) if self.plan.adaptive else max(len(self.queue.jobs), self.plan.most_jobs))
        return True

    def _add(self, job: Job) -> None:
        """Lets a job that is wanted wait, if it has something left to run and the engine does not have it."""
        self.queue.jobs[job.key] = job
        if job.key in self.queue.submitted:
            return
        left, training = self.state.unfinished(job.keys), self.state.entries[job.key]
        if training.ended and training.finished is None and left:
            # A training that has no adapter has nothing to cut.
            assert training.result is not None
            self.record(*(Ended(result=as_its_training(key, training.result)) for key in left))
        elif left:
            self.queue.waiting[job.key] = job

    def _wait_again(self, key: str) -> None:
        if key in self.queue.jobs:
            self._add(self.queue.jobs[key])

    def _record_refused(self) -> None:
        if not self.plan.adaptive:  # those that an adaptive plan dropped were tried out, not proposed
            refused = [drop for drop in self.plan.dropped if drop.configuration.id not in self.state.refused]
            self.record(*(refusal(drop, self.plan.sweep.protocol) for drop in refused))

    def _draw(self) -> bool:
        """Lets a searcher draw; returns whether it did."""
        events = self.strategy.draw(self.state)
        if events:
            self.record(*events)
        return bool(events)

    def _left(self, key: str) -> list[str]:
        """Returns the keys of a job's trials that have not ended, in its order; those of what the engine has of it, if it has
        it."""
        job = self.queue.job(key)
        return self.state.unfinished(job.keys) if job is not None else []


def as_its_training(key: str, training: TrialResult) -> TrialResult:
    """Returns the result of a cut for which its training returned none."""
    if training.status == "finished":
        return TrialResult(key, "failed", error="its training finished without this size", retryable=True)
    return replace(training, key=key, metrics={}, counts={}, seconds=0.0)

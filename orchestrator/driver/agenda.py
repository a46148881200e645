"""`Agenda`: what the strategy of a sweep wants, as jobs in the session's queue, and the session's end of the sweep's log.

A job waits, then the engine has it, then it runs. What happens is written to the log, changes the state, and is shown.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.driver.display import Display
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Job, jobs_of
from orchestrator.record.folder import SweepFolder
from orchestrator.search.scheduler import PromotionScheduler, make_scheduler
from orchestrator.search.stages import make_strategy
from orchestrator.search.strategy import refusal
from orchestrator.state.entry import TrialResult
from orchestrator.state.events import Applied, Decided, Ended, Event, Proposed, Requested, Wanted
from orchestrator.state.log import Log, read_events
from orchestrator.state.state import State

DECISIVE = (Ended, Proposed, Decided, Applied, Requested)
"""Events after which other trials may be wanted."""


class SessionLog:
    """The log in a sweep's folder, folded, for one session.

    Attributes:
        state: the state of the sweep.
        changes: how many decisive events there were in this session.
        lock: held while an event is taken.
    """

    def __init__(self, folder: SweepFolder, display: Display, scheduler: PromotionScheduler | None) -> None:
        """
        Args:
            scheduler: gets each event of earlier sessions.
        """
        self.folder, self.display, self.lock = folder, display, threading.RLock()
        self.state, self.changes = State(), 0
        for event, _ in read_events(folder.record):
            self.state = self.state.after(event)
            if scheduler is not None:
                scheduler.on_report(event, self.state)
        self._log: Log | None = None
        self._before = frozenset(key for key, entry in self.state.entries.items() if entry.finished)

    def open(self) -> None:
        """Opens the log for writing."""
        self._log = Log(self.folder.record)

    def record(self, *events: Event) -> None:
        """Records events: writes them to the log, changes the state by them, and shows them."""
        with self.lock:
            assert self._log is not None, "the session has not begun"
            self._log.append(*events)
            if self._log.trouble is not None:
                self.display.trouble(f"{self.folder.record} cannot be written ({self._log.trouble.strerror}); trying again")
            for event in events:
                self.state = self.state.after(event)
                self.changes += isinstance(event, DECISIVE)
                self.display.show(event, self.state)

    def flush(self) -> bool:
        """Retries pending writes; returns whether none is left."""
        assert self._log is not None
        return self._log.flush()

    def close(self) -> None:
        """Closes the log."""
        if self._log is not None:
            self._log.close()

    @property
    def new(self) -> frozenset[str]:
        """Keys of the trials that finished in this session."""
        return frozenset(key for key, entry in self.state.entries.items() if entry.finished) - self._before


class Queue:
    """The jobs that are wanted in a session.

    Attributes:
        jobs: all of them, by the key of their training.
        waiting: those that wait for room, a source or their turn, in the order in which they are wanted.
        running: those that run, with the time at which they started.
        submitted: jobs that the engine has, as it got them. It starts a job some time later, and what is wanted of the job
            may change meanwhile.
    """

    def __init__(self, scheduler: PromotionScheduler | None, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            scheduler: decides which job may run if not all are promoted.
        """
        self._scheduler, self._clock = scheduler, clock
        self.jobs: dict[str, Job] = {}
        self.waiting: dict[str, Job] = {}
        self.running: dict[str, float] = {}
        self.submitted: dict[str, Job] = {}

    def job(self, key: str) -> Job | None:
        """Returns a job as the engine has it, or as it is wanted; None if neither."""
        return self.submitted.get(key) or self.jobs.get(key)

    def take_next(self, state: State, only: Sequence[str] | None = None) -> Job | None:
        """Returns the job that is to start now, which does not wait any more; None if all must wait.

        Args:
            only: keys of the jobs to choose from, if not from all.
        """
        waiting = self.waiting if only is None else {key: self.waiting[key] for key in only if key in self.waiting}
        if self._scheduler is not None:
            busy = {state.entries[key].trial.configuration for key in self.submitted}
            job = self._scheduler.next_job(waiting.values(), busy, state)
        else:
            job = next((job for job in waiting.values() if _is_ready(job, state)), None)
        if job is not None:
            del self.waiting[job.key]
            self.submitted[job.key] = job
        return job

    def start(self, key: str) -> None:
        """Notes that a job runs, for the first time or again."""
        self.running.setdefault(key, self._clock())

    def leave(self, key: str) -> None:
        """Notes that a job neither waits nor runs."""
        self.waiting.pop(key, None)
        self.running.pop(key, None)
        self.submitted.pop(key, None)

    def sort(self, state: State) -> None:
        """Puts in line, in their order, all jobs that have something left to run and that the engine does not have."""
        free = (job for key, job in self.jobs.items() if key not in self.submitted)
        self.waiting = {job.key: job for job in free if state.unfinished(job.keys)}

    def restart(self, state: State) -> None:
        """Notes that the engine has no job any more."""
        self.running.clear()
        self.submitted.clear()
        self.sort(state)


def _is_ready(job: Job, state: State) -> bool:
    source = state.entries.get(job.source) if job.source else None
    return job.source is None or (source is not None and source.ended)


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
        return True

    def _add(self, job: Job) -> None:
        """Lets a job that is wanted wait, if it has something left to run and the engine does not have it."""
        self.queue.jobs[job.key] = job
        if job.key in self.queue.submitted:
            return
        unfinished, training = self.state.unfinished(job.keys), self.state.entries[job.key]
        if training.ended and training.finished is None and unfinished:
            # A training that has no adapter has nothing to cut.
            assert training.result is not None
            self.record(*(Ended(result=as_its_training(key, training.result)) for key in unfinished))
        elif unfinished:
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

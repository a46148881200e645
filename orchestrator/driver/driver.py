"""`Driver`: the loop of a sweep, with the engine that runs its jobs left out.

    log ── fold ──> state ── strategy ──> wanted trials ──> next job ──> engine (Ray Tune)
     ^                                                                      │
     └──────────────────────── events ──────────────────────────────────────┘

The engine (`orchestrator.tune`) asks for jobs while it has room, and reports what happens to them. Each report becomes an
event: it is written to the log, changes the state, and is shown. One other thread may come in, to close the record when the
driver's own thread is lost in Ray; `lock` keeps the two apart.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.driver.display import Display, SweepOutcome
from orchestrator.driver.queue import CommonCause, Queue
from orchestrator.driver.request import pending, whoami
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Job, Outcome, TrialResult, jobs_of
from orchestrator.record import events
from orchestrator.record.checkpoints import outcome_of
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import Log, read_events, read_state
from orchestrator.record.manifest import describe_session
from orchestrator.record.options import Options
from orchestrator.record.resume import copied_from
from orchestrator.record.state import new_rows
from orchestrator.search.scheduler import make_scheduler
from orchestrator.search.stages import make_strategy
from orchestrator.search.strategy import refusal
from orchestrator.sweepfile.resources import Resources

logger = logging.getLogger(__name__)

UNDERWAY_EVERY = 15.0
"""Seconds between two records of how far the running trials are."""
DECISIVE = (events.Ended, events.Proposed, events.Decided, events.Applied, events.Requested)
"""Events after which other trials may be wanted."""
NOT_PROMOTED = "never among the best of its rivals, so it was not continued"


class Driver:
    """One session of a sweep: its log, replayed, and the jobs that remain by it. Its seconds, by which budgets are used up, are
    those of `clock`."""

    def __init__(
        self,
        plan: Plan,
        folder: SweepFolder,
        options: Options,
        display: Display,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.options, self.display, self.stopping, self._clock = folder, options, display, stopping, clock
        self.plan, self.strategy, self._scheduler = plan, make_strategy(plan), make_scheduler(plan.sweep)
        self.promotes = self._scheduler is not None
        self.queue, self.notes, self.lock = Queue(self._scheduler, clock), list[str](), threading.RLock()
        self.state = read_state(folder.record)
        self._log: Log | None = None
        if self._scheduler is not None:
            for event, _ in read_events(folder.record):
                self._scheduler.on_report(event, self.state)
        self._changes, self._asked_at = 0, -1
        self.storage, self.copied_from = options.storage_of(folder.path), copied_from(folder.path, self.state)
        self.common_cause = CommonCause(clock)
        self.watchers = list[Callable[[], None]]()  # called at every tick
        self._began = self._next_underway = clock()

    def begin(self, started: events.SessionStarted | None = None) -> None:
        """Starts the session: from here on the folder holds a record."""
        self._log = Log(self.folder.record)
        if self.copied_from is not None or not self.state.sweep_id:
            self.record(events.Opened(sweep=self.plan.sweep.name, sweep_id=uuid.uuid4().hex))
        failed = [entry.key for entry in self.state.entries.values() if entry.failed]
        if failed and self.options.retry_failed:
            self.record(events.Requested(request="--retry-failed", who=whoami(), verb="retry", keys=failed))
        self.record(replace(started or describe_session(self.plan), folder=str(self.folder.path)))
        self._record_refused()
        if self.state.held is not None:
            self.display.say(f"paused by {self.state.held.who}: no trial starts until the sweep is continued", style="bold")
        self._ask()
        self._take_requests(first=True)

    def follow(self, event: events.Applied | events.Requested, plan: Plan, options: Options) -> None:
        """Does what a person has asked for. Under another sweep file, what runs and is still wanted continues."""
        with self.lock:
            is_new = plan is not self.plan
            if is_new:
                self.plan, self.strategy, self.options = plan, make_strategy(plan), options
                self.queue.jobs.clear()
            self.record(event)
            if is_new:
                self._record_refused()
                self._ask()
            keys = event.keys if isinstance(event, events.Requested) else []
            again = [key for key in self.state.unfinished(keys) if key in self.queue.running]
            if again:  # it was to be stopped, and has not been yet
                self.record(events.Started(keys=again))

    def record(self, *new: events.Event) -> None:
        """Records events: writes them to the log, changes the state by them, and shows them."""
        with self.lock:
            assert self._log is not None, "the session has not begun"
            self._log.append(*new)
            if self._log.trouble is not None:
                self.display.trouble(f"{self.folder.record} cannot be written ({self._log.trouble.strerror}); trying again")
            for event in new:
                self.state = self.state.after(event)
                self._changes += isinstance(event, DECISIVE)
                self.display.show(event, self.state)

    def flush(self) -> bool:
        """Retries pending writes; returns whether none is left."""
        assert self._log is not None, "the session has not begun"
        return self._log.append()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    # What the engine asks.

    def next_job(self, only: Sequence[str] | None = None) -> Job | None:
        """Returns the job that is to start now; None if all that is left must wait, or nothing is left (`is_over`)."""
        while self.state.held is None:
            job = self.queue.take_next(self.state, only)
            if job is not None or only is not None:
                return job
            if not self._ask():
                drawn = self.strategy.draw(self.state)
                if not drawn:
                    return None
                self.record(*drawn)
        return None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to run: nothing runs, nothing that waits can start, and the strategy wants no more."""
        if self.queue.running or self.strategy.is_open(self.state):
            return False
        return (self._scheduler is not None and self.state.held is None) or not self.queue.waiting(self.state)

    @property
    def is_open(self) -> bool:
        self._ask()
        return bool(self.queue.running or self.queue.waiting(self.state)) or self.strategy.is_open(self.state)

    @property
    def is_ending(self) -> bool:
        """Whether no job may start any more: by a signal, a used-up budget, or a fault that all trials meet."""
        return self.stopping() or self.exhausted is not None or self.common_cause.trouble is not None

    @property
    def exhausted(self) -> str | None:
        """The part of the budget that is used up; None while there is time left, or without a limit."""
        budget = self.plan.sweep.budget
        limit = budget.wall_clock_seconds
        return None if limit is None or self.seconds < limit else f"budget.wall_clock: {budget.wall_clock_text} are over"

    def is_ended(self, key: str) -> bool:
        """Returns whether no trial of a job has anything left to run in this session."""
        return not self._left(key)

    def must_leave(self, key: str) -> bool:
        """Returns whether the engine must give back a job: none of the job's trials is wanted any more, or the sweep is paused
        and the job has not begun."""
        waits = self.state.held is not None and key not in self.queue.running
        return key in self.queue.submitted and (waits or not any(trial in self.state.wanted for trial in self._left(key)))

    @property
    def waiting_shares(self) -> list[Resources]:
        """What the jobs ask of a machine that could run now, and do not."""
        jobs = {**self.queue.submitted, **self.queue.waiting(self.state)}
        return [job.training.resources for key, job in jobs.items() if key not in self.queue.running]

    # What the engine reports.

    def receive(self, attempt: int, key: str, message: Mapping[str, Any], checkpoint: str | None) -> bool:
        """Takes a message of a running job (`orchestrator.worker.worker`); returns whether the job must leave its place."""
        if "outlook" in message:
            if not self.state.entries[key].ended:  # it is shown, and not recorded
                self.display.look(key, message["outlook"])
        elif "results" in message:
            results = [TrialResult.from_json(result) for result in message["results"]]
            place = self.folder.adapters, self.storage, attempt, key, checkpoint
            self.record_end(key, [outcome_of(result, *place) for result in results])
            if results[0].retryable and not results[0].seconds:  # it could not begin
                self.common_cause.failed(str(results[0].error), self.queue.running.values())
            else:
                self.common_cause.works()
        elif "progress" in message:
            progress = message["progress"]
            waits = self.record_report(key, progress)
            return waits or self.must_leave(key) or (self.state.held is not None and progress["step"] < progress["total_steps"])
        return self.must_leave(key)

    def record_start(self, key: str) -> None:
        self.queue.start(key)
        self.record(events.Started(keys=self._left(key)))

    def record_report(self, key: str, progress: Mapping[str, Any]) -> bool:
        """Records an evaluation of a running training; returns whether it must leave its place."""
        if not progress.get("again"):  # a resumed trial repeats what it had before, also where nothing can be trained
            self.common_cause.works()
        entry = self.state.entries[key]
        row = {**progress["metrics"], "step": progress["step"], "epoch": progress["epoch"], "time": progress["time"]}
        rows = new_rows(entry, [*progress["points"], row])
        if entry.ended or not rows or rows[-1]["step"] != progress["step"]:
            return False
        report = events.Reported(key=key, rows=rows, epoch=progress["epoch"], total_steps=progress["total_steps"])
        self.record(report)
        return self._scheduler is not None and self._scheduler.on_report(report, self.state)

    def record_end(self, key: str, outcomes: Sequence[Outcome]) -> None:
        """Records the results of a job that has ended, before anything else happens.

        Args:
            outcomes: of the trials that the job has results for, its training's first. The others end as the training did.
        """
        training, by_key = outcomes[0].result, {outcome.result.key: outcome for outcome in outcomes}
        every = [by_key.get(trial) or Outcome(training.of_cut(trial)) for trial in self._left(key)]
        self.queue.leave(key)
        self.record(*(events.Ended(result=outcome.result, adapter=self.folder.relative(outcome.adapter)) for outcome in every))
        self._end_cuts(key)

    def record_leave(self, key: str) -> None:
        """Notes that the engine has given a job back without a result: if it is wanted it waits, and continues from its last
        checkpoint."""
        if key not in self.queue.submitted:
            return
        unfinished = self._left(key) if key in self.queue.running else []
        self.queue.leave(key)
        if unfinished:
            self.record(events.Paused(keys=unfinished) if key in self.queue.jobs else events.Interrupted(keys=unfinished))
        self._end_cuts(key)

    def show_retry(self, key: str, why: str) -> None:
        """Shows that the job's process or machine died; the engine starts it again."""
        logger.warning("trial %s is started again: %s", key, why)
        self.display.retry(self.state.entries[key], why)

    def record_failure(self, key: str, reason: str, *, tries: int = 1, by_itself: bool = False) -> None:
        """Records that a job has failed by a fault of its machine, after all its tries."""
        error = f"{reason} ({tries} times)" if tries > 1 else reason
        self.record_end(key, [Outcome(TrialResult(key, "failed", error=error, retryable=True))])
        if by_itself:
            self.common_cause.failed(reason, self.queue.running.values())

    def record_break(self) -> list[str]:
        """Notes that the engine has ended; returns the keys of the jobs that were running. All unfinished jobs wait again."""
        keys = [*self.queue.running]
        for key in keys:
            self.display.retry(self.state.entries[key], "the attempt broke off")
        if keys:
            self.record(events.Interrupted(keys=[trial for key in keys for trial in self._left(key)]))
        self.queue.restart()
        return keys

    def end_waiting(self) -> None:
        """Ends each trial that waits to be promoted, with its last evaluation as its result, if nothing more comes that could
        promote it; called when nothing runs."""
        if self._scheduler is None or self.strategy.is_open(self.state):
            return
        for key in self.queue.waiting(self.state):
            self.record_end(key, [Outcome(self.state.entries[key].stopped(NOT_PROMOTED))])

    def tick(self) -> None:
        """Does what people have asked for, retries pending writes, and shows how far the sweep is; called often."""
        for watch in self.watchers:
            watch()
        with self.lock:
            self._take_requests()
            self.display.tick()
            if self._clock() >= self._next_underway:
                self._next_underway = self._clock() + UNDERWAY_EVERY
                now = self.display.progress()
                self.record(events.Underway(left=now.seconds_left, doing=now.doing))

    def stop(self) -> str | None:
        """Notes that nothing runs any more; returns what is wrong if the disk does not take the record."""
        with self.lock:
            keys = [key for job in self.queue.running for key in self._left(job)]
            if keys:
                self.record(events.Interrupted(keys=keys))
            if self.flush():
                return None
            return (
                f"{self.folder.path} cannot be written: results since then are kept only in {self.storage}; "
                "make room and --resume"
            )

    def outcome(self, trouble: str | None, signal: int | None) -> SweepOutcome:
        """Returns the outcome of a session that ended early for `trouble`, or by a signal, if it did."""
        exhausted, is_open = self.exhausted, self.strategy.is_open(self.state)
        notes = [*([f"ended by {exhausted}"] if exhausted else []), *self.notes]
        return SweepOutcome(self.state, self.seconds, trouble, signal, exhausted, notes, is_open)

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def _take_requests(self, first: bool = False) -> None:
        """Answers the requests since the last call, one by one. Before the disk has all events no request is removed."""
        on_disk = self.flush()
        for request in pending(self.folder):
            if request.name in self.state.answered:
                if on_disk:
                    request.remove(self.folder)
                continue
            try:
                answer = request.answer(self.folder, self.plan, self.state, self.options, first=first)
            except Exception as error:  # whatever is wrong with a request, it may not end the sweep
                logger.warning("the request %s is refused", request.name, exc_info=error)
                request.refuse(self.folder, str(error) or type(error).__name__)
                continue
            if answer is not None:
                self.follow(*answer)

    def _ask(self) -> bool:
        """Asks the strategy again if something has ended or was drawn since; returns whether it wants more."""
        if self._asked_at == self._changes:
            return False
        self._asked_at = self._changes
        wanted = self.strategy.wanted(self.state)
        self.notes = [*dict.fromkeys([*self.notes, *self.strategy.notes(self.state)])]
        new = [trial for trial in wanted if trial.key not in self.state.wanted]
        if not new:
            return False
        recorded = self.state.entries
        described = [trial.trial for trial in new if trial.key not in recorded or recorded[trial.key].trial != trial.trial]
        self.record(events.Wanted(keys=[trial.key for trial in new], trials=described))
        for job in jobs_of(wanted):
            if self.queue.jobs.get(job.key) != job:
                self.queue.jobs[job.key] = job
                self._end_cuts(job.key)
        return True

    def _end_cuts(self, key: str) -> None:
        """Ends what is to be cut from a training that has ended without an adapter, unless the engine has the job."""
        job = self.queue.jobs.get(key)
        if job is None or key in self.queue.submitted:
            return
        cuts, training = self.state.unfinished(job.keys), self.state.entries[key]
        if cuts and training.ended and training.finished is None:
            assert training.result is not None
            self.record(*(events.Ended(result=training.result.of_cut(cut)) for cut in cuts))

    def _record_refused(self) -> None:
        if not self.plan.adaptive:  # those that an adaptive plan dropped were tried out, not proposed
            refused = [drop for drop in self.plan.dropped if drop.configuration.id not in self.state.refused]
            self.record(*(refusal(drop.configuration, drop.reason, self.plan.sweep.protocol) for drop in refused))

    def _left(self, key: str) -> list[str]:
        """Returns the keys of a job's trials that have not ended, in its order; those of what the engine has of it, if it has
        it."""
        job = self.queue.job(key)
        return self.state.unfinished(job.keys) if job is not None else []

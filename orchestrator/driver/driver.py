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
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.control.request_queue import Command, RequestQueue
from orchestrator.driver.agenda import Agenda, as_its_training
from orchestrator.driver.common_cause import CommonCause
from orchestrator.driver.display import Display
from orchestrator.driver.options import RunOptions
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Outcome
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import describe_session
from orchestrator.record.resume import copied_from
from orchestrator.search.stages import make_strategy
from orchestrator.state.entry import TrialResult
from orchestrator.state.events import (
    Ended,
    Interrupted,
    Opened,
    Paused,
    Reopened,
    Reported,
    SessionStarted,
    Started,
    Underway,
)
from orchestrator.state.state import new_rows

logger = logging.getLogger(__name__)

UNDERWAY_EVERY = 15.0
"""Seconds between two records of how far the running trials are."""
NOT_PROMOTED = "never among the best of its rivals, so it was not continued"


class Driver(Agenda):
    """One session of a sweep.

    Attributes:
        stopping: says whether somebody asked for the session's end.
        common_cause: notices that trial after trial fails for one fault of the machines.
        storage: where checkpoints and adapters go: an absolute path or a URI.
        copied_from: the folder that this one is a copy of; None if it is none.
        requests: has what people ask of the sweep while it runs.
        watch: called at each tick.
    """

    def __init__(
        self,
        plan: Plan,
        options: RunOptions,
        display: Display,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            clock: the seconds of this session, by which budgets are used up and progress is recorded.
        """
        self.options, self.stopping, self._clock = options, stopping, clock
        super().__init__(plan, SweepFolder(options.folder.absolute()), display, clock)
        self.storage, self.copied_from = options.storage_of_trials, copied_from(self.folder.path, self.state)
        self.requests = RequestQueue(self.folder, options.sweep_file)
        self.common_cause = CommonCause(clock)
        self.watch: Callable[[], None] = lambda: None
        self._began = self._next_underway = clock()

    def begin(self, started: SessionStarted | None = None) -> None:
        """Starts the session: from here on the folder holds a record.

        Args:
            started: what the record says of it; what the plan says of it if not given.
        """
        self.open()
        if self.copied_from is not None or not self.state.sweep_id:
            self.record(Opened(sweep=self.plan.sweep.name, sweep_id=uuid.uuid4().hex))
        if self.options.retry_failed:
            failed = [entry.key for entry in self.state.entries.values() if entry.result and entry.result.status == "failed"]
            self.record(Reopened(keys=failed))
        self.record(replace(started or describe_session(self.plan), folder=str(self.folder.path)))
        self._record_refused()
        if self.state.held is not None:
            self.display.say(f"paused by {self.state.held.who}: no trial starts until the sweep is continued", style="bold")
        self._ask()
        self._take_requests()

    def follow(self, command: Command) -> None:
        """Does what a person has asked for. Under another sweep file, what runs and is still wanted continues."""
        with self.lock:
            if command.plan is not None:
                self.plan, self.strategy = command.plan, make_strategy(command.plan)
                self.queue.jobs.clear()
            self.record(command.event)
            if command.plan is not None:
                self._record_refused()
                self._ask()
            again = [key for key in self.state.unfinished(command.keys) if key in self.queue.running]
            if again:  # it was to be stopped, and has not been yet
                self.record(Started(keys=again))
            self.queue.sort(self.state)

    # What the engine asks.

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to run: nothing runs, nothing that waits can start, and the strategy wants no more."""
        if self.queue.running or self.requests.is_busy or self.strategy.is_open(self.state):
            return False
        return (self._scheduler is not None and self.state.held is None) or not self.queue.waiting

    @property
    def is_open(self) -> bool:
        """Whether there is anything to run, or may be."""
        self._ask()
        return bool(self.queue.running or self.queue.waiting or self.requests.is_busy) or self.strategy.is_open(self.state)

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

    # What the engine reports.

    def record_start(self, key: str) -> None:
        """Notes that a job runs, for the first time or again."""
        self.queue.start(key)
        self.record(Started(keys=self._left(key)))

    def record_report(self, key: str, progress: Mapping[str, Any]) -> bool:
        """Records an evaluation of a running training; returns whether it must leave its place.

        Args:
            progress: of `craft.results.Progress`, as `orchestrator.worker.worker` sends it.
        """
        if not progress.get("again"):  # a resumed trial repeats what it had before, also where nothing can be trained
            self.common_cause.works()
        entry = self.state.entries[key]
        row = {**progress["metrics"], "step": progress["step"], "epoch": progress["epoch"], "time": progress["time"]}
        rows = new_rows(entry, [*progress["points"], row])
        if entry.ended or not rows or rows[-1]["step"] != progress["step"]:
            return False
        report = Reported(key=key, rows=rows, epoch=progress["epoch"], total_steps=progress["total_steps"])
        self.record(report)
        return self._scheduler is not None and self._scheduler.on_report(report, self.state)

    def show_outlook(self, key: str, outlook: Mapping[str, Any]) -> None:
        """Shows the progress of a running training, which is not recorded."""
        if not self.state.entries[key].ended:
            self.display.look(key, outlook)

    def record_end(self, key: str, outcomes: Sequence[Outcome]) -> None:
        """Records the results of a job that has ended, before anything else happens.

        Args:
            outcomes: of the trials that the job has results for, its training's first. The others end as the training did.
        """
        training, by_key = outcomes[0].result, {outcome.result.key: outcome for outcome in outcomes}
        every = [by_key.get(trial) or Outcome(as_its_training(trial, training)) for trial in self._left(key)]
        self.queue.leave(key)
        self.record(*(Ended(result=outcome.result, adapter=self._relative(outcome.adapter)) for outcome in every))
        self._wait_again(key)

    def record_leave(self, key: str) -> None:
        """Notes that the engine has given a job back without a result: if it is wanted it waits, and continues from its last
        checkpoint."""
        if key not in self.queue.submitted:
            return
        unfinished = self._left(key) if key in self.queue.running else []
        self.queue.leave(key)
        if unfinished:
            self.record(Paused(keys=unfinished) if key in self.queue.jobs else Interrupted(keys=unfinished))
        self._wait_again(key)

    def show_retry(self, key: str, why: str) -> None:
        """Shows that the job's process or machine died; the engine starts it again."""
        logger.warning("trial %s is started again: %s", key, why)
        self.display.retry(self.state.entries[key], why)

    def record_failure(self, key: str, reason: str, *, tries: int = 1, by_itself: bool = False) -> None:
        """Records that a job has failed by a fault of its machine, after all its tries.

        Args:
            by_itself: whether the trial said so itself, and its process was not lost.
        """
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
            self.record(Interrupted(keys=[trial for key in keys for trial in self._left(key)]))
        self.queue.restart(self.state)
        return keys

    def end_waiting(self) -> None:
        """Ends each trial that still waits, with its last evaluation as its result; called when nothing runs and nothing more
        comes."""
        for key in [*self.queue.waiting]:
            entry = self.state.entries[key]
            report = entry.report
            metrics, step = (dict(report.metrics), report.step) if report else ({}, 0)
            result = TrialResult(key, "stopped", metrics, steps=step, seconds=entry.seconds, notes=[NOT_PROMOTED])
            self.record_end(key, [Outcome(result)])

    def tick(self) -> None:
        """Does what people have asked for, retries pending writes, and shows how far the sweep is; called often."""
        self.watch()
        with self.lock:
            self._take_requests()
            self.display.tick()
            if self._clock() >= self._next_underway:
                self._next_underway = self._clock() + UNDERWAY_EVERY
                now = self.display.progress()
                if now.doing or now.seconds_left is not None:
                    self.record(Underway(left=now.seconds_left, doing=now.doing))

    def stop(self) -> str | None:
        """Notes that nothing runs any more; returns what is wrong if the disk does not take the record."""
        with self.lock:
            keys = [key for job in self.queue.running for key in self._left(job)]
            if keys:
                self.record(Interrupted(keys=keys))
            if self.flush():
                return None
            return (
                f"{self.folder.path} cannot be written: results since then are kept only in {self.storage}; "
                "make room and --resume"
            )

    @property
    def seconds(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._began

    def _take_requests(self) -> None:
        on_disk = self.flush()
        for command in self.requests.commands(lambda: (self.plan, self.state), on_disk):
            self.follow(command)

    def _relative(self, path: Path | None) -> str | None:
        if path is None:
            return None
        path = path.resolve()
        return str(path.relative_to(self.folder.path)) if path.is_relative_to(self.folder.path) else str(path)

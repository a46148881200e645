"""`PlayedSweep`: a sweep's driver with an engine that is played: it starts, ends, is killed, continues, and runs to its end."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Literal

from orchestrator.driver.display import Display
from orchestrator.driver.request import new_request, pending
from orchestrator.plan.trial import Job, Outcome, TrialResult
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.record.options import Options
from orchestrator.search.stages import make_strategy
from tests.orchestrator.record.played import FILES, STEPS, Watched, finished, job_of, plan_of, progress, same_file


class PlayedSweep:
    """A sweep of one kind.

    Attributes:
        variant: the number of its file among those of its kind.
        submitted: jobs that the driver has handed out and that have not begun.
        steps: how far each running or stopped job is.
        finished: the results that may not change any more.
        diverged: whether a trial has failed for good or was stopped.
    """

    folder: Path
    kind: str
    variant: int
    driver: Watched
    submitted: dict[str, Job]
    steps: Counter[str]
    finished: dict[str, TrialResult]
    diverged: bool

    def start(self, variant: int, retry_failed: bool = False) -> None:
        self.variant = variant % len(FILES[self.kind])
        plan = plan_of(self.kind, self.variant)
        folder, options = SweepFolder(self.folder), Options(resume=True, retry_failed=retry_failed)
        # The number of the log's lines decides what hypothesis can draw, so it may not depend on the time.
        self.driver = Watched(plan, folder, options, Display(io.StringIO(), "quiet"), clock=lambda: 0.0)
        self.driver.begin()
        self.submitted: dict[str, Job] = {}

    def end_job(self, key: str, end: str = "finished") -> None:
        job = job_of(self.driver, key)
        if end == "lost":
            self.driver.record_failure(key, "its machine is gone")
        elif end == "diverged" and key not in self.finished:
            self.diverged = True
            self.driver.record_end(key, [Outcome(TrialResult(key, "failed", error="diverged"))])
        else:
            if key not in self.finished:
                self.evaluate_last(job)
            trials = job.trials[:-1] if end == "no size" and len(job.trials) > 1 else job.trials
            results = {trial.key: finished(trial) for trial in trials}
            left = self.driver.state.unfinished(results)  # a cut may have been stopped while its job ran
            self.driver.record_end(key, [Outcome(result) for result in results.values()])
            self.finished = {key: results[key] for key in left} | self.finished

    def evaluate_last(self, job: Job) -> None:
        if self.driver.promotes and self.steps[job.key] < STEPS:
            self.steps[job.key] = STEPS
            self.driver.record_report(job.key, progress(job.training, STEPS))

    def request_hold(self, verb: Literal["pause", "continue"]) -> None:
        new_request(verb).write(SweepFolder(self.folder))
        self.tell()

    def note_file(self) -> None:
        files = range(len(FILES[self.kind]))
        self.variant = next(number for number in files if same_file(self.driver.plan, plan_of(self.kind, number)))

    def tell(self) -> None:
        """Lets the driver answer all requests."""
        for _ in range(4):
            self.driver.tick()
        assert not pending(SweepFolder(self.folder))
        # They have not begun, and the engine gives them back.
        for key in [key for key in self.submitted if self.driver.must_leave(key)]:
            self.driver.record_leave(key)
            del self.submitted[key]

    def kill_and_start(self) -> None:
        """Kills the driver, and starts another under the file that counts by its log."""
        self.note_file()
        self.abandon()
        self.driver.close()
        self.start(self.variant)

    @property
    def record(self) -> Path:
        return SweepFolder(self.folder).record

    def abandon(self) -> None:
        """Loses the driver, and with it its lock."""
        self.driver._log._journal.close()

    def resume(self, variant: int | None, retry_failed: bool = False) -> None:
        self.driver.close()
        entries = self.driver.state.entries.values()
        lost = any(entry.result and not entry.result.settled for entry in entries)
        wanted = [trial.key for trial in make_strategy(self.driver.plan).wanted(read_state(self.record))]
        self.start(self.variant if variant is None else variant, retry_failed)
        if variant is None and not retry_failed:
            again = [trial.key for trial in self.driver.strategy.wanted(self.driver.state)]
            # What was wanted because a trial failed is not wanted while that trial runs again.
            assert again == wanted or (lost and set(again) <= set(wanted))

    def run_to_the_end(self) -> None:
        """Plays an engine under which nothing fails."""
        self.request_hold("continue")
        assert self.driver.state.held is None
        for key in [*self.submitted]:
            self.driver.record_start(key)
        self.submitted = {}
        while True:
            for key in [*self.driver.queue.running]:
                self.play(key)
            job = self.driver.next_job()
            if job is not None:
                self.driver.record_start(job.key)
            elif not self.driver.queue.running:
                break
        assert self.driver.is_over
        if self.driver.promotes:
            self.driver.end_waiting()
        assert not self.driver.is_open

    def play(self, key: str) -> None:
        job = job_of(self.driver, key)
        if self.driver.must_leave(key):
            self.driver.record_leave(key)
            return
        while key not in self.finished and self.steps[key] < STEPS:
            self.steps[key] += 1
            if self.driver.record_report(key, progress(job.training, self.steps[key])):
                self.driver.record_leave(key)
                return
        self.end_job(key)

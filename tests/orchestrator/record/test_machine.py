"""A sweep's driver under all that may happen to it, with an engine that is played: trials start, report, pause, end and fail,
attempts break off, drivers are killed, machines lose power, files change.

    python -m tests.orchestrator.record.test_machine MINUTES        draws new runs for so long
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from orchestrator.driver.change import find_change
from orchestrator.driver.display import Display
from orchestrator.driver.request import apply_request, new_request, pending
from orchestrator.plan.trial import Job, Outcome, TrialResult
from orchestrator.record.events import Ended, SessionEnded, Started
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events, read_state
from orchestrator.record.options import Options
from orchestrator.search.stages import make_strategy
from tests.orchestrator.record.played import FILES, STEPS, Watched, finished, job_of, plan_of, progress, same_file, undisturbed

FAILURES = st.sampled_from(["finished", "finished", "finished", "no size", "diverged", "lost"])


class SweepMachine(RuleBasedStateMachine):
    """What may happen to a sweep, and what always holds.

    Attributes:
        variant: the number of its file among those of its kind.
        submitted: jobs that the driver has handed out and that have not begun.
        steps: how far each running or stopped job is.
        finished: the results that may not change any more.
        diverged: whether a trial has failed for good or was stopped.
    """

    kinds = sorted(FILES)
    driver: Watched

    @initialize(data=st.data(), variant=st.integers(0, 2))
    def begin(self, data: st.DataObject, variant: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.kind, self.variant, self.diverged = data.draw(st.sampled_from(self.kinds)), 0, False
        self.finished: dict[str, TrialResult] = {}
        self.steps: Counter[str] = Counter()
        self.start(variant)

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
            if key not in self.finished and self.driver.promotes and self.steps[key] < STEPS:
                self.steps[key] = STEPS
                self.driver.record_report(key, progress(job.training, STEPS))
            trials = job.trials[:-1] if end == "no size" and len(job.trials) > 1 else job.trials
            results = {trial.key: finished(trial) for trial in trials}
            left = self.driver.state.unfinished(results)  # a cut may have been stopped while its job ran
            self.driver.record_end(key, [Outcome(result) for result in results.values()])
            self.finished = {key: results[key] for key in left} | self.finished

    def request_hold(self, verb: Literal["pause", "continue"]) -> None:
        new_request(verb).write(SweepFolder(self.folder))
        self.tell()

    def note_file(self) -> None:
        files = range(len(FILES[self.kind]))
        self.variant = next(number for number in files if same_file(self.driver.plan, plan_of(self.kind, number)))

    @rule()
    def tell(self) -> None:
        """Lets the driver answer all requests."""
        for _ in range(4):
            self.driver.tick()
        assert not pending(SweepFolder(self.folder))
        # They have not begun, and the engine gives them back.
        for key in [key for key in self.submitted if self.driver.must_leave(key)]:
            self.driver.record_leave(key)
            del self.submitted[key]

    @property
    def record(self) -> Path:
        return SweepFolder(self.folder).record

    def abandon(self) -> None:
        """Loses the driver, and with it its lock."""
        assert self.driver._log is not None
        os.close(self.driver._log._file)
        self.driver._log._file = -1

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

    # The engine.

    @rule()
    def hand_out(self) -> None:
        job = self.driver.next_job()
        if job is None:
            return
        assert self.driver.state.held is None
        assert job.key not in self.submitted
        assert job.key not in self.driver.queue.running
        assert any(key not in self.finished for key in job.keys), "a job with nothing left was handed out"
        if job.source is not None:
            assert self.driver.state.entries[job.source].ended
        if self.driver.promotes:
            queue = self.driver.queue
            busy = [job_of(self.driver, key) for key in (*self.submitted, *queue.running)]
            assert job.training.configuration not in {other.training.configuration for other in busy}
        self.submitted[job.key] = job

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def run(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.submitted)))
        del self.submitted[key]
        self.driver.record_start(key)

    @precondition(lambda self: self.driver.queue.running)
    @rule(data=st.data(), again=st.booleans())
    def evaluate(self, data: st.DataObject, again: bool) -> None:
        """A running trial is evaluated, or evaluated again after it was continued behind its last report."""
        key = data.draw(st.sampled_from(sorted(self.driver.queue.running)))
        if key in self.finished:  # its training is over, and it is being cut
            return
        self.steps[key] = step = max(1, min(STEPS, self.steps[key] + (not again)))
        if self.driver.record_report(key, progress(job_of(self.driver, key).training, step)):
            assert self.driver.promotes
            self.driver.record_leave(key)
        elif self.driver.must_leave(key):
            self.driver.record_leave(key)
            assert key not in self.driver.queue.submitted

    @precondition(lambda self: self.driver.queue.running)
    @rule(data=st.data(), end=FAILURES)
    def end(self, data: st.DataObject, end: str) -> None:
        self.end_job(data.draw(st.sampled_from(sorted(self.driver.queue.running))), end)

    @rule()
    def break_off(self) -> None:
        running = set(self.driver.queue.running)
        assert set(self.driver.record_break()) == running
        self.submitted = {}

    # What people ask.

    @rule(variant=st.integers(0, 2))
    def apply(self, variant: int) -> None:
        """Another file is applied, twice."""
        variant %= len(FILES[self.kind])
        plan, folder = plan_of(self.kind, variant), SweepFolder(self.folder)
        for again in (False, True):
            change = find_change(self.driver.plan.sweep, plan, self.driver.state)
            request = apply_request(plan.sweep, Options("sweep.yaml"))
            request.write(folder)
            self.tell()
            if plan.sweep.scheduler != self.driver.plan.sweep.scheduler:
                assert "scheduler: was" in (request.take_refusal(folder) or "")
                return
            assert request.take_refusal(folder) is None
            assert same_file(self.driver.plan, plan)
            assert (request.name in self.driver.state.answered) == bool(change)
            assert not (again and change)
            self.variant = variant

    @rule(verb=st.sampled_from(["pause", "continue"]))
    def hold(self, verb: Any) -> None:
        self.request_hold(verb)
        assert (self.driver.state.held is not None) == (verb == "pause")

    @rule(verb=st.sampled_from(["stop", "retry"]), data=st.data())
    def stop_or_retry(self, verb: Any, data: st.DataObject) -> None:
        keys, folder = [*self.driver.state.wanted], SweepFolder(self.folder)
        if not keys:
            return
        entry = self.driver.state.entries[data.draw(st.sampled_from(keys))]
        request = new_request(verb, entry.key)
        request.write(folder)
        self.tell()
        refused, after = request.take_refusal(folder), self.driver.state.entries[entry.key]
        if verb == "stop":
            assert (refused is None) or entry.ended
            assert after.ended
            self.diverged = self.diverged or refused is None
        else:
            assert refused is None or not entry.ended or entry.finished
            assert after.ended == (entry.finished is not None)

    @rule(data=st.data(), variant=st.integers(0, 2), written=st.booleans())
    def kill_between_request_and_answer(self, data: st.DataObject, variant: int, written: bool) -> None:
        """The driver is killed before it has answered, or after that and before it has removed the request."""
        plan = plan_of(self.kind, variant % len(FILES[self.kind]))
        request = apply_request(plan.sweep, Options("sweep.yaml"))
        request.write(SweepFolder(self.folder))
        if written:
            self.driver.tick()
        self.note_file()
        self.abandon()
        self.driver.close()
        self.start(self.variant)
        self.tell()
        assert not request.is_there(SweepFolder(self.folder))
        same = plan.sweep.scheduler == self.driver.plan.sweep.scheduler
        assert not same or written or same_file(self.driver.plan, plan)
        self.note_file()

    # Ends of a session.

    @rule(variant=st.none() | st.integers(0, 2), retry_failed=st.booleans())
    def stop(self, variant: int | None, retry_failed: bool) -> None:
        self.driver.stop()
        self.driver.record(SessionEnded(status="interrupted"))
        self.resume(variant, retry_failed)

    @rule(variant=st.none() | st.integers(0, 2), torn=st.booleans())
    def kill(self, variant: int | None, torn: bool) -> None:
        """The driver is killed, perhaps while it writes a line."""
        self.abandon()
        if torn:
            with self.record.open("a") as file:
                file.write('{"event": "Ended", "result": {"key')
        self.resume(variant)

    @rule(data=st.data())
    def lose_power(self, data: st.DataObject) -> None:
        """The machine loses power: what was not flushed to the disk is lost, from some line on."""
        self.abandon()
        lines, events = self.record.read_bytes().splitlines(keepends=True), [event for event, _ in read_events(self.record)]
        flushed = max(place for place, event in enumerate(events, 1) if event.durable)
        self.record.write_bytes(b"".join(lines[: data.draw(st.integers(flushed, len(lines)))]))
        self.resume(None)

    @precondition(lambda self: self.driver.queue.running)
    @rule(data=st.data())
    def kill_while_results_are_written(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.driver.queue.running)))
        before = dict(self.finished)
        self.end_job(key)
        self.abandon()
        lines = self.record.read_bytes().splitlines(keepends=True)
        written = len(self.finished) - len(before)
        lost = data.draw(st.integers(0, written))
        self.record.write_bytes(b"".join(lines[: len(lines) - lost]))
        results = read_state(self.record).entries
        self.finished = {key: result for key, result in self.finished.items() if results[key].result == result}
        assert before.items() <= self.finished.items()
        self.resume(None)

    # What always holds.

    @invariant()
    def what_has_finished_stays_and_never_runs_again(self) -> None:
        state = self.driver.state
        assert {key: state.entries[key].result for key in self.finished} == self.finished
        assert all(state.entries[key].ended for key in self.finished)
        ended: set[str] = set()
        for event in self.driver.events:
            keys = event.keys if isinstance(event, Started) else [event.result.key] if isinstance(event, Ended) else []
            assert not ended & set(keys), "a trial that had ended ran or ended again"
            ended |= set(keys) if isinstance(event, Ended) else set()

    @invariant()
    def nothing_wanted_is_lost(self) -> None:
        driver = self.driver
        queue = driver.queue
        at_hand = {key for job in queue.waiting(driver.state).values() for key in job.keys}
        at_hand |= {key for name in (*queue.running, *self.submitted) if name in queue.jobs for key in queue.jobs[name].keys}
        assert all(entry.ended or entry.key in at_hand for entry in driver.state.requested)
        assert driver.state.wanted.keys() >= {trial.key for trial in driver.plan.trials}

    @invariant()
    def the_log_has_it_all(self) -> None:
        assert read_state(self.record) == self.driver.state

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        try:
            self.run_to_the_end()
            self.stop(None, retry_failed=False)  # what a machine's fault ended runs again
            self.run_to_the_end()
            self.what_has_finished_stays_and_never_runs_again()
            entries = self.driver.state.requested
            assert all(entry.ended for entry in entries)
            if not (self.diverged or self.driver.plan.adaptive):  # what is drawn depends on what has ended by then
                wanted = self.driver.strategy.wanted(self.driver.state)
                assert [trial.key for trial in wanted] == undisturbed(self.kind, self.variant)
            results = [event.result for event, _ in read_events(self.record) if isinstance(event, Ended)]
            counts = Counter(result.key for result in results if result.settled and result.status == "finished")
            assert set(counts.values()) <= {1}, "a trial finished twice"
        finally:
            self.driver.close()
            shutil.rmtree(self.folder)


QUIET = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True, phases=[Phase.generate]
)


@pytest.mark.patient  # each example is a sweep of several sessions
@pytest.mark.parametrize("examples", [2, pytest.param(32, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", FILES)
def test_nothing_is_lost_and_nothing_done_twice(kind: str, examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.record.manifest.source_state", lambda folder: {})  # two calls of git each session
    machine = type("Machine", (SweepMachine,), {"kinds": [kind]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            QUIET,
            max_examples=max(1, examples // (4 if kind == "until answered" else 1)),
            stateful_step_count=20,
            derandomize=True,
        ),
    )


def main(minutes: float) -> None:
    end, runs = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        run_state_machine_as_test(SweepMachine, settings=settings(QUIET, max_examples=20, stateful_step_count=50))
        runs += 20
    print(f"{runs} sweeps")


if __name__ == "__main__":
    main(float(sys.argv[1]))

"""How trials and sweeps end: what they propose next, faults that end a session, and trials that never began."""

from __future__ import annotations

import io
import itertools
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.commands import session, start
from orchestrator.driver.display import SweepOutcome, show_outcome, show_unsent
from orchestrator.driver.queue import ENOUGH, CommonCause
from orchestrator.plan.trial import Outcome, Trial, TrialResult
from orchestrator.record.events import Requested, SessionStarted, Wanted
from orchestrator.record.folder import one_driver
from orchestrator.record.state import Entry, State, fold
from orchestrator.results.front import mark_front
from orchestrator.results.summary import summarize_entries
from orchestrator.review.desired_runs import DesiredRuns
from orchestrator.tracking.desired import TRIAL_KIND
from tests.orchestrator.driven import driving, start_next
from tests.orchestrator.plans import rank, toy_plan
from tests.orchestrator.record.played import STEPS, plan_of, progress
from tests.orchestrator.recorded import printed


@pytest.mark.parametrize(("seeds", "chance", "offered"), [([0], 50.0, True), ([0, 1, 2], 50.0, True), ([0, 1, 2], 95.0, False)])
def test_an_adapter_is_offered_if_one_is_above_random_guessing(
    tmp_path: Path, seeds: list[int], chance: float, offered: bool
) -> None:
    plan = toy_plan(tmp_path, f"seeds: {seeds}\nspace: [{{method: lora, rank: {{values: [1, 2]}}}}]\n", rank)
    entries = {}
    for trial in plan.trials:
        score = {"score": 80.0 + 5 * trial.run.parameters["rank"] + 0.1 * trial.run.seed}
        result = TrialResult(trial.key, "finished", score, {"random_guessing": chance}, 3, 1.0)
        entries[trial.key] = Entry(trial.trial, result, "ended")
    summaries = mark_front(summarize_entries(entries.values()), plan.sweep.objectives)
    outcome = SweepOutcome(State(entries=entries, wanted=dict.fromkeys(entries)), 1.0)
    screen = printed(lambda console: show_outcome(plan, outcome, summaries, console, "sqlite:///x", []))
    assert ("craft-sweeps take" in screen) == offered


def test_the_command_to_continue_is_there_before_the_store_is_waited_for() -> None:
    screen, seen = io.StringIO(), list[str]()

    class Away:
        def wait(self, seconds: float) -> int:
            seen.append(screen.getvalue())
            return 7

    again = "craft-sweeps run x.yaml --resume"
    log = [
        SessionStarted(sweep={}, configurations=1, trainings=1, again=again),
        Wanted(keys=["k"], trials=[Trial("k", "c", "LoRA", "lora", "glue/rte", 0, "honest", {})]),
    ]
    outcome = SweepOutcome(fold(log), 1.0)
    console = Console(file=screen, width=200)
    assert not session._is_shipped(Away(), 60.0, outcome, console)  # type: ignore[arg-type]
    assert seen[0] == ""
    assert "1 trial without a result; continue with: craft-sweeps run x.yaml --resume\n" in seen[1]
    show_unsent(7, Path("runs/x"), Console(file=screen, width=200))
    assert screen.getvalue().splitlines()[-1] == "7 events not in the tracking store yet; send with: craft-sweeps replay runs/x"
    assert printed(lambda console: show_unsent(1, Path("my runs/x"), console)).endswith("craft-sweeps replay 'my runs/x'\n")


ALIKE = [f"model m: no room on /scratch/{number}" for number in range(ENOUGH)]


@pytest.mark.parametrize(
    ("reasons", "running_since", "trouble"),
    [
        (ALIKE[:-1], (), None),
        (ALIKE, (), ALIKE[-1]),
        ([*ALIKE[:-1], "no data", *ALIKE[:-1]], (), None),
        ([*ALIKE[:-1], None, *ALIKE[:-1]], (), None),  # a trial trains
        (ALIKE * 5, (0.5,), None),  # one that has run since before them may be on a machine that is well
        (ALIKE * 5, (30.0,), ALIKE[-1]),
    ],
)
def test_ten_alike_in_a_row_are_enough_and_the_reason_is_told(
    reasons: list[str | None], running_since: tuple[float, ...], trouble: str | None
) -> None:
    clock = itertools.count(1.0)
    cause = CommonCause(lambda: next(clock))
    for reason in reasons:
        cause.failed(reason, running_since) if reason else cause.works()
    assert trouble in (cause.trouble or "") if trouble else cause.trouble is None


def test_ten_trials_that_could_not_begin_end_the_session(tmp_path: Path) -> None:
    plan = toy_plan(tmp_path, f"space: [{{method: lora, rank: {{values: {[*range(1, 12)]}}}}}]\n")
    with driving(plan, tmp_path / "s") as driver:
        for _ in range(ENOUGH):
            job = start_next(driver)
            result = TrialResult(job.key, "failed", error="plugin mine is missing", retryable=True)
            driver.receive(1, job.key, {"results": [result.to_json()]}, None)
        assert "plugin mine is missing" in (driver.trouble or "")


def test_a_paused_sweep_takes_running_trials_back_before_their_last_evaluation(tmp_path: Path) -> None:
    with driving(plan_of("grid", 0), tmp_path) as driver:
        job = start_next(driver)

        def evaluated(step: int) -> bool:
            return driver.receive(1, job.key, {"progress": progress(job.training, step)}, None)

        assert not evaluated(1)
        driver.record(Requested(request="r", who="me", verb="pause", keys=[]))
        assert evaluated(2)
        driver.record_leave(job.key)
        assert (driver.state.entries[job.key].phase, driver.display.progress().doing) == ("paused", ""), "nothing starts"
        driver.record(Requested(request="s", who="me", verb="continue", keys=[]))
        start_next(driver)
        driver.record(Requested(request="t", who="me", verb="pause", keys=[]))
        assert not evaluated(STEPS), "it is trained"


def test_a_driver_says_that_it_lives_while_nothing_can_be_foretold(tmp_path: Path) -> None:
    with driving(plan_of("grid", 0), tmp_path) as driver:
        driver._clock = lambda: 1e9
        driver.tick()
        assert driver.state.underway is not None


def test_a_start_that_is_refused_leaves_the_folder_to_the_other_one(tmp_path: Path) -> None:
    def begin(other: ExitStack) -> None:
        with start._claimed(tmp_path / "s"):
            other.enter_context(one_driver(tmp_path / "s"))
            raise ValueError("it is in use")

    with ExitStack() as other, pytest.raises(ValueError, match="in use"):
        begin(other)
    assert (tmp_path / "s").is_dir()


def trials_with_runs(state: State, folder: Path) -> set[str]:
    return {key for kind, key in DesiredRuns(folder, "").update(state, None) if kind == TRIAL_KIND}


def test_a_size_of_a_training_that_failed_in_an_earlier_session(tmp_path: Path) -> None:
    with driving(plan_of("cuts", 0), tmp_path) as driver:
        job = start_next(driver)
        driver.record_end(job.key, [Outcome(TrialResult(job.key, "failed", error="diverged"))])
        begun = {job.key, *(cut.key for cut in job.cuts)}
    with driving(plan_of("cuts", 1), tmp_path) as driver:
        new = [entry for entry in driver.state.cuts_of(driver.state.entries[job.key].trial) if entry.key not in begun]
        assert [(entry.ended, entry.begun) for entry in new] == [(True, False)]
        assert trials_with_runs(driver.state, tmp_path) == begun


def test_a_trial_for_which_no_process_could_start(tmp_path: Path) -> None:
    with driving(plan_of("grid", 0), tmp_path) as driver:
        job = driver.next_job()
        driver.record_failure(job.key, "no process could be started")
        entry = driver.state.entries[job.key]
        assert (entry.ended, entry.begun) == (True, False)
        assert trials_with_runs(driver.state, tmp_path) == set()

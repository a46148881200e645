"""A trial that ends without having started has no run, and is not counted as begun."""

from __future__ import annotations

from pathlib import Path

from orchestrator.plan.trial import Outcome, TrialResult
from orchestrator.record.state import State
from orchestrator.review.desired_runs import DesiredRuns
from orchestrator.tracking.tags import TRIAL_KIND
from tests.orchestrator.driven import driving
from tests.orchestrator.record.played import plan_of


def trials_with_runs(state: State, folder: Path) -> set[str]:
    return {key for kind, key in DesiredRuns(folder, "").update(state, None) if kind == TRIAL_KIND}


def test_a_size_of_a_training_that_failed_in_an_earlier_session(tmp_path: Path) -> None:
    with driving(plan_of("cuts", 0), tmp_path) as driver:
        job = driver.next_job()
        assert job is not None
        driver.record_start(job.key)
        driver.record_end(job.key, [Outcome(TrialResult(job.key, "failed", error="diverged"))])
        begun = {job.key, *(cut.key for cut in job.cuts)}
    with driving(plan_of("cuts", 1), tmp_path) as driver:
        new = [entry for entry in driver.state.cuts_of(driver.state.entries[job.key].trial) if entry.key not in begun]
        assert [(entry.ended, entry.begun) for entry in new] == [(True, False)]
        assert trials_with_runs(driver.state, tmp_path) == begun


def test_a_trial_for_which_no_process_could_start(tmp_path: Path) -> None:
    with driving(plan_of("grid", 0), tmp_path) as driver:
        job = driver.next_job()
        assert job is not None
        driver.record_failure(job.key, "no process could be started")
        entry = driver.state.entries[job.key]
        assert (entry.ended, entry.begun) == (True, False)
        assert trials_with_runs(driver.state, tmp_path) == set()

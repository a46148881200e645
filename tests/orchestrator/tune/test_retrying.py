"""Which failures are final, and which are not, on real Ray over several sessions; training is a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.driver.display import SweepOutcome
from orchestrator.driver.queue import ENOUGH
from orchestrator.plan.plan import Plan
from orchestrator.record.events import Reopened
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events
from tests.orchestrator.stand_in import plan_of, stand_in, starts
from tests.orchestrator.tune.running import run_sweep

pytestmark = pytest.mark.cluster


def session(tmp: Path, plan: Plan, behaviour: dict[tuple[int, int], str], max_failures: int = 0, **more: bool) -> SweepOutcome:
    return run_sweep(
        plan,
        tmp / "runs" / "test",
        cpus=2,
        max_failures=max_failures,
        resume=True,
        verbosity="quiet",
        **more,
        train=stand_in(str(tmp / "log"), behaviour),
    )


def test_final_failures_run_again_only_when_asked_and_those_of_the_machine_by_themselves(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ranks="[1, 2]", seeds="[0, 1]")
    first = session(tmp_path, plan, {(1, 0): "nan", (2, 0): "no model"})
    assert (len(first.ended("finished")), len(first.ended("failed"))) == (2, 2)
    second = session(tmp_path, plan, {})
    assert (len(second.ended("finished")), len(second.ended("failed"))) == (3, 1)
    assert [start[:2] for start in starts(tmp_path / "log")[4:]] == [(2, 0)]
    third = session(tmp_path, plan, {}, retry_failed=True)
    assert third.complete
    assert [start[:2] for start in starts(tmp_path / "log")[5:]] == [(1, 0)]
    record = SweepFolder(tmp_path / "runs" / "test").record
    reopened = [event.keys for event, _ in read_events(record) if isinstance(event, Reopened)]
    assert reopened == [[next(trial.key for trial in plan.trials if (trial.run.parameters["rank"], trial.run.seed) == (1, 0))]]


def test_a_gpu_in_a_bad_state_is_left_to_a_new_process(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, ranks="[1, 2]")
    assert session(tmp_path, plan, {(1, 0): "asserts once"}, max_failures=1).complete
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines() if line.startswith("start 1 ")]
    (_, _, _, first, process), (_, _, _, second, another) = lines
    assert (first, second) == ("0", "2")
    assert process != another


def test_a_fault_of_every_machine_ends_the_session_before_it_fails_every_trial(tmp_path: Path) -> None:
    ranks = list(range(1, 21))
    plan = plan_of(tmp_path, ranks=str(ranks))
    outcome = session(tmp_path, plan, {(rank, 0): "no model" for rank in ranks})
    assert "the hub did not give it" in outcome.trouble
    assert ENOUGH <= len(outcome.ended("failed")) <= ENOUGH + 2
    assert not outcome.ended("finished")
    mended = session(tmp_path, plan, {})
    assert mended.complete
    assert len(mended.ended("finished")) == len(ranks)

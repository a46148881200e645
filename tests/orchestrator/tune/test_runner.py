"""The runner on real Ray with a stand-in for training: what dies is tried again, what is done never is."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.driver.display import SweepOutcome
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import Ended
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events, read_state
from tests.orchestrator.stand_in import plan_of, stand_in, starts, steps

pytestmark = pytest.mark.patient  # real Ray starts, and trials are tried again
WRONG = {(2, 0): "dies once", (2, 1): "nan", (8, 0): "dies", (8, 1): "hangs", (16, 0): "no disk"}
"""What goes wrong with trials, by rank and seed."""


@dataclass
class Ran:
    plan: Plan
    outcome: SweepOutcome
    log: Path
    folder: Path
    screen: str

    def result(self, rank: int, seed: int = 0) -> TrialResult:
        result = self.outcome.state.entries[self.key(rank, seed)].result
        assert result is not None
        return result

    def key(self, rank: int, seed: int = 0) -> str:
        (key,) = [t.key for t in self.plan.trials if t.run.parameters["rank"] == rank and t.run.seed == seed]
        return key


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A sweep of two trials, of which one's process dies once and the other diverges, run to its end."""
    return run(tmp_path_factory.mktemp("ran"), "[2]")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One sweep in which trials go wrong in every way, run to its end."""
    return run(tmp_path_factory.mktemp("wrong"), "[2, 8, 16]")


def run(tmp: Path, ranks: str) -> Ran:
    from tests.orchestrator.tune.running import run_sweep

    plan = plan_of(tmp, ranks=ranks, seeds="[0, 1]", resources="{heartbeat_minutes: 0.0834}")
    log, folder = tmp / "log", tmp / "runs" / "test"
    saved, out = os.dup(2), tmp / "screen"
    with out.open("w") as file:
        os.dup2(file.fileno(), 2)
        try:
            outcome = run_sweep(plan, folder, cpus=2, max_failures=1, train=stand_in(str(log), WRONG))
        finally:
            os.dup2(saved, 2)
            os.close(saved)
    return Ran(plan, outcome, log, folder, out.read_text())


@pytest.mark.slow
def test_every_trial_ends_as_it_should(wrong: Ran) -> None:
    statuses = {key: entry.result and entry.result.status for key, entry in wrong.outcome.state.entries.items()}
    assert statuses == {
        wrong.key(rank, seed): "failed" if (rank, seed) in {(2, 1), (8, 0), (8, 1), (16, 0)} else "finished"
        for rank in (2, 8, 16)
        for seed in (0, 1)
    }
    assert len(wrong.outcome.ended("finished")) == 2
    assert len(wrong.outcome.ended("failed")) == 4
    assert not wrong.outcome.left
    assert not wrong.outcome.complete
    assert wrong.outcome.trouble is None


def test_a_trial_whose_process_dies_goes_on_from_its_checkpoint(ran: Ran) -> None:
    assert [start for start in starts(ran.log) if start[:2] == (2, 0)] == [(2, 0, 0), (2, 0, 2)]
    assert {step: n for (rank, seed, step), n in steps(ran.log).items() if (rank, seed) == (2, 0)} == {1: 1, 2: 1, 3: 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "seed", "tries", "said"),
    [
        (2, 1, 1, "training diverged: the loss is nan at step 1"),
        (8, 0, 2, "its process died"),
        (8, 0, 2, "Fatal Python error: something native"),
        (8, 1, 2, "no step for 5 s"),
        (8, 1, 2, "in train (stand_in.py:"),
        (16, 0, 2, "No space left on device"),
    ],
)
def test_a_failure_is_tried_as_often_as_asked_and_tells_its_reason(
    wrong: Ran, rank: int, seed: int, tries: int, said: str
) -> None:
    assert len([start for start in starts(wrong.log) if start[:2] == (rank, seed)]) == tries
    assert said in wrong.result(rank, seed).error
    assert wrong.result(rank, seed).retryable == (tries > 1), "what is permanent is tried once"


@pytest.mark.slow
def test_workers_stay_warm(wrong: Ran) -> None:
    pids = [line.split()[4] for line in wrong.log.read_text().splitlines() if line.startswith("start")]
    assert len(set(pids)) < len(pids)


def test_adapters_lie_on_storage_whole(ran: Ran) -> None:
    from craft.trainer.checkpoint import verify

    adapter = Path(ran.result(2, 0).facts["adapter"])
    assert (adapter / "adapter_model.safetensors").read_text() == "2 0"
    verify(adapter.parent)


def test_the_log_holds_the_state_and_each_result_once(ran: Ran) -> None:
    record = SweepFolder(ran.folder).record
    state = read_state(record)
    assert state.entries == ran.outcome.state.entries
    assert state.ended is not None
    ended = [event.result.key for event, _ in read_events(record) if isinstance(event, Ended)]
    assert len(ended) == len(set(ended)) == 2
    assert {entry.report.step for entry in state.entries.values() if entry.finished and entry.report} == {3}


def test_the_screen_tells_failures_and_nothing_of_the_libraries(ran: Ran) -> None:
    assert "failed: LoRA r2, q v · toy/paraphrase · seed 1: training diverged" in ran.screen
    assert ran.screen.strip().splitlines()[-1].startswith("1/2 trainings done, 0 running, 1 failed, ")
    assert "raylet" not in ran.screen
    assert "ray." not in ran.screen
    assert (ran.folder / "sweep.log").stat().st_size > 0


def test_nothing_is_left_behind(ran: Ran) -> None:
    assert not (ran.folder / "scratch").exists()
    assert not (ran.folder / ".driver.json").exists()


def test_a_second_driver_is_refused(ran: Ran) -> None:
    from tests.orchestrator.tune.running import run_sweep

    code = "import sys, time, pathlib; from orchestrator.record.folder import one_driver\n"
    code += "with one_driver(pathlib.Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code, str(ran.folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "in\n"
        with pytest.raises(ValueError, match=f"in use by process {other.pid}"):
            run_sweep(ran.plan, ran.folder, resume=True)
    finally:
        other.kill()
        other.wait()

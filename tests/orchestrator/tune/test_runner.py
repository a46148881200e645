"""The runner on real Ray with a stand-in for training: what dies is tried again, what is done never is, over all sessions."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from craft.trainer.checkpoint import verify
from orchestrator.commands.control import ask
from orchestrator.driver.display import SweepOutcome
from orchestrator.driver.queue import ENOUGH
from orchestrator.driver.request import apply_request, pending
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import Applied, Ended, Requested
from orchestrator.record.folder import SweepFolder, one_driver
from orchestrator.record.log import read_events, read_state
from orchestrator.record.options import Options
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import ended, plan_of, run_sweep, stand_in, start_driver, starts, steps, wait_for

pytestmark = pytest.mark.patient  # real Ray starts


def session(folder: Path, plan: Plan, behaviour: dict[tuple[int, int], str], **options: Any) -> SweepOutcome:
    train = stand_in(str(folder / "log"), behaviour)
    return run_sweep(plan, folder / "test", cpus=2, resume=True, train=train, **({"max_failures": 1} | options))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan, SweepOutcome]:
    """A sweep of two trials, of which one's process dies once and the other diverges, run to its end; its screen is a file."""
    folder = tmp_path_factory.mktemp("ran")
    plan = plan_of(folder, ranks="[2]", seeds="[0, 1]")
    saved = os.dup(2)
    with (folder / "screen").open("w") as file:
        os.dup2(file.fileno(), 2)
        try:
            return folder, plan, session(folder, plan, {(2, 0): "dies once", (2, 1): "nan"})
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def test_a_trial_whose_process_dies_continues_and_the_sweep_leaves_its_record_alone(
    ran: tuple[Path, Plan, SweepOutcome],
) -> None:
    folder, plan, outcome = ran
    assert sorted(starts(folder / "log")) == [(2, 0, 0), (2, 0, 2), (2, 1, 0)], "what is permanent is tried once"
    assert steps(folder / "log") == {(2, 0, step): 1 for step in (1, 2, 3)}
    adapter = Path(results_of(outcome)[plan.trials[0].key].facts["adapter"])
    assert (adapter / "adapter_model.safetensors").read_text() == "2 0"
    verify(adapter.parent)

    sweep, state = SweepFolder(folder / "test"), read_state(folder / "test" / "log.jsonl")
    assert state.entries == outcome.state.entries
    assert state.ended is not None
    assert [entry.report.step for entry in state.entries.values() if entry.finished and entry.report] == [3]
    keys = [event.result.key for event, _ in read_events(sweep.record) if isinstance(event, Ended)]
    assert sorted(keys) == sorted(trial.key for trial in plan.trials)
    assert not sweep.scratch.exists()
    assert not sweep.driver.exists()

    screen = (folder / "screen").read_text()
    assert "failed: LoRA r2, q v · toy/paraphrase · seed 1: training diverged" in screen
    assert screen.strip().splitlines()[-1].startswith("1/2 trainings done, 0 running, 1 failed, ")
    assert "raylet" not in screen
    assert "ray." not in screen
    assert sweep.log.stat().st_size > 0


def test_a_second_driver_is_refused(ran: tuple[Path, Plan, SweepOutcome]) -> None:
    folder, plan, _ = ran
    with one_driver(folder / "test"), pytest.raises(ValueError, match=f"in use by process {os.getpid()}"):
        session(folder, plan, {})


WRONG = {
    (2, 1): ("nan", 1, "training diverged: the loss is nan at step 1"),
    (8, 0): (
        "dies",
        2,
        "its process died.*Fatal Python error: something native",
    ),
    (8, 1): ("hangs", 2, r"no step for 5 s.*in train \(stand_in\.py:"),
    (16, 0): ("no disk", 2, "No space left on device"),
    (16, 1): ("no model", 2, "the hub did not give it"),
}
"""What goes wrong with trials, by rank and seed; how often each is tried, and the reason that is given."""


@pytest.mark.cluster
@pytest.mark.slow
def test_faults_of_the_machine_are_tried_again_by_themselves_and_final_ones_only_when_asked(tmp_path: Path) -> None:
    plan, log = plan_of(tmp_path, "[0, 1]", "[2, 8, 16]", resources="{heartbeat_minutes: 0.0834}"), tmp_path / "log"
    keys = {(trial.run.parameters["rank"], trial.run.seed): trial.key for trial in plan.trials}
    first = session(tmp_path, plan, {place: how for place, (how, _, _) in WRONG.items()} | {(2, 0): "asserts once"})
    results: dict[str, TrialResult] = results_of(first)
    tried = Counter(start[:2] for start in starts(log))
    for place, (_, tries, said) in WRONG.items():
        result = results[keys[place]]
        assert (result.status, tried[place], result.retryable) == ("failed", tries, tries > 1), place
        assert re.search(said, result.error or ""), result.error
    assert [entry.key for entry in first.ended("finished")] == [keys[2, 0]]
    assert (first.left, first.complete, first.trouble) == ([], False, None)
    lines = [line.split() for line in log.read_text().splitlines() if line.startswith("start")]
    (first_step, before), (next_step, after) = ((line[3], line[4]) for line in lines if line[1:3] == ["2", "0"])
    assert (first_step, next_step, before == after) == ("0", "2", False), "a GPU in a bad state is left to a new process"
    assert len({line[4] for line in lines}) < len(lines), "others stay warm"

    second = session(tmp_path, plan, {})
    assert sorted(start[:2] for start in starts(log)[len(lines) :]) == sorted(WRONG.keys() - {(2, 1)})
    assert [entry.key for entry in second.ended("failed")] == [keys[2, 1]]
    done = len(starts(log))
    assert session(tmp_path, plan, {}, retry_failed=True).complete
    assert [start[:2] for start in starts(log)[done:]] == [(2, 1)]
    events = [event for event, _ in read_events(SweepFolder(tmp_path / "test").record)]
    assert [event.keys for event in events if isinstance(event, Requested)] == [[keys[2, 1]]]


@pytest.mark.cluster
def test_a_fault_of_every_machine_ends_the_session_before_it_fails_every_trial(tmp_path: Path) -> None:
    ranks = list(range(1, 21))
    plan = plan_of(tmp_path, ranks=str(ranks))
    outcome = session(tmp_path, plan, {(rank, 0): "no model" for rank in ranks}, max_failures=0)
    assert "the hub did not give it" in (outcome.trouble or "")
    assert ENOUGH <= len(outcome.ended("failed")) <= ENOUGH + 2
    assert not outcome.ended("finished")
    last = session(tmp_path, plan, {})
    assert last.complete
    assert len(last.ended("finished")) == len(ranks)


@pytest.mark.slow
def test_a_sweep_is_paused_takes_another_file_and_continues(tmp_path: Path) -> None:
    """What was handed out and taken back keeps its folder."""
    folder = SweepFolder(tmp_path / "test")
    process = start_driver(tmp_path, ranks=[1, 2, 4, 8], seconds=0.5)
    wait_for(lambda: folder.record.exists() and read_state(folder.record).in_phase("running"), process)
    ask(folder.path, "pause")
    wait_for(lambda: not read_state(folder.record).in_phase("running"), process)
    begun = {entry.key for entry in read_state(folder.record).entries.values() if entry.begun}
    later = plan_of(tmp_path, "[0]", json.dumps([2, 4, 8, 16]), storage=str(tmp_path))
    for _ in range(2):
        apply_request(later.sweep, Options(str(tmp_path / "sweep.yaml"))).write(folder)
    wait_for(lambda: not pending(folder), process)
    assert {entry.key for entry in read_state(folder.record).entries.values() if entry.begun} == begun, "none starts"
    ask(folder.path, "continue")
    ended(process)
    state, events = read_state(folder.record), [event for event, _ in read_events(folder.record)]
    assert {entry.key for entry in state.requested} == {trial.key for trial in later.trials}
    assert sum(isinstance(event, Applied) for event in events) == 1, "the second changes nothing"
    assert set(Counter(event.result.key for event in events if isinstance(event, Ended)).values()) == {1}
    assert set(steps(tmp_path / "log").values()) == {1}, "no step is done twice"
    for entry in state.requested:
        assert entry.finished
        assert Path(str(entry.finished.facts["adapter"])).is_dir()

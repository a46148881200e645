"""The record of a configuration that a scheduler stopped: its other trials end too, without having run."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from craft.results import Counts
from orchestrator.driver.display import Display
from orchestrator.driver.recorder import Recorder
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.record.tracker import Tracker
from orchestrator.state.entry import TrialResult
from orchestrator.sweepfile.load import load_sweep
from orchestrator.tools.journal import read


def plan_of(folder: Path) -> Plan:
    (folder / "sweep.yaml").write_text(
        "name: t\nmodel: m\ntasks: [toy/acceptability]\nseeds: [0, 1, 2]\nspace: [{method: lora, rank: {values: [1, 2]}}]\n"
    )
    sweep = load_sweep(folder / "sweep.yaml")
    return make_plan(sweep, Planner(sweep, lambda run: Counts(100, 2, 1000, 400)))


def test_time_counts_also_where_it_led_to_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path)
    stopped, cut, waiting, *_ = (trial.key for trial in plan.trials)
    now = 100.0
    monkeypatch.setattr("orchestrator.driver.underway.time.monotonic", lambda: now)
    with Display(6, io.StringIO(), "quiet") as display:
        recorder = Recorder(plan, Ledger(tmp_path), display)
        for key in (waiting, cut):
            recorder.started(key)
        now += 5
        recorder.paused(waiting)
        now += 100  # it waits
        recorder.started(waiting)
        now += 2
        recorder.paused(waiting)
        assert recorder.underway.seconds[waiting] == 7
        recorder.interrupted()
        recorder.started(stopped)
        now += 3
        recorder.ended(recorder.underway.result(stopped, "stopped"))
    results = Ledger(tmp_path).results()
    assert (results[stopped].seconds, results[cut].seconds) == (3, 107)
    # A resumed sweep adds to what its trials took before.
    with Display(6, io.StringIO(), "quiet") as display:
        again = Recorder(plan_of(tmp_path), Ledger(tmp_path), display)
        assert {key: again.underway.seconds[key] for key in (stopped, cut)} == {stopped: 3, cut: 107}


def test_a_resumed_sweep_writes_a_lost_journal_again_from_its_ledger(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    ledger = Ledger(tmp_path)
    for trial in plan.trials[:4]:
        ledger.add(
            TrialResult(trial.key, "finished", {"score": 80.0, "search_score": 79.0}, {"trainable_parameters": 100.0}, 6)
        )
    ledger.close()
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for _ in range(2):  # the second time it is there
        tracker = Tracker(uri, "t", tmp_path)
        with Display(6, io.StringIO(), "quiet") as display:
            Recorder(plan, Ledger(tmp_path), display, tracker)
        tracker.close()
    events = [event for event, _ in read(SweepFolder(tmp_path).journal)]
    told = {kind: [event["key"] for event in events if event["kind"] == kind] for kind in ("trial_started", "trial_ended")}
    assert told == {key: [trial.key for trial in plan.trials[:4]] for key in told}
    assert [event["key"] for event in events if event["kind"] == "configuration_ended"] == [plan.configurations[0].id]

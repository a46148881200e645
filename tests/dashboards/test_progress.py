"""What the page counts, and says of trials that run, failed or were stopped."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.frames import Frames
from dashboards.page import state_of
from dashboards.panels import View
from orchestrator.plan.trial import Why
from orchestrator.record.events import Refused, Underway
from orchestrator.record.log import read_state
from tests.dashboards.synthetic import FakeRun, FakeSession, configuration
from tests.dashboards.views import draw, full_view, rows_of, view_of
from tests.orchestrator.logged import SweepLog, entry


def test_a_configuration_has_the_state_of_its_trials_and_only_whole_ones_are_on_the_front() -> None:
    alone = ("running", "failed", "stopped")
    states = {"whole": "", "partial": "running", "waiting": "waiting", "incomplete": "failed"}
    runs = [run for state, last in states.items() for run in
            configuration(state, scores={"mrpc": [80.0, 1.0]}, states={("mrpc", 1): last} if last else {})]  # fmt: skip
    runs += [run for state in alone for run in configuration(state, states={("toy", 0): state})]
    view = view_of(("ranks", runs))
    known = {"whole": "finished", "partial": "running", "waiting": "waiting", "incomplete": "failed"}
    assert {row.id: row.state for row in view.configurations} == known | {name: name for name in alone}
    assert {row.id: row.value("score") for row in view.configurations}["incomplete"] == 80.0
    spec = draw("front", view)
    counted = (
        "Configurations: 2 running, 2 failed, 1 finished, 1 waiting for seeds, 1 stopped early. × is the mean so far of 3 "
    )
    assert spec["note"].startswith(counted)
    assert (spec["values"]["id"], spec["values"]["so far"]) == (["whole"], ["partial", "waiting", "incomplete"])
    traces = spec["figure"]["data"]
    rings = [trace for trace in traces if trace.get("marker", {}).get("symbol") == "circle-open"]
    assert rings == [], "a ring means that it may be on the front"


def test_a_configuration_stopped_early_is_no_failure_and_its_spared_trials_are_over() -> None:
    def incomplete(identity: str, **states: str) -> list[FakeRun]:
        """A configuration whose trials on these tasks ended so, or never had their turn."""
        return configuration(
            identity, scores={task: [70.0] for task in states}, states={(task, 0): state for task, state in states.items()}
        )

    runs = [FakeSession(planned=9, status="finished"), *configuration("a", scores={"mrpc": [80.0, 81.0, 82.0]})]
    runs += incomplete("b", mrpc="finished", rte="stopped", cola="stopped")
    runs += incomplete("c", mrpc="failed", rte="stopped", cola="stopped")
    view = view_of(("ranks", runs))
    assert {row.label: row.state for row in view.configurations} == {
        "craft a": "finished",
        "craft b": "stopped",
        "craft c": "failed",
    }
    said = "4/9 trainings done, 0 running, 1 failed, 4 stopped"
    assert state_of([], view)["status"] == said
    more = [FakeSession(planned=2), *configuration("d", scores={"rte": [1.0, 2.0, 3.0, 4.0]})]
    status = state_of([], view_of(("ranks", runs), ("more", more)))["status"]
    assert status.startswith(f"ranks: {said} · more: 4/4 trainings done, 0 running, 0 failed, ")


def test_the_page_says_what_trials_do_as_the_driver_last_reported_it() -> None:
    report = Underway(time=time.time() - 60, left=300.0, doing="scoring 300/872 (reported)")
    trials = configuration("a", scores={"rte": [1.0]}, states={("rte", 0): "running"})
    view = view_of(("ranks", [FakeSession(planned=9, underway=report), *trials]))
    now = view.sweeps[0].progress()
    assert now.seconds_left == pytest.approx(240.0, abs=30.0), "a minute has passed since"
    status = state_of([], view)["status"]
    assert status.startswith("0/9 trainings done, 1 running (scoring 300/872 (reported)), 0 failed, ")
    assert re.search(r"about [34] min \d\d s left$", status), "as the terminal has it"
    silent = replace(report, time=time.time() - 3600)
    now = view_of(("ranks", [FakeSession(planned=9, underway=silent), *trials])).sweeps[0].progress()
    assert (now.seconds_left, now.doing) == (None, ""), "a driver that has been silent for an hour is gone"


def test_progress_counts_what_is_to_come_and_failures_give_reasons() -> None:
    view = full_view()
    assert state_of([], view)["status"].startswith("133/135 trainings done, 1 running, 1 failed")
    assert rows_of("failures", view)[0][:3] == [1, "trial", "NaN loss at step 3"]


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_cuts_that_end_with_their_training_are_no_trainings_and_no_failures_of_their_own(tmp_path: Path, status: str) -> None:
    log, training, other = SweepLog(tmp_path / "demo"), entry(8), entry(16)
    cuts = [entry(rank, label="cut", why=Why("cut", training.key)) for rank in (2, 4)]
    log.begin(training, other, *cuts, trainings=2)
    for trial in (training, *cuts):
        log.end(trial, status, error="its machine is gone" if status == "failed" else None)
    log.finish(other)
    names = {"configuration": "f" * 10, "label": "too large", "method": "craft", "protocol": "honest"}
    log.add(Refused, **names, parameters={}, counts={"trainable_parameters": 1e6}, reason="above max 40,000")
    view = View([Frames("demo", read_state(tmp_path / "demo" / "log.jsonl"))])
    now = view.sweeps[0].progress().trainings
    assert (now.finished, now.running) == (1, 0)
    assert "1 dropped as infeasible" in draw("front", view)["note"]
    assert {"stopped": now.stopped, "failed": now.failed} == {"stopped": 0, "failed": 0} | {status: 1}
    rows = [[1, "trial", "its machine is gone"]] * (status == "failed")
    assert [row[:3] for row in rows_of("failures", view)] == [*rows, [1, "dropped before training", "above max 40,000"]]


def test_where_the_time_went_is_one_bar_a_method_of_the_trainings_alone() -> None:
    runs = configuration("a", scores={"mrpc": [80.0, 81.0]}) + configuration("b", method="lora", scores={"mrpc": [70.0]})
    phases = {"a-mrpc-0": {"start": 10.0, "train": 60.0}, "a-mrpc-1": {"train": 30.0}, "b-mrpc-0": {"train": 45.0, "cut": 5.0}}
    for run in runs:
        if spent := phases.get(run.trial.key):
            run.facts["phases"] = spent
    drawn = draw("time", view_of(("ranks", runs)))
    minutes = {bar["name"]: bar["x"] for bar in drawn["figure"]["data"]}
    assert minutes == {"starting": [0.166667, 0], "training": [1.5, 0.75], "cutting": [0, 0.0833333]}
    assert drawn["note"] == "Mean of a training: craft 50 s, lora 50 s."

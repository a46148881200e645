"""The values of a configuration: what a searcher learns of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.plan.trial import Status, Trial, TrialResult, Why
from orchestrator.record.state import Entry, Report
from orchestrator.search.learned import (
    area,
    costs_of,
    has_failed,
    mean_score,
    mean_scores,
    search_value,
)
from orchestrator.sweepfile.settings import parse_duration
from tests.orchestrator.plans import toy_plan

GROUPS = {("a", 0): 60.0, ("b", 0): 80.0}


def trial(task: str, score: float | None, status: Status | None = "finished", size: int = 100, cut: bool = False) -> Entry:
    """A trial that ended with a search score, or reported it last if it has no status."""
    metrics = {"score": -1.0} | ({} if score is None else {"search_score": score})
    name, why = (f"cut to {size}", Why("cut", "k")) if cut else ("whole", Why())
    planned = {"trainable_parameters": size + 9, "total_parameters": 1000}
    described = Trial(f"{task} {name}", name, name, "lora", task, 0, "honest", {}, why, planned)
    if status is None:
        report = None if score is None else Report(1, 9, 1.0, metrics)
        return Entry(described, phase="paused", report=report)
    result = TrialResult(described.key, status, metrics, {"trainable_parameters": float(size)})
    return Entry(described, result, "ended")


def test_the_area_by_hand() -> None:
    points = [(8000.0, 80.0), (1000.0, 60.0), (2000.0, 70.0)]
    assert area(points) == pytest.approx((65 * math.log(2) + 75 * math.log(4)) / math.log(8))
    assert area(points[:1]) == 80.0
    assert area([(0, 57.0)]) == 57, "the control has no parameters"


@pytest.mark.parametrize(
    ("trials", "worth"),
    [
        ([trial("a", 50), trial("b", 70)], 60),
        ([trial("a", 50), trial("b", 70, None)], 60),
        ([trial("a", 50), trial("b", 70, "stopped")], 60),
        ([trial("a", 50), trial("b", None, "stopped")], (50 + 80) / 2),
        ([trial("a", 50), trial("b", None, None)], (50 + 80) / 2),
        ([trial("a", 50), trial("c", None, None)], math.nan),
        ([trial("a", 50), trial("b", None)], math.nan),
        ([trial("a", 50), trial("b", math.nan)], math.nan),
        ([trial("a", 70, size=50, cut=True), trial("a", 80)], 75),
        ([trial("a", 50, size=25, cut=True), trial("a", 70, size=50, cut=True), trial("a", 80)], (60 + 75) / 2),
        ([trial("a", None, None, size=50, cut=True), trial("a", 80, None)], 80),
        ([trial("a", None, "stopped", size=50, cut=True), trial("a", 80, "stopped")], 80),
    ],
)
def test_the_score_of_a_configuration_for_a_searcher(trials: list[Entry], worth: float) -> None:
    assert search_value(trials, GROUPS) == pytest.approx(worth, nan_ok=True)


def test_the_average_of_a_task_and_seed_is_that_of_what_was_trained() -> None:
    trials = [trial("a", 50), trial("a", 70, None), trial("a", None, None), trial("a", 9, cut=True), trial("b", math.nan)]
    assert mean_scores(trials) == {("a", 0): 60.0}
    assert mean_score(trials[:1], {}) == 50.0


def test_costs_are_measured_where_they_can_be_and_planned_otherwise() -> None:
    objectives = ("score", "trainable_parameters", "total_parameters", "peak_memory_bytes")
    assert costs_of([trial("a", 50)], objectives) == {"trainable_parameters": 100.0, "total_parameters": 1000.0}
    assert costs_of([trial("a", 50, None)], objectives)["trainable_parameters"] == 109.0
    assert costs_of([trial("a", 50, size=25, cut=True)], objectives)["trainable_parameters"] == 25.0


def test_a_failure_counts_until_its_trial_is_to_run_again() -> None:
    failed = trial("a", None, "failed")
    assert has_failed([trial("a", 50), failed])
    assert not has_failed([replace(failed, phase="waiting")])


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("90min", 5400), ("1.5h", 5400), ("2 d", 172_800), ("3m", 180)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_a_searcher_that_learns_proposes_as_many_as_the_trials_allow(tmp_path: Path) -> None:
    space = "seeds: [0, 1]\nspace: [{method: lora, rank: 4, learning_rate: {min: 1e-5, max: 1e-2}}]\n"
    plan = toy_plan(tmp_path, f"{space}search: {{algorithm: tpe, configurations: 10}}\nbudget: {{trials: 7}}\n")
    assert (plan.wanted, plan.most_jobs) == (3, 6)

"""The values of a configuration: what a searcher learns of it, and what a target is compared with."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.search_values import (
    area,
    costs_of,
    find_exhausted,
    has_failed,
    mean_score,
    mean_scores,
    satisfies,
    search_value,
)
from orchestrator.state.entry import Entry, Report, Status, TrialResult
from orchestrator.state.events import Ended, Wanted
from orchestrator.state.state import State
from orchestrator.state.trial import Trial, Why
from orchestrator.sweepfile.settings import Budget, parse_duration
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


OBJECTIVES = {"score": "maximize", "trainable_parameters": "minimize"}


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("90min", 5400), ("1.5h", 5400), ("2 d", 172_800), ("3m", 180)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_the_wall_clock_counts_this_session() -> None:
    assert find_exhausted(State(), Budget(wall_clock="1min"), OBJECTIVES, 59.0) is None
    assert "wall_clock" in str(find_exhausted(State(), Budget(wall_clock="1min"), OBJECTIVES, 60.0))


def test_a_target_is_met_in_every_metric_and_each_direction() -> None:
    target = {"score": 80.0, "trainable_parameters": 1000.0}
    assert satisfies({"score": 80.0, "trainable_parameters": 1000.0}, target, OBJECTIVES)
    assert not satisfies({"score": 79.9, "trainable_parameters": 10.0}, target, OBJECTIVES)
    assert not satisfies({"score": 99.0, "trainable_parameters": 1001.0}, target, OBJECTIVES)
    assert not satisfies({"trainable_parameters": 10.0}, target, OBJECTIVES)
    assert not satisfies({"score": 99.0}, {}, OBJECTIVES)


def state_of(*rows: tuple[str, str, dict[str, float], str | None]) -> State:
    """Trials by configuration: status, metrics, and the configuration for which it tunes."""
    state = State()
    for seed, (configuration, status, metrics, tunes) in enumerate(rows):
        names = (f"k{seed}", configuration, f"LoRA {configuration}", "lora", "toy/paraphrase", seed, "honest", {})
        trial = Trial(*names, Why("candidate", tunes) if tunes else Why(), {"trainable_parameters": 900.0})
        state = state.after(Wanted(keys=[trial.key], trials=[trial]))
        if status != "waiting":
            state = state.after(Ended(result=TrialResult(trial.key, status, metrics)))  # type: ignore[arg-type]
    return state


def scored(score: float) -> dict[str, float]:
    return {"search_score": score, "score": 99.0}


TARGET = Budget(target={"score": 80.0, "trainable_parameters": 1000.0})


@pytest.mark.parametrize(
    ("rows", "reached"),
    [
        ([("r8", "finished", scored(85), None)], "LoRA r8 reached it (score 85, trainable_parameters 900)"),
        ([("r8", "finished", scored(75), None), ("r8", "finished", scored(85), None)], "LoRA r8 reached it (score 80"),
        ([("r8", "finished", scored(75), None)], None),
        ([("r8", "finished", scored(85), None), ("r8", "waiting", {}, None)], None),
        ([("r8", "finished", scored(85), None), ("r8", "failed", {}, None)], None),
        ([("r8", "stopped", scored(85), None)], None),
        ([("r8", "finished", scored(85), "group")], None),
        ([("r8", "failed", {}, None), ("r4", "finished", scored(85), None)], "LoRA r4 reached it"),
        ([], None),
    ],
)
def test_a_target_is_reached_by_a_configuration_whose_trials_have_all_finished(rows: list[Any], reached: str | None) -> None:
    reason = find_exhausted(state_of(*rows), TARGET, OBJECTIVES, 0.0)
    assert reason is None if reached is None else f"budget.target: {reached}" in str(reason)


def test_a_cost_alone_can_be_a_target() -> None:
    state = state_of(("r8", "finished", scored(5), None))
    assert find_exhausted(state, Budget(target={"trainable_parameters": 900.0}), OBJECTIVES, 0.0)
    assert find_exhausted(state, Budget(target={"trainable_parameters": 899.0}), OBJECTIVES, 0.0) is None
    assert find_exhausted(state, Budget(), OBJECTIVES, 1e9) is None


def test_a_searcher_that_learns_proposes_as_many_as_the_trials_allow(tmp_path: Path) -> None:
    space = "seeds: [0, 1]\nspace: [{method: lora, rank: 4, learning_rate: {min: 1e-5, max: 1e-2}}]\n"
    plan = toy_plan(tmp_path, f"{space}search: {{algorithm: tpe, configurations: 10}}\nbudget: {{trials: 7}}\n")
    assert (plan.wanted, plan.most_jobs) == (3, 6)

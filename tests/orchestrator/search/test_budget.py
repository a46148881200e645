"""Budgets: what counts, when it is used up, and what a file may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.search.budget import find_exhausted, satisfies
from orchestrator.state.entry import TrialResult
from orchestrator.state.events import Ended, Wanted
from orchestrator.state.state import State
from orchestrator.state.trial import Trial, Why
from orchestrator.sweepfile.settings import Budget, parse_duration
from tests.orchestrator.plans import toy_plan

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

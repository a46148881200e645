"""Budgets: what counts, when it is used up, and what a file may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from craft.results import Counts
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.search.budget import Watch, meets
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.settings import Budget, parse_duration

OBJECTIVES = {"score": "maximize", "trainable_parameters": "minimize"}


def watch(budget: Budget) -> tuple[Watch, list[float]]:
    now = [100.0]
    return Watch(budget, OBJECTIVES, lambda: now[0]), now


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("90min", 5400), ("1.5h", 5400), ("2 d", 172_800), ("3m", 180)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_the_wall_clock_counts_this_session() -> None:
    one, now = watch(Budget(wall_clock="1min"))
    now[0] += 59
    one.check()
    assert one.spent is None
    now[0] += 1
    one.check()
    assert "wall_clock" in str(one.spent)


def test_a_target_is_met_in_every_metric_and_each_direction() -> None:
    target = {"score": 80.0, "trainable_parameters": 1000.0}
    assert meets({"score": 80.0, "trainable_parameters": 1000.0}, target, OBJECTIVES)
    assert not meets({"score": 79.9, "trainable_parameters": 10.0}, target, OBJECTIVES)
    assert not meets({"score": 99.0, "trainable_parameters": 1001.0}, target, OBJECTIVES)
    assert not meets({"trainable_parameters": 10.0}, target, OBJECTIVES)
    assert not meets({"score": 99.0}, {}, OBJECTIVES)
    one, _ = watch(Budget(target=target))
    one.finished("LoRA r8", {"score": 85.0, "trainable_parameters": 900.0})
    assert one.spent == "budget.target: LoRA r8 reached it (score 85, trainable_parameters 900)"


def text(more: str, search: str = "{algorithm: tpe, configurations: 10}") -> str:
    space = "[{method: lora, rank: 4, learning_rate: {min: 1e-5, max: 1e-2}}]"
    return f"name: t\nmodel: m\ntasks: [toy/acceptability]\nseeds: [0, 1]\nspace: {space}\nsearch: {search}\n{more}"


def test_a_searcher_that_learns_proposes_as_many_as_the_trials_allow(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(text("budget: {trials: 7}\n"))
    sweep = load_sweep(file)
    plan = make_plan(sweep, Planner(sweep, lambda run: Counts(10, 2, 100, 40)))
    assert (plan.wanted, plan.expected_trials) == (3, 6)

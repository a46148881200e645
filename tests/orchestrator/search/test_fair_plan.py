"""What the plan of `compare: fair` says, and the budgets that it refuses because they could not be equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Trial
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from tests.orchestrator.search.fair_sweeps import (
    BY_RANK,
    FAIR,
    FIRST_STAGE,
    HAND,
    plan_of,
    printed,
)


def test_the_plan_says_the_worst_case_and_each_budget(tmp_path: Path) -> None:
    text = printed(plan_of(tmp_path, FAIR))
    assert f"7 configurations x 2 tasks x 1 or 3 seeds = {FIRST_STAGE} trials, 70 optimizer steps" in text
    best = "the best of each of 2 groups, on each task by its search score: at most 12 trials more, 30 in all, 130 steps"
    assert f"then with the seeds 0, 1, 2: {best}" in text
    tuned = "3 candidates and 6 trials for each configuration, with seed 1000, whose scores are not reported"
    assert f"tuned: learning_rate; {tuned}" in text
    assert "not tuned: LoRA r4, q v" in text


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        (FAIR, "budget: {trials: 29}\n", r"file.yaml:\d+: budget.trials: to tune and measure all takes 30 trials"),
        (FAIR.replace("0.005", "0.01").replace("rank: 4", "rank: 2"), "", "stands once; twice: LoRA r2, q v, lr 0.01"),
        (
            BY_RANK + "  - {method: lora, rank: {values: [16, 32, 64, 128]}, projections: [q]}\n",
            "constraints: {trainable_parameters: {max: 6400}}\n",
            r"space.2: 3 candidates are left of a configuration and 4 of others, because constraints drop some",
        ),
    ],
)
def test_budgets_that_could_not_be_equal_are_refused_by_the_plan(tmp_path: Path, text: str, more: str, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        plan_of(tmp_path, text, more)


def test_a_block_in_which_one_configuration_lost_a_candidate_is_refused(tmp_path: Path) -> None:
    space = (
        "space:\n  - {method: lora, rank: {values: [2, 4]}, alpha: {values: [1, 2]}, learning_rate: {values: [0.001, 0.01]}}\n"
    )
    text = f"\nseeds: [0, 1]\ncompare: fair\ntuned: [rank]\n{space}"
    sweep = plan_of(tmp_path, text).sweep

    def size(run: RunSpec) -> Counts:
        # With alpha 1 the larger rank is too large; with alpha 2, which comes later, it is not.
        return Counts(1000 if (run.parameters["rank"], run.parameters["alpha"]) == (4, 1) else 10, 2, 100, 40)

    bounded = load_sweep(tmp_path / "file.yaml", ["constraints.trainable_parameters.max=100"])
    assert make_plan(sweep, Planner(sweep, size)).most_trials == 2 * 2 * 2 * (2 + 2)
    with pytest.raises(SweepError, match=r"space.0: 1 candidates are left of a configuration and 2 of others"):
        make_plan(bounded, Planner(bounded, size))


def test_trials_say_what_they_tune_only_where_something_is_tuned(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HAND.replace("replication:", "# "))
    assert {trial.tunes for trial in plan.trials} == {None}
    assert not any("tunes" in trial.to_json() for trial in plan.trials)
    fair = plan_of(tmp_path, FAIR)
    assert all(Trial.from_json(trial.to_json()) == trial and trial.tunes for trial in fair.trials if trial.run.seed == 1000)
    assert {trial.tunes for trial in fair.trials if trial.run.seed != 1000} == {None}

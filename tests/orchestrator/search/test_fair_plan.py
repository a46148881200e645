"""What the plan of `compare: fair` says, and the budgets that it refuses because they could not be equal."""

from __future__ import annotations

from pathlib import Path

from orchestrator.plan.trial import Job
from tests.orchestrator.search.fair_sweeps import FAIR, FIRST_STAGE, HAND, plan_of, printed


def test_the_plan_says_the_worst_case_and_each_budget(tmp_path: Path) -> None:
    text = printed(plan_of(tmp_path, FAIR))
    assert f"7 configurations x 2 tasks x 1 or 3 seeds = {FIRST_STAGE} trials, 70 optimizer steps" in text
    assert "then: the best of 2 groups, seeds 0, 1, 2: at most 12 trials more, 30 in all, 130 steps" in text
    assert "tuned: learning_rate, 3 candidates and 6 trials a configuration, seed 1000 (not reported)" in text
    assert "not tuned: LoRA r4, q v" in text


def test_trials_say_what_they_tune_only_where_something_is_tuned(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, HAND.replace("replication:", "# "))
    assert {trial.trial.group for trial in plan.trials} == {None}
    fair = plan_of(tmp_path, FAIR)
    assert all(Job.from_json(job.to_json()) == job for job in fair.jobs)
    assert all(trial.trial.group for trial in fair.trials if trial.run.seed == 1000)
    assert {trial.trial.group for trial in fair.trials if trial.run.seed != 1000} == {None}

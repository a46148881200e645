"""Nested ranks in the plan: a configuration for each triple, one training for all of them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from craft.results import Counts
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.table import print_plan
from orchestrator.plan.trial import TrialSpec
from orchestrator.plan.workload import planned_steps, scored_line, split_sizes
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from tests.orchestrator.nested_sweep import NESTED, nested_plan, size_of


def test_each_triple_is_a_configuration_and_the_largest_trains_them(tmp_path: Path) -> None:
    plan = nested_plan(tmp_path, block="learning_rate: {values: [0.001, 0.01]}", seeds="[0, 1]")
    assert [one.parameters["ranks"][-1] for one in plan.configurations] == [2, 4, 8] * 2
    small, middle, large, *others = plan.configurations
    assert (small.nested_in, middle.nested_in, large.nested_in) == (large.id, large.id, None)
    assert plan.together(small) == plan.together(large) == [small, middle, large]
    assert {one.nested_in for one in others} == {None, others[-1].id}
    assert len({one.id for one in plan.configurations}) == 6
    assert [one.counts.trainable_parameters for one in (small, middle, large)] == [20, 40, 80]
    assert small.label == "CRAFT 2, q v, nested in 8, lr 0.001"
    assert large.label == "CRAFT 8, q v, nested, lr 0.001"
    assert (len(plan.trials), len(plan.trainings), plan.expected_trainings) == (12, 4, 4)
    for training in plan.trainings:
        trained = plan.trained_by(training)
        assert [size_of(one.run) for one in trained] == [2, 4, 8]
        assert [one.key for one in trained] == [one.key for one in training.run.slices]
        assert {one.training_key for one in trained} == {training.key}
        assert [TrialSpec.from_json(json.loads(json.dumps(one.to_json()))) for one in trained] == trained


def test_a_constraint_drops_slices_and_the_training_keeps_the_rest(tmp_path: Path) -> None:
    plan = nested_plan(tmp_path, more="constraints: {trainable_parameters: {max: 50}}\n")
    assert [one.parameters["nested"] for one in plan.configurations] == [[["all", 2, 2], ["all", 4, 4]]] * 2
    assert plan.configurations[0].nested_in == plan.configurations[1].id
    (dropped,) = plan.dropped
    assert (dropped.configuration.parameters["ranks"], dropped.reason) == (
        ["all", 8, 8],
        "trainable_parameters 80 is above max 50",
    )
    (training,) = plan.trainings
    assert size_of(training.run) == 4


def test_one_that_remains_is_still_a_training(tmp_path: Path) -> None:
    plan = nested_plan(tmp_path, more="constraints: {trainable_parameters: {min: 25, max: 50}}\n")
    (one,) = plan.configurations
    assert (one.parameters["nested"], one.nested_in, len(plan.dropped)) == ([["all", 4, 4]], None, 2)


def test_if_none_meets_the_constraints_the_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="no configuration meets them"):
        nested_plan(tmp_path, more="constraints: {trainable_parameters: {max: 10}}\n")


def test_ranks_beside_them_are_trained_alone_however_nested_ones_are_trained(tmp_path: Path) -> None:
    block = "nested_training: {values: [cut, all]}"
    plan = nested_plan(tmp_path, f"{{values: [[all, 4, 4], {NESTED}, {NESTED}]}}", block)
    alone, *nested = plan.configurations
    assert ("nested" in alone.parameters, alone.nested_in) == (False, None)
    assert [one.parameters["nested_training"] for one in nested] == ["cut"] * 3 + ["all"] * 3
    assert len(plan.trainings) == 3


def test_a_way_of_training_without_nested_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SweepError, match="nested_training says how nested ranks are trained"):
        nested_plan(tmp_path, "[all, 4, 4]", "nested_training: cut")


def test_random_search_draws_trainings(tmp_path: Path) -> None:
    more = "search: {algorithm: random, trials: 3, seed: 1}\n"
    plan = nested_plan(tmp_path, block="learning_rate: {min: 0.001, max: 0.1}", more=more)
    assert (len(plan.trainings), len(plan.configurations)) == (3, 9)


def test_a_budget_of_trials_counts_trainings(tmp_path: Path) -> None:
    assert len(nested_plan(tmp_path, seeds="[0, 1]", more="budget: {trials: 2}\n").trials) == 6
    with pytest.raises(SweepError, match="the plan needs 2 trials; the budget is 1"):
        nested_plan(tmp_path, seeds="[0, 1]", more="budget: {trials: 1}\n")


def test_the_table_counts_work_once(tmp_path: Path) -> None:
    plan = nested_plan(tmp_path, seeds="[0, 1]")
    assert list(planned_steps(plan, split_sizes(plan.sweep))) == [plan.configurations[-1].id]
    screen = io.StringIO()
    print_plan(plan, Console(file=screen, width=200, highlight=False), {plan.configurations[-1].id: 34})
    said = screen.getvalue()
    assert "1 configurations x 1 tasks x 2 seeds = 2 trials, 34 optimizer steps" in said
    assert "these trials train 2 more configurations" in said
    assert [line.split()[-1] for line in said.splitlines() if line.startswith("CRAFT")] == ["nested", "nested", "34"]


def test_two_that_are_the_same_on_the_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 32, "num_hidden_layers": 3}
    config |= {"num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    file = tmp_path / "sweep.yaml"
    text = f"name: t\nmodel: {tmp_path / 'model'}\ntasks: [toy/sentiment]\nspace:\n  - method: craft\n    ranks: "
    file.write_text(text + "{nested: [[3, 8, 8], [all, 8, 8]]}\n")
    sweep = load_sweep(file)
    with pytest.raises(SweepError, match=r":6: space\.0\.ranks: two of the nested ranks are the same on this model"):
        make_plan(sweep, Planner(sweep))
    file.write_text(text + "{nested: [[2, 8, 8], [all, 8, 8]]}\n")
    sweep = load_sweep(file)
    assert [one.counts.trainable_parameters for one in make_plan(sweep, Planner(sweep)).configurations] == [264, 274]


def test_a_sweep_without_them_has_the_keys_it_had(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("name: t\nmodel: m\ntasks: [toy/sentiment]\nspace:\n  - method: craft\n    ranks: [all, 8, 8]\n")
    sweep = load_sweep(file)
    (trial,) = make_plan(sweep, Planner(sweep, lambda run: Counts(1, 2, 3, 4))).trials
    assert "nested_in" not in trial.to_json()
    assert trial.training_key == trial.key


def test_the_plan_says_on_how_many_examples_it_scores() -> None:
    assert scored_line({"toy": (700, 300), "mine": (90, 39)}) == (
        "scored on 300 examples of toy, 39 examples of mine; fewer than 200 leave an error of 7 points or more at 50 % right: "
        "give more rows, or a larger eval_examples"
    )
    assert scored_line({"toy": (700, 300)}) == "scored on 300 examples of toy"
    assert scored_line({}) == ""

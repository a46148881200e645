"""A configuration that is given no learning rate begins at its method's own, which the plan and the run's record have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from craft.methods import METHODS
from craft.methods.method import WIDTH, starting_rate
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.trainer.training import train_run
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.table import print_plan
from tests.orchestrator.plans import toy_plan
from tests.orchestrator.recorded import printed


def rate(method: str, width: int = WIDTH, **parameters: Any) -> float:
    row = METHODS[method]
    return starting_rate(row, row.parameters.model_validate(parameters), width)


@pytest.mark.parametrize(
    ("run", "changed", "ratio"),
    [
        ({"method": "lora", "rank": 8}, {"method": "lora", "rank": 8, "alpha": 16}, 2),
        ({"method": "lora", "rank": 8}, {"method": "lora", "rank": 32}, 2),
        ({"method": "lora", "rank": 16, "alpha": 16}, {"method": "rslora", "rank": 16, "alpha": 4}, 1),
        ({"method": "craft", "ranks": ["all", 64, 64]}, {"method": "craft", "ranks": ["all", 16, 128]}, 2),
        ({"method": "craft", "rate_scaling": "rank"}, {"method": "craft", "rate_scaling": "rank", "ranks": [1, 8, 8]}, 1),
        ({"method": "craft"}, {"method": "craft", "scaling": 0.5}, 0.5),
        ({"method": "vera"}, {"method": "vera", "width": 2 * WIDTH}, 2**0.78),
        ({"method": "full", "width": 256}, {"method": "full", "width": 32}, 1),
    ],
)
def test_the_rate_moves_with_what_scales_the_change_of_a_weight(
    run: dict[str, Any], changed: dict[str, Any], ratio: float
) -> None:
    assert rate(**run) / rate(**changed) == pytest.approx(ratio, rel=0.04)


def test_every_method_begins_within_the_rates_that_fair_tries() -> None:
    for name, row in METHODS.items():
        if name != "peft":
            assert row.rates[0] <= rate(name) <= row.rates[-1], name


FILE = """\
tasks: [toy/sentiment, toy/paraphrase]
training: {epochs: 1}
task_training: {toy/paraphrase: {learning_rate: 7e-3}}
space:
  - {method: lora, rank: {values: [2, 8]}}
  - {method: ia3, learning_rate: 5e-2}
  - {method: bitfit, learning_rate: null}
"""


def test_a_given_rate_wins_and_an_absent_one_is_the_methods(tmp_path: Path) -> None:
    plan = toy_plan(tmp_path, FILE)
    rates = {(trial.label, trial.run.task): trial.run.training.learning_rate for trial in plan.trials}
    assert rates["LoRA r2, q v", "toy/sentiment"] == rate("lora", rank=2)
    assert rates["BitFit biases", "toy/sentiment"] == rate("bitfit")
    assert {value for (label, task), value in rates.items() if label.startswith("(IA)")} == {5e-2}
    assert rates["LoRA r8, q v", "toy/paraphrase"] == 7e-3
    assert rates["BitFit biases", "toy/paraphrase"] == rate("bitfit")  # the block's null is stronger than the file's task
    plan_without_tasks = toy_plan(tmp_path, FILE.replace("task_training", "# "))
    said = f"given none: LoRA {rate('lora')} to {rate('lora', rank=2)}, BitFit {rate('bitfit')}"
    assert said in printed(lambda console: print_plan(plan_without_tasks, console, {}))


@pytest.mark.parametrize(
    "text",
    [
        "compare: fair\ntuned: {learning_rate: {values: [3e-3, null, 1e-2, 1e-3]}}\nspace: [{method: lora, rank: 8}]",
        "compare: fair\ntuned: {learning_rate: {values: [5e-3, null, 1e-2, 3e-2]}}\n"
        "space: [{method: vera, rank: {values: [1, 2, 4]}}]",
        "seeds: [9]\nreplication: {seeds: [0], tuned: [learning_rate]}\n"
        "space: [{method: lora, learning_rate: {values: [3e-3, 1e-3]}}, {method: lora}]",
    ],
)
def test_a_candidate_without_a_rate_is_tried_at_the_methods_own(text: str, tmp_path: Path) -> None:
    plan = toy_plan(tmp_path, text)
    own = {trial.configuration: trial.run.training.learning_rate for trial in plan.planner.trials(plan.trained)}
    for family in plan.families:
        for group in family.groups:
            rates = [own[candidate.id] for candidate in group]
            assert len(rates) > 2
            assert rates == sorted(rates)


def test_the_width_of_the_model_counts_and_the_record_has_the_number(tiny_bert: str, tmp_path: Path) -> None:
    training = {"max_steps": 2, "batch_size": 4, "train_examples": 8, "eval_examples": 8}
    run = RunSpec(model=tiny_bert, task="toy/sentiment", method="vera", parameters={"rank": 4}, training=training)
    trained = train_run(run, tmp_path / "absent")
    record = json.loads((trained.adapter / "run.json").read_text())
    assert record["spec"]["training"]["learning_rate"] == rate("vera", 32) != rate("vera")

    given = run.model_copy(update={"training": TrainingSettings(**training, learning_rate=rate("vera", 32))})
    assert train_run(given, tmp_path / "given").metrics == trained.metrics

    sweep = toy_plan(tmp_path, f"model: {tiny_bert}\nspace: [{{method: vera, rank: 4}}]").sweep
    assert {trial.run.training.learning_rate for trial in make_plan(sweep, Planner(sweep)).trials} == {rate("vera", 32)}

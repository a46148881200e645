"""No two configurations of a plan have one label, and what changes nothing makes no configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from craft.methods import METHODS
from orchestrator.plan.plan import Plan
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.space.dimensions import Point
from tests.orchestrator.plans import toy_plan, toy_sweep


def labels(plan: Plan) -> list[str]:
    return [configuration.label for configuration in plan.configurations]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "training: {weight_decay: 0.1}\nspace: [{method: lora, rank: 4}, {method: lora, rank: 4, weight_decay: 0}]",
            ["LoRA r4, q v, wd 0.1", "LoRA r4, q v, wd 0"],
        ),
        (
            "training: {learning_rate: 0.1}\n"
            "space: [{method: lora, rank: 4}, {method: lora, rank: 4, head_learning_rate: null}]",
            ["LoRA r4, q v, head lr 0.001", "LoRA r4, q v, head lr null"],
        ),
        (
            "space: [{method: lora, rank: 4}, {method: lora, rank: 4, task_training: {toy/paraphrase: {epochs: 2}}}]",
            ["LoRA r4, q v, space.0", "LoRA r4, q v, space.1"],
        ),
        (
            "space: [{method: lora, rank: 4, sizes: [100]}, {method: lora, rank: 4, warmup_ratio: 0, sizes: [100]}]",
            [
                *("LoRA r4, q v, warmup_ratio 0.06, cut to 1/4", "LoRA r4, q v, warmup_ratio 0.06"),
                *("LoRA r4, q v, warmup_ratio 0, cut to 1/4", "LoRA r4, q v, warmup_ratio 0"),
            ],
        ),
        ("space: [{method: lora, rank: 4, dropout: {values: [0, 0.1]}}]", ["LoRA r4, q v", "LoRA r4, q v, dropout 0.1"]),
    ],
)
def test_each_configuration_has_a_label_of_its_own(text: str, expected: list[str], tmp_path: Path) -> None:
    assert labels(toy_plan(tmp_path, text, 400)) == expected


def test_tuned_configurations_of_unlike_blocks_have_labels_of_their_own(tmp_path: Path) -> None:
    block = "method: lora, rank: 4, learning_rate: {values: [1e-3, 1e-2]}"
    text = f"compare: fair\nseeds: [0, 1]\nspace: [{{{block}}}, {{{block}, task_training: {{toy/paraphrase: {{epochs: 2}}}}}}]"
    plan = toy_plan(tmp_path, text)
    names = [plan.planner.labels.label_of(family.groups[0]) for family in plan.families]
    assert names == ["LoRA r4, q v, space.0", "LoRA r4, q v, space.1"]


def test_a_point_that_is_drawn_or_proposed_is_no_namesake(tmp_path: Path) -> None:
    drawn = "search: {algorithm: tpe, configurations: 9}\nspace: [{method: lora, rank: 4, dropout: {min: 0.05, max: 0.5}}]"
    probed = toy_plan(tmp_path, drawn).probed
    assert len({point.label for point in probed}) == len({point.id for point in probed}) > 9
    plan = toy_plan(tmp_path, "space: [{method: lora, rank: 4, dropout: 0.1, learning_rate: 3e-3}]")
    assert labels(plan) == ["LoRA r4, q v"]
    parameters = {"rank": 4, "projections": ("q", "v")}
    proposed = plan.planner.configuration(Point(0, "lora", parameters, {}))
    assert proposed.label == "LoRA r4, q v, dropout 0, lr null"
    same = plan.planner.configuration(Point(0, "lora", parameters | {"dropout": 0.1}, {"learning_rate": 3e-3}))
    assert same.id == plan.configurations[0].id


SAME: list[tuple[str, dict[str, Any]]] = [
    ("select beside one evaluation", {"evaluate_every": "end", "select": {"values": ["best", "last"]}}),
    ("select beside the last epoch's", {"epochs": 2, "evaluate_every": 2, "select": {"values": ["best", "last"]}}),
    ("alpha", {"alpha": {"values": [None, 4]}}),
    ("order", {"projections": {"values": [["q", "v"], ["v", "q"]]}}),
    ("the head's rate", {"learning_rate": 1e-2, "head_learning_rate": {"values": [1e-2, None]}}),
    ("search examples", {"eval_examples": 50, "search_examples": {"values": [None, 50]}}),
]


@pytest.mark.parametrize(("what", "settings"), SAME, ids=[what for what, _ in SAME])
@pytest.mark.parametrize("drawn", [False, True])
def test_a_setting_without_effect_makes_no_configuration(
    what: str, settings: dict[str, Any], drawn: bool, tmp_path: Path
) -> None:
    search = "search: {algorithm: random, configurations: 8}\n" if drawn else ""
    plan = toy_plan(tmp_path, f"{search}space: [{{method: lora, rank: 4, {str(settings)[1:-1].replace('None', 'null')}}}]")
    assert len(plan.configurations) == 1, what
    assert len(plan.duplicates) == (0 if drawn else 1)


@pytest.mark.parametrize(
    "settings",
    [
        "evaluate_every: 1, select: {values: [best, last]}",
        "epochs: 2.4, evaluate_every: 2.4, select: {values: [best, last]}",
        "alpha: {values: [null, 8]}",
        "projections: {values: [[q, v], [q, k]]}",
    ],
)
def test_a_setting_with_effect_does(settings: str, tmp_path: Path) -> None:
    assert len(toy_plan(tmp_path, f"space: [{{method: lora, rank: 4, {settings}}}]").configurations) == 2


def test_the_rank_of_every_method_with_an_alpha_is_its_default() -> None:
    """Which `Identity.meaning` takes for granted."""
    for row in METHODS.values():
        field = row.parameters.model_fields.get("alpha")
        rank = "init_rank" if "init_rank" in row.parameters.model_fields else "rank"
        assert field is None or (field.default is None and f"else `{rank}`" in str(field.description)), row.name


def test_epochs_that_have_an_effect_are_allowed(tmp_path: Path) -> None:
    for text in (
        "training: {epochs: 2}\ntask_training: {toy/paraphrase: {max_steps: 6}}\nspace: [{method: head}]",
        "training: {epochs: 2}\nspace: [{method: lora, max_steps: 6}, {method: head}]",
        "training: {max_steps: 6}\nspace: [{method: lora, max_steps: null, epochs: 2}]",
        "space: [{method: lora, epochs: 2, max_steps: {values: [null, 6]}}]",
    ):
        toy_sweep(tmp_path, text)
    sweep = toy_sweep(tmp_path, "training: {epochs: 2}\nspace: [{method: head}]", "training.max_steps=6")
    assert sweep.training.max_steps == 6, "one of the two takes the other's place"
    (tmp_path / "effective.yaml").write_text(sweep.to_yaml())
    assert load_sweep(tmp_path / "effective.yaml").training == sweep.training

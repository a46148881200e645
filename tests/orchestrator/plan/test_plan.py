"""The plan: configurations, their costs, their names, and what is refused before anything trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.record.resume import contradictions
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep
from tests.orchestrator.plans import count, toy_sweep

ROBERTA_BASE = {
    "model_type": "roberta",
    "architectures": ["RobertaForMaskedLM"],
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "vocab_size": 50265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
}
BASE = """\
name: small
model: MODEL
tasks: [toy/sentiment, toy/paraphrase]
seeds: [0, 1]
space:
  - method: craft
    ranks: {values: [[all, 16, 16], [all, 32, 32]]}
  - method: lora
    rank: 2
"""


def sweep(folder: Path, text: str = BASE, *overrides: str) -> Sweep:
    path, model = folder / "sweep.yaml", folder / "roberta-base"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(ROBERTA_BASE))
    path.write_text(text.replace("MODEL", str(model)))
    return load_sweep(path, overrides)


def counted_by_hand(spec: RunSpec) -> Counts:
    """Counts that need no model: r2² + r3² for CRAFT (its r1 is `all` here), 1000 a rank for LoRA."""
    ranks = spec.parameters.get("ranks")
    trainable = sum(rank**2 for rank in ranks[1:]) if ranks else 1000 * spec.parameters["rank"]
    return Counts(trainable, 10, 10**6, 4 * trainable)


def quick_plan(checked: Sweep) -> Plan:
    return make_plan(checked, Planner(checked, counted_by_hand))


def test_every_configuration_runs_on_every_task_with_every_seed(tmp_path: Path) -> None:
    plan = quick_plan(sweep(tmp_path))
    assert [configuration.label for configuration in plan.configurations] == ["CRAFT 16, q v", "CRAFT 32, q v", "LoRA r2, q v"]
    assert len(plan.trials) == 3 * 2 * 2
    assert len({trial.key for trial in plan.trials}) == len(plan.trials)
    assert {(trial.run.task, trial.run.seed) for trial in plan.trials if trial.label == "LoRA r2, q v"} == {
        (task, seed) for task in ("toy/sentiment", "toy/paraphrase") for seed in (0, 1)
    }


def test_equal_content_is_one_configuration_however_it_is_written(tmp_path: Path) -> None:
    text = BASE + "  - method: lora\n    r: 2\n    lora_dropout: 0.0\n    epochs: 3\n"
    plan = quick_plan(sweep(tmp_path, text))
    assert len(plan.configurations) == 3
    assert plan.duplicates == ["LoRA r2, q v, epochs 3"]
    # A task of its own settings makes the choice of a general one a different configuration.
    plan = quick_plan(sweep(tmp_path, text + "task_training: {toy/sentiment: {epochs: 5}}\n"))
    assert len(plan.configurations) == 4


def test_all_and_the_number_it_stands_for_are_one_configuration(tmp_path: Path) -> None:
    text = BASE.replace("[all, 32, 32]", "[12, 16, 16], [all, all, 16], [12, 768, 16]")
    plan = make_plan(sweep(tmp_path, text))
    assert [configuration.label for configuration in plan.configurations] == [
        "CRAFT 16, q v",
        "CRAFT (all,all,16), q v",
        "LoRA r2, q v",
    ]
    assert plan.duplicates == ["CRAFT (12,16,16), q v", "CRAFT (12,768,16), q v"]


def test_constraints_drop_and_name_what_breaks_them(tmp_path: Path) -> None:
    plan = quick_plan(sweep(tmp_path, BASE + "constraints: {trainable_parameters: {max: 2_000, min: 600}}\n"))
    assert [configuration.label for configuration in plan.configurations] == ["LoRA r2, q v"]
    assert [(one.configuration.label, one.reason) for one in plan.dropped] == [
        ("CRAFT 16, q v", "trainable_parameters 512 is below min 600"),
        ("CRAFT 32, q v", "trainable_parameters 2,048 is above max 2,000"),
    ]
    assert all(trial.label == "LoRA r2, q v" for trial in plan.trials)


def test_random_draws_so_many_different_configurations_and_more_are_an_extension(tmp_path: Path) -> None:
    text = BASE.replace("rank: 2", "rank: {min: 1, max: 64}") + "search: {algorithm: random, configurations: 5, seed: 3}\n"
    five = quick_plan(sweep(tmp_path, text))
    nine = quick_plan(sweep(tmp_path, text, "search.configurations=9"))
    assert len({configuration.id for configuration in five.configurations}) == 5
    assert [configuration.id for configuration in nine.configurations][:5] == [
        configuration.id for configuration in five.configurations
    ]


def test_random_ends_where_the_space_has_fewer_configurations_than_asked(tmp_path: Path) -> None:
    plan = quick_plan(sweep(tmp_path, BASE + "search: {algorithm: random, configurations: 50}\n"))
    assert len(plan.configurations) == 3


def test_estimated_memory_can_be_bounded(tmp_path: Path) -> None:
    plan = make_plan(sweep(tmp_path))
    (least,) = {configuration.estimated_memory_bytes for configuration in plan.configurations if configuration.method == "lora"}
    assert least > 4 * 124_000_000  # RoBERTa-base's float32 weights alone


def test_memory_is_estimated_once_for_tasks_that_differ_in_their_heads_alone(tmp_path: Path) -> None:
    text = "tasks: [glue/stsb, glue/mnli, glue/sst2, commonsense]\nspace: [{method: lora, rank: 2}, {method: full}]\n"
    asked: list[str] = []

    def memory(run: RunSpec) -> int:
        asked.append(run.task)
        return len(run.task)

    plan = count(toy_sweep(tmp_path, text), memory=memory)
    assert sorted(asked) == ["commonsense"] * 2 + ["glue/mnli"] * 2
    assert {row.estimated_memory_bytes for row in plan.configurations} == {len("commonsense")}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.epochs=5", "training.epochs: was 3.0, is 5.0 (--set training.epochs=5)"),
        ("protocol=customary", "protocol: was 'honest', is 'customary'"),
        (
            "objectives={score: maximize, adapter_bytes: minimize}",
            "objectives.trainable_parameters: was 'minimize', is nothing",
        ),
        ("data.search_fraction=0.2", "data.search_fraction: was 0.1, is 0.2"),
        ("task_training={toy: {epochs: 1}}", "task_training.toy: was nothing (null), is {epochs: 1}"),
        ("search={algorithm: random, configurations: 3}", "search.algorithm: was 'grid', is 'random'"),
        ("model=sentence-transformers/all-MiniLM-L6-v2", "model: was "),
    ],
)
def test_an_edit_that_changes_what_numbers_mean_is_a_contradiction(override: str, said: str, tmp_path: Path) -> None:
    (line, *_) = contradictions(sweep(tmp_path), sweep(tmp_path, BASE, override))
    assert said in line

"""The plan: configurations, their names, that no two have one label, and that what changes nothing makes no configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from craft.methods import METHODS
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.record.resume import contradictions
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.space.dimensions import Point
from tests.craft.trainer.test_counting import config_of
from tests.orchestrator.plan.test_starting_rates import rate
from tests.orchestrator.plans import toy_plan, toy_sweep

BASE = """\
tasks: [toy/sentiment, toy/paraphrase]
seeds: [0, 1]
space:
  - {method: craft, ranks: {values: [[all, 16, 16], [all, 32, 32]]}}
  - {method: lora, rank: 2}
"""


def labels(plan: Plan) -> list[str]:
    return [configuration.label for configuration in plan.configurations]


def test_equal_content_is_one_configuration_however_it_is_written(tmp_path: Path) -> None:
    text = BASE + "  - {method: lora, r: 2, lora_dropout: 0.0, epochs: 3}\n"
    plan = toy_plan(tmp_path, text)
    assert len(plan.configurations) == 3
    assert plan.duplicates == ["LoRA r2, q v, epochs 3"]
    # A task of its own settings makes the choice of a general one a different configuration.
    assert len(toy_plan(tmp_path, text + "task_training: {toy/sentiment: {epochs: 5}}\n").configurations) == 4


def test_all_and_the_number_it_stands_for_are_one_configuration(tmp_path: Path) -> None:
    config_of("roberta-base", tmp_path)
    text = BASE.replace("[all, 32, 32]", "[12, 16, 16], [all, all, 16], [12, 768, 16]")
    plan = make_plan(toy_sweep(tmp_path, f"model: {tmp_path}\n{text}"))
    assert labels(plan) == ["CRAFT 16, q v", "CRAFT (all,all,16), q v", "LoRA r2, q v"]
    assert plan.duplicates == ["CRAFT (12,16,16), q v", "CRAFT (12,768,16), q v"]
    assert plan.configurations[-1].estimated_memory_bytes > 4 * 124_000_000, "RoBERTa-base's float32 weights alone"


@pytest.mark.slow
def test_random_draws_different_configurations_while_there_are_some_and_more_are_an_extension(tmp_path: Path) -> None:
    def drawn(configurations: int, rank: str, seed: int = 3) -> list[str]:
        search = f"search: {{algorithm: random, configurations: {configurations}, seed: {seed}}}\n"
        return [row.id for row in toy_plan(tmp_path, BASE.replace("rank: 2", f"rank: {rank}") + search).configurations]

    five = drawn(5, "{min: 1, max: 64}")
    assert len({*five}) == 5
    assert drawn(5, "{min: 1, max: 64}", seed=4) != five
    assert drawn(9, "{min: 1, max: 64}")[:5] == five
    assert len(drawn(50, "2")) == 3


FAIR = "compare: fair\nspace: [{method: lora, rank: {values: [1, 2]}}]\n"
HAND = (
    "seeds: [9]\nreplication: {seeds: [0], tuned: [learning_rate]}\n"
    "space: [{method: lora, rank: {values: [1, 2]}, learning_rate: {values: [1, 2]}}]\n"
)


@pytest.mark.parametrize(
    ("text", "override", "said"),
    [
        (BASE, "training.epochs=5", "training.epochs: was 3.0, is 5.0 (--set training.epochs=5)"),
        (BASE, "protocol=customary", "protocol: was 'honest', is 'customary'"),
        (BASE, "objectives={score: maximize}", "objectives.trainable_parameters: was 'minimize', is nothing"),
        (BASE, "data.search_fraction=0.2", "data.search_fraction: was 0.1, is 0.2"),
        (BASE, "task_training={toy: {epochs: 1}}", "task_training.toy: was nothing (null), is {epochs: 1}"),
        (BASE, "search={algorithm: random, configurations: 3}", "search.algorithm: was 'grid', is 'random'"),
        (BASE, "model=another", "model: was "),
        (BASE, "measure={forgetting: true}", "measure.forgetting: was nothing (null), is "),
        (FAIR, "tuning_seeds=[7]", "tuning_seeds: was [1000], is [7]"),
        (HAND, "replication.tuned=[rank]", "tuned: was [learning_rate], is [rank]"),
        (FAIR, "seeds=[0, 1, 2, 3]", None),
    ],
)
def test_an_edit_that_changes_what_numbers_mean_is_a_contradiction(
    text: str, override: str, said: str | None, tmp_path: Path
) -> None:
    lines = contradictions(toy_sweep(tmp_path, text), toy_sweep(tmp_path, text, override))
    assert said in lines[0] if said else not lines


EPOCHS = ", task_training: {toy/paraphrase: {epochs: 2}}"


@pytest.mark.parametrize(
    ("head", "blocks", "endings"),
    [
        ("training: {weight_decay: 0.1}\n", ["", ", weight_decay: 0"], [", wd 0.1", ", wd 0"]),
        ("training: {learning_rate: 0.1}\n", ["", ", head_learning_rate: null"], [", head lr 0.001", ", head lr null"]),
        ("", ["", EPOCHS], [", space.0", ", space.1"]),
        ("", [", sizes: [100]", ", warmup_ratio: 0, sizes: [100]"],
         [f", warmup_ratio {ratio}{cut}" for ratio in ("0.06", "0") for cut in (", cut to 1/4", "")]),
        ("", [", dropout: {values: [0, 0.1]}"], ["", ", dropout 0.1"]),
    ],
)  # fmt: skip
def test_each_configuration_has_a_label_of_its_own(head: str, blocks: list[str], endings: list[str], tmp_path: Path) -> None:
    space = ", ".join(f"{{method: lora, rank: 4{block}}}" for block in blocks)
    assert labels(toy_plan(tmp_path, f"{head}space: [{space}]", 400)) == [f"LoRA r4, q v{end}" for end in endings]


def test_tuned_configurations_of_unlike_blocks_have_labels_of_their_own(tmp_path: Path) -> None:
    block = "method: lora, rank: 4, learning_rate: {values: [1e-3, 1e-2]}"
    plan = toy_plan(tmp_path, f"compare: fair\nseeds: [0, 1]\nspace: [{{{block}}}, {{{block}{EPOCHS}}}]")
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


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(
    ("settings", "many"),
    [
        ("evaluate_every: end, select: {values: [best, last]}", 1),
        ("evaluate_every: 1, select: {values: [best, last]}", 2),
        ("epochs: 2, evaluate_every: 2, select: {values: [best, last]}", 1),
        ("epochs: 2.4, evaluate_every: 2.4, select: {values: [best, last]}", 2),
        ("alpha: {values: [null, 4]}", 1),
        ("alpha: {values: [null, 8]}", 2),
        ("projections: {values: [[q, v], [v, q]]}", 1),
        ("projections: {values: [[q, v], [q, k]]}", 2),
        ("learning_rate: 1e-2, head_learning_rate: {values: [1e-2, null]}", 1),
        ("eval_examples: 50, search_examples: {values: [null, 50]}", 1),
        (f"learning_rate: {{values: [null, {rate('lora', rank=4)}]}}", 1),
        ("method: head, learning_rate: {values: [1e-3, 1e-2]}", 1),
        ("method: head, learning_rate: {values: [1e-3, 1e-2]}, head_learning_rate: null", 2),
    ],
)
def test_a_setting_without_effect_makes_no_configuration(settings: str, many: int, drawn: bool, tmp_path: Path) -> None:
    search = "search: {algorithm: random, configurations: 8}\n" if drawn else ""
    block = settings if settings.startswith("method: ") else f"method: lora, rank: 4, {settings}"
    plan = toy_plan(tmp_path, f"{search}space: [{{{block}}}]")
    assert len(plan.configurations) == many
    assert len(plan.duplicates) == (0 if drawn else 2 - many)


@pytest.mark.parametrize("tasks", ["custom/g, toy/sentiment", "toy/sentiment, custom/g"])
def test_a_head_is_named_whichever_task_comes_first(tasks: str, tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("q,a\n" + "".join(f"what is {row}?,it is {row}\n" for row in range(60)))
    data = "data: {custom: {g: {train: g.csv, kind: generation, prompt: q, response: a}}}\n"
    assert labels(toy_plan(tmp_path, f"tasks: [{tasks}]\n{data}space: [{{method: head}}]")) == ["Head alone"]


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

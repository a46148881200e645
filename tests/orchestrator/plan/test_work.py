"""How much a plan does, and plans of models whose layout no list names or that are GGUF files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import transformers

from craft.methods import METHODS
from craft.models.files import resolve_model, weights_on_disk
from craft.spec import RunSpec
from craft.trainer.counting import planned_counts
from orchestrator.plan.plan import make_plan
from orchestrator.plan.table import print_plan
from orchestrator.plan.work import Work, count_work
from orchestrator.worker.preparation import prepare
from tests.craft import gguf_writing as written
from tests.orchestrator.plans import rank, toy_plan, toy_sweep
from tests.orchestrator.recorded import printed

TRAINING = "training: {max_steps: 100, eval_examples: 50, search_examples: 20, evaluate_every: end}\n"
FAIR = "compare: fair\ntuned: {learning_rate: {values: [1e-4, 1e-3, 1e-2, 1e-1, 1]}}\nseeds: [0, 1, 2]\n"


def size(run: RunSpec) -> int:
    return rank(run) if run.parameters else 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seeds: [0, 1]\nspace: [{method: lora, rank: {values: [1, 2]}}]", [Work(4, 400, 4 * 70)]),
        # The head alone needs no gradients of the base.
        ("space: [{method: head}, {method: lora, rank: 1}]", [Work(1, 100 / 3, 70), Work(1, 100, 70)]),
        # Two cuts, each trained on for ten steps and scored on both splits.
        ("space: [{method: lora, rank: 8, sizes: [100, 200]}]", [Work(1, 120, 3 * 70)]),
        # Three of five rates by one seed, scored on the search split alone, then three seeds of the best.
        (FAIR + "space: [{method: lora, rank: 8}]", [Work(6, 600, 3 * 20 + 3 * 70)]),
        # Three ranks: three rates of each.
        (FAIR + "space: [{method: lora, rank: {values: [1, 8, 16]}}]", [Work(18, 1800, 9 * 20 + 9 * 70)]),
    ],
)
def test_work_is_that_of_all_trainings(text: str, expected: list[Work], tmp_path: Path) -> None:
    work = count_work(toy_plan(tmp_path, TRAINING + text, size))
    assert [*work] == [("space", index) for index in range(len(expected))]
    for part, right in zip(work.values(), expected, strict=True):
        assert (part.trainings, part.steps, part.examples) == pytest.approx((right.trainings, right.steps, right.examples))


def test_a_plan_that_is_chosen_later_has_the_work_of_its_longest_point(tmp_path: Path) -> None:
    rank = "{min: 1, max: 8, distribution: int_uniform}"
    text = f"search: {{algorithm: tpe, configurations: 4}}\nspace: [{{method: lora, rank: {rank}}}]"
    assert count_work(toy_plan(tmp_path, TRAINING + text, size)) == {("space",): Work(4, 400, 4 * 70)}
    longer = text.replace("}]", ", max_steps: {values: [100, 200]}}]").replace("configurations: 4", "configurations: 500")
    (work,) = count_work(toy_plan(tmp_path, TRAINING + longer, size)).values()
    assert (work.trainings, work.steps) == (500, 500 * 200)


MAP = {
    "q": "self.query",
    "k": "self.key",
    "v": "self.value",
    "o": "attention.output.dense",
    "up": "intermediate.dense",
    "down": r"\d\.output.dense",
}


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model of a family that is named nowhere."""
    folder = tmp_path_factory.mktemp("unknown")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99}
    transformers.MegatronBertForSequenceClassification(transformers.MegatronBertConfig(**sizes)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if "projections" in row.parameters.model_fields])
def test_every_method_finds_an_unknown_family_by_its_layout_as_by_a_map(method: str, unknown: str) -> None:
    ranks = {"ranks": ["all", 4, 4]}
    parameters = {"peft": {"peft_type": "LORA"}, "craft": ranks, "craft_star": ranks}.get(method, {})
    spec = {"model": unknown, "task": "toy/sentiment", "method": method, "parameters": parameters}
    by_layout = planned_counts(RunSpec.model_validate(spec))
    assert by_layout == planned_counts(RunSpec.model_validate(spec | {"projection_map": MAP}))
    assert by_layout.trainable_parameters > 0


def test_a_sweep_file_takes_the_map_of_its_model(unknown: str, tmp_path: Path) -> None:
    text = f"model: {unknown}\nspace: [{{method: craft, ranks: [all, 4, 4]}}, {{method: lora, rank: 1}}]\n"
    plan = make_plan(toy_sweep(tmp_path, text + "projection_map: {q: self.query, v: self.value}\n"))
    assert [row.counts.trainable_parameters for row in plan.configurations] == [2 * (2 * 2 + 4 * 4 + 4 * 4), 2 * 2 * (32 + 32)]
    assert all(trial.run.projection_map == {"q": "self.query", "v": "self.value"} for trial in plan.trials)


def test_a_gguf_file_is_planned_and_prepared(here: Path) -> None:
    path = written.write(here / "tiny.gguf", written.random_llama(), written.Format.Q4_0)
    blocks = "[{method: craft, ranks: [all, 8, 4], projections: [q, v]}, {method: lora, rank: 2, projections: [k, up]}]"
    plan = make_plan(toy_sweep(here, f"model: tiny.gguf\ntasks: [toy/sentiment]\nspace: {blocks}\n"))
    assert plan.sweep.model == str(path)  # trials run in other folders
    craft, lora = plan.configurations
    width, keys, inner, layers = written.WIDTH, written.WIDTH // 2, written.INNER, written.LAYERS
    assert craft.counts.trainable_parameters == 2 * (layers**2 + 8**2 + 4**2)
    assert lora.counts.trainable_parameters == layers * 2 * ((width + keys) + (width + inner))
    matrices, norms = 1 + 7 * layers, 1 + 2 * layers
    assert f"weights dequantized from GGUF (tensors: Q4_0 {matrices}, F32 {norms})" in printed(
        lambda console: print_plan(plan, console, {})
    )

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert prepare(plan.trials)[str(path)] == digest
    assert weights_on_disk(resolve_model(str(path)))

"""Runs of nested ranks: equality with plain CRAFT, with each slice alone, with the sum by hand; resume and cuts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from craft.results import Progress, RunFailed, RunResult
from craft.scoring.encoding import Collator, encode_split
from craft.scoring.evaluation import predict
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.tasks import find_task
from craft.tasks.splits import load_splits
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.counting import estimated_memory, planned_counts
from craft.trainer.memory import smaller_batches
from craft.trainer.nested import drawn
from craft.trainer.steps import evaluation_steps, make_schedule, stage_ends, total_steps
from craft.trainer.training import train_run

MakeSpec = Callable[..., RunSpec]
NESTED = [[2, 4, 4], [2, 8, 8], ["all", 12, 8]]


def nested(make: MakeSpec, way: str, *, ranks: list[list[Any]] = NESTED, **changes: Any) -> RunSpec:
    parameters = {"ranks": ranks[-1], "nested": ranks, "nested_training": way} | changes.pop("parameters", {})
    return make(parameters=parameters, **changes)


def weights(result: Any) -> dict[str, torch.Tensor]:
    return load_file(result.adapter / "adapter_model.safetensors")


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], atol: float) -> bool:
    return left.keys() == right.keys() and all(torch.allclose(left[name], right[name], atol=atol) for name in left)


@pytest.mark.parametrize(("way", "scaling"), [("cut", "none"), ("drawn", "rank"), ("all", "none"), ("shrink", "none")])
def test_one_rank_in_the_list_is_plain_craft_bit_for_bit(tiny_spec: MakeSpec, tmp_path: Path, way: str, scaling: str) -> None:
    shared = {"dropout": 0.1, "rate_scaling": scaling}
    plain = train_run(tiny_spec(parameters={"ranks": ["all", 8, 4]} | shared), tmp_path / "plain")
    alone = train_run(nested(tiny_spec, way, ranks=[["all", 8, 4]], parameters=shared), tmp_path / "nested")
    assert plain.metrics == alone.metrics
    assert equal(weights(plain), weights(alone))
    assert alone.slices == {}


@pytest.mark.parametrize(("way", "task"), [("cut", "toy/similarity"), ("drawn", "toy/sentiment"), ("shrink", "toy/similarity")])
def test_a_slice_loaded_alone_gives_the_outputs_that_were_scored(
    tiny_spec: MakeSpec, tmp_path: Path, way: str, task: str
) -> None:
    spec = nested(tiny_spec, way, task=task, training={"learning_rate": 3e-2, "evaluate_every": 0.5})
    reports: list[Progress] = []
    result = train_run(spec, tmp_path, report=reports.append)
    data = find_task(spec.task, spec.data)
    texts = load_splits(data, spec.data, train_examples=48, eval_examples=40).reported[""]
    assert list(result.slices) == [run.key for run in spec.slices[:-1]] == list(reports[0].slices)
    for run in spec.slices[:-1]:
        found = result.slices[run.key]
        curve = {one.step: one.slices[run.key]["search_score"] for one in reports if run.key in one.slices}
        assert found.metrics["search_score"] == max(curve.values()) == curve[found.best_step]
        assert found.adapter == tmp_path / "slices" / run.key / "adapter"
        assert found.counts.trainable_parameters == planned_counts(run).trainable_parameters
        assert found.counts.adapter_bytes == planned_counts(run).adapter_bytes
        record = json.loads((found.adapter / "run.json").read_text())
        assert RunSpec.recorded(record["spec"]).key == run.key
        assert record["metrics"]["score"] == found.metrics["score"]
        assert json.loads((found.adapter / "adapter_config.json").read_text())["ranks"] == run.parameters["ranks"]
        kept = load_file(found.adapter.parent / "predictions.safetensors")
        model, tokenizer = load_adapter(found.adapter)
        assert outputs(model, tokenizer, texts, data.kind).equal(kept["outputs"])
    largest = load_file(tmp_path / "predictions.safetensors")["outputs"]
    model, tokenizer = load_adapter(result.adapter)
    assert outputs(model, tokenizer, texts, data.kind).equal(largest)


def outputs(model: Any, tokenizer: Any, texts: Any, kind: Any) -> torch.Tensor:
    """In the batches that a run scores."""
    split = encode_split(texts, kind, tokenizer, 32)
    return torch.from_numpy(predict(model, split, Collator(int(tokenizer.pad_token_id)), 64))


@pytest.mark.parametrize(("way", "checkpoints"), [("drawn", 6), ("shrink", 8)])
def test_a_nested_run_resumed_from_any_checkpoint_ends_as_the_undisturbed_one(
    tiny_spec: MakeSpec, tmp_path: Path, way: str, checkpoints: int
) -> None:
    spec = nested(
        tiny_spec,
        way,
        parameters={"dropout": 0.1, "rate_scaling": "rank"},
        training={"gradient_accumulation": 2, "evaluate_every": 0.34, "learning_rate": 3e-2},
    )
    kept: list[Path] = []

    def keep(progress: Progress) -> None:
        assert progress.checkpoint is not None
        kept.append(shutil.copytree(progress.checkpoint, tmp_path / "kept" / progress.checkpoint.name))

    undisturbed = train_run(spec, tmp_path / "undisturbed", report=keep)
    assert len(kept) == checkpoints
    for checkpoint in (kept[3], kept[-2], kept[-1]):
        resumed = train_run(spec, tmp_path / f"from-{checkpoint.name}", resume_from=checkpoint)
        assert resumed.metrics == undisturbed.metrics
        assert equal(weights(resumed), weights(undisturbed))
        assert resumed.slices.keys() == undisturbed.slices.keys()
        for key, one in undisturbed.slices.items():
            assert resumed.slices[key].metrics == one.metrics
            assert resumed.slices[key].best_step == one.best_step
            assert equal(weights(resumed.slices[key]), weights(one))


def test_the_cut_into_micro_batches_does_not_change_a_nested_step(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    whole = nested(tiny_spec, "drawn", training={"batch_size": 16, "train_examples": 44, "select": "last"})
    smaller = smaller_batches(whole.training)
    assert smaller is not None
    one = train_run(whole, tmp_path / "one")
    two = train_run(whole.model_copy(update={"training": smaller}), tmp_path / "two")
    assert close(weights(one), weights(two), 2e-5)
    # The second run's keys are of other micro-batches; the order is the same.
    for left, right in zip(one.slices.values(), two.slices.values(), strict=True):
        assert close(weights(left), weights(right), 2e-5)


def test_gradient_checkpointing_changes_no_gradient_of_nested_ranks(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    runs: list[RunResult] = [
        train_run(
            nested(tiny_spec, "drawn", parameters={"dropout": 0.1}, training={"gradient_checkpointing": on, "max_steps": 3}),
            tmp_path / str(on),
        )
        for on in (False, True)
    ]
    assert close(weights(runs[0]), weights(runs[1]), 1e-6)


def test_ranks_drawn_for_a_step_depend_on_seed_and_step_alone() -> None:
    first = [drawn(0, step, 3) for step in range(200)]
    assert first == [drawn(0, step, 3) for step in range(200)] != [drawn(1, step, 3) for step in range(200)]
    assert min(first.count(one) for one in range(3)) > 40


def test_a_slice_is_not_trained_alone(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    spec = nested(tiny_spec, "drawn")
    with pytest.raises(RunFailed, match=f"train the largest.*{spec.key}"):
        train_run(spec.slices[0], tmp_path)


def test_ranks_that_shrink_are_trained_one_after_another_and_kept(tiny_spec: MakeSpec, tmp_path: Path) -> None:
    settings = {"learning_rate": 3e-2, "select": "last", "train_examples": 96, "batch_size": 8, "epochs": 1.0}
    spec = nested(tiny_spec, "shrink", training=settings, parameters={"rate_scaling": "rank"})
    reports: list[Progress] = []
    result = train_run(spec, tmp_path / "shrink", report=reports.append)
    small, middle = spec.slices[:-1]
    # 12 steps of the largest, then 2 and 4 of the smaller ranks; what has had its steps is scored no more.
    assert [(one.step, bool(one.metrics), set(one.slices)) for one in reports] == [
        (12, True, {small.key, middle.key}),
        (14, False, {small.key, middle.key}),
        (18, False, {small.key}),
    ]
    assert (result.best_step, result.slices[middle.key].best_step, result.slices[small.key].best_step) == (12, 14, 18)
    alone = train_run(nested(tiny_spec, "cut", training=settings, parameters={"rate_scaling": "rank"}), tmp_path / "cut")
    assert equal(weights(result), weights(alone))
    assert result.metrics == alone.metrics
    for one, other in zip(alone.slices.values(), result.slices.values(), strict=True):
        before, after = weights(one), weights(other)
        assert not any(torch.equal(before[name], after[name]) for name in before if "craft_J" in name)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_each_stage_has_the_schedule_of_a_run_of_its_length(schedule: Any) -> None:
    training = TrainingSettings(schedule=schedule, warmup_ratio=0.25, epochs=1, batch_size=1)

    def rates(ends: list[int]) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        made, found = make_schedule(training, optimizer, ends), []
        for _ in range(ends[-1]):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            made.step()
        return found

    assert stage_ends(training, 24, 3) == evaluation_steps(training, 24, 3) == [24, 28, 36]
    assert total_steps(training, 24, 3) == 36
    assert rates([24, 28, 36]) == pytest.approx(rates([24]) + rates([4]) + rates([8]))


@pytest.mark.parametrize(("way", "ranks"), [("cut", 1), ("shrink", 1), ("drawn", 2), ("all", 3)])
def test_estimated_activations_grow_with_the_ranks_of_a_step(tiny_spec: MakeSpec, way: str, ranks: int) -> None:
    batch = estimated_memory(nested(tiny_spec, "cut", training={"batch_size": 8 * ranks}))
    assert estimated_memory(nested(tiny_spec, way)) == batch

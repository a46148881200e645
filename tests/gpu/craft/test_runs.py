"""Whole runs on the GPU: every method under every precision, and runs that are broken off and go on bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from craft.models.compute import compute_device
from craft.spec import RunSpec
from tests.craft.trainer.same import same_run
from tests.craft.trainer.test_leaving import TRAINING, Machines
from tests.craft.trainer.test_precision import HERE, spec_of, trained

Figure = Callable[[str], None]
MakeSpec = Callable[..., RunSpec]
PRECISIONS = ("float32", "bf16-mixed", "bfloat16")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("method", HERE)
def test_it_learns(method: str, precision: str, tiny_bert: str, device: torch.device, tmp_path: Path, figure: Figure) -> None:
    assert compute_device().type == device.type
    result, losses, _ = trained(spec_of(tiny_bert, method, precision), tmp_path)
    figure(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
    weights = load_file(next(result.adapter.glob("*.safetensors"))).values()
    assert {weight.dtype for weight in weights if weight.is_floating_point()} == {torch.float32}, "trained weights are float32"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("method", ["craft", "lora", "adalora", "galore"])
def test_resumed_at_an_evaluation_it_ends_with_the_same_bits(
    method: str, precision: str, tiny_bert: str, tmp_path: Path
) -> None:
    spec = spec_of(tiny_bert, method, precision)
    whole, _, checkpoint = trained(spec, tmp_path / "whole")
    again, _, _ = trained(spec, tmp_path / "again", checkpoint)
    assert again.metrics == whole.metrics
    one, other = (load_file(next(run.adapter.glob("*.safetensors"))) for run in (whole, again))
    assert [name for name, weight in one.items() if not torch.equal(weight, other[name])] == []


@pytest.mark.parametrize("precision", PRECISIONS)
def test_left_at_any_step_it_ends_with_the_same_bits(precision: str, tiny_spec: MakeSpec, tmp_path: Path) -> None:
    spec = tiny_spec(parameters={"dropout": 0.1}, training=TRAINING | {"evaluate_every": 2.0, "precision": precision})
    quiet, moved = Machines(spec, tmp_path / "quiet"), Machines(spec, tmp_path / "moved")
    undisturbed, result = quiet.train([]), moved.train([1, 3, 7])
    assert moved.steps == quiet.steps
    assert moved.evaluations == quiet.evaluations
    assert same_run(undisturbed, result)

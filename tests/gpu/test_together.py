"""Runs that are repeated, or continued from a checkpoint, have equal bits; two processes have the losses of one.

On a single GPU both compute on it and exchange by gloo, because NCCL takes one process a GPU.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification

from craft.models.compute import put_in_parts
from craft.processes import gather_parts, is_part
from craft.results import Leave, RunResult
from craft.settings import Way
from craft.spec import RunSpec
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.trainer.process import UNREPEATABLE
from craft.trainer.training import train_run
from tests.craft.conftest import MakeSpec
from tests.craft.methods.cases import CASES, put
from tests.craft.trainer.same import leave_at, train_watched
from tests.craft.trainer.several import train_several
from tests.craft.trainer.test_together import Watch, spec_of
from tests.gpu.conftest import Figure, in_new_process

SUBJECTS = ("craft", "lora", "dora", "vera", "full")


@pytest.mark.gpus(1)
@pytest.mark.parametrize("way", ["replicate", "shard"])
@pytest.mark.parametrize("method", SUBJECTS)
def test_two_processes_on_a_gpu_train_as_one(
    tiny_spec: MakeSpec, tmp_path: Path, method: str, way: Way, figure: Figure
) -> None:
    if torch.cuda.device_count() > 1:
        pytest.skip("the processes of this check share one GPU")
    spec = spec_of(tiny_spec, method, CASES[method])
    watch = Watch(tmp_path)
    one, alone = in_new_process(train_watched, spec, tmp_path / "alone", watch)
    result, points = train_several(spec, tmp_path, 2, way, watch)
    gap = max(abs(first[name] - second[name]) for first, second in zip(points, alone, strict=True) for name in second)
    figure(f"{way}: largest difference of a loss {gap:.1e}, share of the base {max(watch.shares()):.2f}")
    assert gap < 1e-4
    assert result.metrics == pytest.approx(one.metrics, abs=1e-2)
    assert max(watch.shares()) <= 0.55 if way == "shard" else watch.shares() == [1, 1]


@pytest.mark.gpus(1)
@pytest.mark.parametrize("method", ["craft", "full"])
def test_parts_by_nccl_have_the_gradients_of_the_whole(method: str, tiny_spec: MakeSpec, figure: Figure) -> None:
    gap = in_new_process(_gap_by_nccl, spec_of(tiny_spec, method, CASES[method]))
    figure(f"one process: largest difference of a gradient {gap:.1e}")
    assert gap < 1e-5


def _gap_by_nccl(spec: RunSpec) -> float:
    """Returns the largest difference of a gradient in a group of one process, whose parts NCCL gathers and sums."""
    store = torch.distributed.TCPStore("localhost", 0, 1, True)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    whole, parts = _gradients(spec, in_parts=False), _gradients(spec, in_parts=True)
    torch.distributed.destroy_process_group()
    return max((part - weight).abs().max().item() for part, weight in zip(parts, whole, strict=True))


def _gradients(spec: RunSpec, in_parts: bool) -> list[torch.Tensor]:
    transformers.set_seed(0)
    base = AutoModelForSequenceClassification.from_pretrained(spec.model)
    model = put(base, spec.method, spec.parameters).eval()
    if in_parts:
        put_in_parts(model, torch.device("cuda", 0), 1)
    model.to("cuda")
    model(input_ids=torch.arange(24, device="cuda").view(2, 12)).logits.square().sum().backward()
    assert any(map(is_part, model.parameters())) == in_parts
    return [gather_parts(weight.grad) for weight in model.parameters() if weight.grad is not None]


REPEATED = [("craft", "float32"), ("craft", "bfloat16"), ("lora", "float32"), ("lora", "bf16-mixed"), ("full", "float32")]
REPEATED += [("dora", "bfloat16"), ("adalora", "float32"), ("galore", "float32")]


def ended(result: RunResult, folder: Path) -> tuple[Any, ...]:
    """The bits of a run: its adapter's, its outputs' and its scores."""
    files = [next(result.adapter.glob("*.safetensors")), folder / "predictions.safetensors"]
    return *(hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.exists()), result.metrics


@pytest.mark.parametrize(("method", "precision"), REPEATED)
def test_equal_bits_twice_and_after_leaving(
    method: str, precision: str, tiny_spec: MakeSpec, tmp_path: Path, figure: Figure
) -> None:
    spec = tiny_spec(method=method, training={"precision": precision, "learning_rate": 1e-3})
    first = train_run(spec, tmp_path / "first")
    second = train_run(spec, tmp_path / "second")
    with pytest.raises(Leave):
        train_run(spec, tmp_path / "left", on_step=leave_at(7))
    resumed = train_run(spec, tmp_path / "resumed", resume_from=find_newest_checkpoint(tmp_path / "left"))
    notes = [note for note in first.notes if UNREPEATABLE in note]
    figure(notes[0] if notes else f"score {first.metrics['score']:.2f}, equal bits")
    if notes:
        pytest.skip(notes[0])
    assert ended(second, tmp_path / "second") == ended(first, tmp_path / "first"), "repeated"
    assert ended(resumed, tmp_path / "resumed") == ended(first, tmp_path / "first"), "resumed"

"""Whole runs on the GPU: every method under every precision, and methods over a base in 4 or 8 bits, by bitsandbytes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model
from safetensors.torch import load_file

from craft import CraftConfig
from craft.models import Base
from craft.models.compute import compute_device
from craft.models.loading import load_model
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.counting import planned_counts
from tests.craft.methods import test_qlora as qlora
from tests.craft.trainer.same import losses_of, train_watched
from tests.craft.trainer.test_precision import HERE, spec_of, trained
from tests.gpu.conftest import Figure

PRECISIONS = ("float32", "bf16-mixed", "bfloat16")
BITS = {"4 bits": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "8 bits": {"load_in_8bit": True}}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("method", HERE)
def test_it_learns(method: str, precision: str, tiny_bert: str, device: torch.device, tmp_path: Path, figure: Figure) -> None:
    assert compute_device().type == device.type
    result, losses = trained(spec_of(tiny_bert, method, precision), tmp_path)
    figure(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
    weights = load_file(next(result.adapter.glob("*.safetensors"))).values()
    assert {weight.dtype for weight in weights if weight.is_floating_point()} == {torch.float32}, "trained weights are float32"


@pytest.mark.gpus(1)
@pytest.mark.usefixtures("bitsandbytes")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_qlora_trains_and_loads(precision: str, tiny_bert: str, tmp_path: Path, figure: Figure) -> None:
    spec = qlora.spec_of(tiny_bert, training={"max_steps": 40, "precision": precision})
    result, points = train_watched(spec, tmp_path)
    losses = losses_of(points)
    figure(f"loss {losses[0]:.3f} to {min(losses[-5:]):.3f}")
    assert min(losses[-5:]) < losses[0]
    assert result.counts.total_parameters == planned_counts(spec).total_parameters
    model, _ = load_adapter(result.adapter)
    assert "Params4bit" in {type(weight).__name__ for weight in model.parameters()}
    trained = {name: item.dtype for name, item in model.named_parameters() if "lora_" in name or "classifier" in name}
    assert set(trained.values()) == {torch.float32}
    assert load_file(tmp_path / "predictions.safetensors")["outputs"].isfinite().all()


@pytest.mark.gpus(1)
@pytest.mark.usefixtures("bitsandbytes")
@pytest.mark.parametrize("bits", BITS)
def test_craft_learns_over_it(bits: str, tiny_bert: str, device: torch.device, figure: Figure) -> None:
    base: Any = load_model(Base(tiny_bert, "classification", ("a", "b"), quantization=BITS[bits]), device=device)
    model = get_peft_model(base, CraftConfig(ranks=("all", 8, 8), projections=("q", "v"), task_type="SEQ_CLS", init_seed=0))
    optimizer = torch.optim.AdamW([item for item in model.parameters() if item.requires_grad], lr=1e-2)
    text, labels = torch.arange(1000, 1096, device=device).view(8, 12), torch.arange(8, device=device) % 2
    losses = []
    for _ in range(20):
        loss = model(input_ids=text, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    figure(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    assert losses[-1] < losses[0]
    with pytest.raises(ValueError, match="quantized"):
        model.merge_adapter()

"""Every tuner of our own, CRAFT aside, under what PEFT promises of its own methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model

from craft.tuners.bottleneck import BottleneckConfig, LorettaConfig
from craft.tuners.joint import JointConfig
from craft.tuners.low_rank import LotrConfig, SuperLoraConfig
from tests.craft.tuners.craft.test_peft_contract import TinyModel, hidden

CONFIGS: tuple[type[JointConfig], ...] = (LotrConfig, SuperLoraConfig, BottleneckConfig, LorettaConfig)


@pytest.fixture(params=CONFIGS, ids=lambda config: config.KIND)
def settings(request: pytest.FixtureRequest) -> JointConfig:
    sizes = {"r": 2} if hasattr(request.param, "r") else {}
    return request.param(target_modules=["query", "value"], **sizes)


def moved(model: Any, settings: JointConfig) -> Any:
    """Puts an adapter on a model, with weights at which it changes the outputs."""
    model = get_peft_model(model, settings).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.base_model.parts.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


@pytest.mark.parametrize("how", [{}, {"adapter_name": "other"}])
def test_an_adapter_loads_to_equal_outputs(
    how: dict[str, Any], settings: JointConfig, tiny_model: TinyModel, tmp_path: Path
) -> None:
    model = moved(tiny_model("bert"), settings)
    model.save_pretrained(tmp_path)
    expected = hidden(model)
    assert not torch.equal(expected, hidden(tiny_model("bert").eval()))
    assert torch.equal(hidden(PeftModel.from_pretrained(tiny_model("bert"), tmp_path, **how).eval()), expected)

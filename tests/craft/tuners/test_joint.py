"""Every tuner of our own, CRAFT aside, under what PEFT promises of its own methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model

from craft.models.projections import linear_modules
from craft.tuners.bottleneck import BottleneckConfig, LorettaConfig
from craft.tuners.joint import JointConfig
from craft.tuners.low_rank import LotrConfig, SuperLoraConfig
from tests.craft.tuners.craft.test_peft_contract import TinyModel, close, hidden

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


@pytest.mark.parametrize("how", [{}, {"adapter_name": "other"}, {"low_cpu_mem_usage": True}])
def test_an_adapter_loads_to_equal_outputs(
    how: dict[str, Any], settings: JointConfig, tiny_model: TinyModel, tmp_path: Path
) -> None:
    model = moved(tiny_model("bert"), settings)
    model.save_pretrained(tmp_path)
    expected = hidden(model)
    assert not torch.equal(expected, hidden(tiny_model("bert").eval()))
    assert torch.equal(hidden(PeftModel.from_pretrained(tiny_model("bert"), tmp_path, **how).eval()), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_cast_of_the_model_changes_the_outputs_by_rounding(
    dtype: torch.dtype, settings: JointConfig, tiny_model: TinyModel
) -> None:
    model = moved(tiny_model("bert"), settings)
    expected = hidden(model)
    actual = hidden(model.to(dtype))
    assert actual.dtype == dtype
    assert {weight.dtype for weight in model.base_model.parts.parameters()} == {torch.promote_types(dtype, torch.float32)}
    close(actual.to(expected.dtype), expected, 1e-5 if dtype == torch.float64 else 0.05)


def test_all_linear_modules_are_adapted_and_unmerging_warns(settings: JointConfig, tiny_model: TinyModel) -> None:
    settings.target_modules = "all-linear"
    model: Any = get_peft_model(tiny_model("bert"), settings)
    assert {*model.base_model.targeted_module_names} == {*linear_modules(tiny_model("bert"))}
    with pytest.warns(UserWarning, match="Already unmerged"):
        model.unmerge_adapter()


def test_a_part_of_the_model_called_by_itself_has_the_present_weights(settings: JointConfig, tiny_model: TinyModel) -> None:
    model, x = moved(tiny_model("bert"), settings), torch.randn(3, 32)
    part = model.get_base_model().encoder.layer[0].attention.self.query
    first = part(x)
    hidden(model)
    assert torch.equal(part(x), first)
    with torch.no_grad():
        for weight in model.base_model.parts.parameters():
            weight.mul_(1.5)
        second = part(x)
    assert part(x).requires_grad
    assert not torch.equal(second, first)
    hidden(model)
    assert torch.equal(part(x), second)

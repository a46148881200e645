"""Products padded to multiples of eight, as a GPU in 16 bits has them: the same numbers, and nothing else knows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import get_peft_model, get_peft_model_state_dict
from torch import nn

from craft import CraftConfig
from craft.trainer.counting import count
from craft.tuners.craft.adapter import CraftAdapter
from craft.tuners.craft.stack import Stack

TinyModel = Callable[..., Any]
WORDS = torch.arange(24).view(2, 12)


def stacks(model: nn.Module) -> list[Stack]:
    return [stack for module in model.modules() if isinstance(module, CraftAdapter) for stack in module.stacks.values()]


def adapted(base: Any, *, pads: bool, checkpoints: bool | None = None, **config: Any) -> Any:
    """`checkpoints` says whether they are reentrant; none if it is None."""
    if checkpoints is not None:
        base.gradient_checkpointing_enable({"use_reentrant": checkpoints})
        base.enable_input_require_grads()
    given = CraftConfig(ranks=("all", 10, 7), projections=("q", "v"), init_epsilon=0.3, init_seed=0, **config)
    model = get_peft_model(base, given)
    for stack in stacks(model):
        stack.pads = pads
    return model.double() if base.dtype == torch.float64 else model  # the factors are float32 over any base


def learn(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    torch.manual_seed(3)
    out = model.train()(input_ids=WORDS)[0]
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(4))).sum().backward()
    return out.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize(
    ("dtype", "tolerance", "checkpoints"),
    [
        (torch.float64, 1e-12, None),
        (torch.float64, 1e-12, False),
        (torch.float64, 1e-12, True),
        (torch.float32, 1e-5, None),
        (torch.bfloat16, 2e-2, None),
    ],
    ids=["float64", "checkpoints", "reentrant checkpoints", "float32", "bfloat16"],
)
def test_outputs_gradients_and_files_are_those_of_the_true_ranks(
    tiny_model: TinyModel, dtype: torch.dtype, tolerance: float, checkpoints: bool | None
) -> None:
    family = "opt" if dtype == torch.float64 else "llama"  # a LLaMA's norms round to float32 on their way
    true, padded = (
        adapted(tiny_model(family, dtype=dtype), pads=pads, checkpoints=checkpoints, dropout=0.1) for pads in (False, True)
    )
    (expected, gradients), (out, theirs) = learn(true), learn(padded)
    assert {tuple(core.shape) for stack in stacks(padded) for core in stack.cores or ()} == {(16, 8)}
    assert {tuple(core.shape) for stack in stacks(true) for core in stack.cores or ()} == {(10, 7)}
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    assert gradients.keys() == theirs.keys()
    for name, gradient in gradients.items():
        assert (theirs[name] - gradient).norm() <= 5 * tolerance * gradient.norm(), name
    with torch.no_grad():
        said, expected = (model.eval()(input_ids=WORDS)[0] for model in (padded, true))  # M U3ᵀ is kept here
    torch.testing.assert_close(said, expected, rtol=tolerance, atol=tolerance)
    saved, reference = get_peft_model_state_dict(padded), get_peft_model_state_dict(true)
    assert all(torch.equal(saved[name], tensor) for name, tensor in reference.items())
    assert count(padded) == count(true)
    for name, module in true.named_modules():
        if hasattr(module, "get_delta_weight"):
            assert torch.equal(padded.get_submodule(name).get_delta_weight("default"), module.get_delta_weight("default"))


def test_it_is_for_gpus_in_16_bits_and_for_ranks_that_need_it(tiny_model: TinyModel) -> None:
    stack = stacks(adapted(tiny_model("bert"), pads=True))[0]
    stack.pads = None
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    widths = {
        (dtype, device.type): stack._width(250, dtype, device)
        for dtype in (torch.bfloat16, torch.float32)
        for device in (gpu, cpu)
    }
    assert widths == {
        (torch.bfloat16, "cuda"): 256,
        (torch.bfloat16, "cpu"): 250,
        (torch.float32, "cuda"): 250,
        (torch.float32, "cpu"): 250,
    }
    assert [stack._width(rank, torch.bfloat16, gpu) for rank in (8, 64, 100, 128)] == [8, 64, 104, 128]


def test_cores_of_one_dtype_serve_layers_of_another(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a quantized base the cores are float32, which is not padded, and the layers' inputs are of 16 bits."""
    monkeypatch.setattr(
        Stack, "_width", lambda self, rank, dtype, device: rank if dtype == torch.float64 else -(-rank // 8) * 8
    )
    stack = stacks(adapted(tiny_model("bert"), pads=True))[0]
    wide, narrow, cpu = torch.ones(3, 10, 7), torch.ones(3, 16, 8), torch.device("cpu")
    assert torch.equal(stack.fitted(stack.fitted(wide, torch.float32, cpu), torch.float64, cpu), wide)
    assert torch.equal(stack.fitted(wide, torch.float32, cpu)[:, :10, :7], wide)
    assert stack.fitted(wide, torch.float32, cpu).sum() == wide.sum()
    assert stack.fitted(narrow, torch.float32, cpu) is narrow
    assert stack.fitted(torch.ones(10, 32), torch.float32, cpu, rows_alone=True).shape == (16, 32)

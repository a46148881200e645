"""What makes steps and answers fast on a GPU changes no number: padded ranks, DoRA's norms kept, steps that read nothing.

Speeds are told as figures, never asserted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from craft.scoring.dora_norms import norms_kept
from craft.spec import RunSpec
from craft.trainer.training import train_run
from tests.benchmarks import sweep_step
from tests.benchmarks.shapes import SHAPES
from tests.benchmarks.step_time import QV, craft, lora, unpadded
from tests.benchmarks.timing import timed
from tests.craft.trainer.test_reads import as_on_a_gpu, readings
from tests.craft.tuners.craft.test_padding import adapted, learn

__all__ = ["as_on_a_gpu", "readings"]

Figure = Callable[[str], None]
ROUNDS = 5


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    run()
    return 1e3 * statistics.median(timed(run, device.type) for _ in range(ROUNDS))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=str
)
def test_padded_products_are_those_of_the_true_ranks(
    dtype: torch.dtype, tolerance: float, device: torch.device, tiny_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.craft.tuners.craft.test_padding.WORDS", torch.arange(24, device=device).view(2, 12))
    true, padded = (adapted(tiny_model("llama", dtype=dtype).to(device), pads=pads) for pads in (False, True))
    monkeypatch.setattr(torch, "randn", on(device, torch.randn))
    (expected, gradients), (out, theirs) = learn(true), learn(padded)
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
    assert gradients.keys() == theirs.keys()
    for name, gradient in gradients.items():
        assert (theirs[name] - gradient).norm() <= 5 * tolerance * gradient.norm(), name


def on(device: torch.device, draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`draw` on the processor, whose generator it is given; the numbers on `device`."""
    return lambda *size, **told: draw(*size, **told).to(device)


def test_padded_ranks_beside_true_ones(device: torch.device, figure: Figure) -> None:
    """A layer of LLaMA3-8B's width at rank 250, whose 16-bit products a GPU pads to 256."""
    real = device.type == "cuda"
    width, dtype, batch = (4096, torch.bfloat16, (4, 256)) if real else (64, torch.float32, (1, 4))
    torch.manual_seed(0)
    made = []
    for change in (lambda model: model, unpadded):
        base = one_block(width).to(device, dtype).requires_grad_(False)
        made.append(change(craft(base, 250 if real else 10, QV)))
    ids = torch.ones(batch, dtype=torch.int64, device=device)

    def step(model: Any) -> None:
        model(input_ids=ids).last_hidden_state.float().square().mean().backward()

    with_padding, without = (milliseconds(lambda model=model: step(model), device) for model in made)
    figure(f"forward and backward {with_padding:.2f} ms padded, {without:.2f} not: ratio {with_padding / without:.3f}")


def one_block(width: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    heads = {"num_attention_heads": width // 32, "num_key_value_heads": width // 32}
    return LlamaModel(LlamaConfig(hidden_size=width, num_hidden_layers=2, vocab_size=64, intermediate_size=2 * width, **heads))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_of_dora_kept_while_scoring_keep_every_bit(dtype: torch.dtype, device: torch.device, figure: Figure) -> None:
    torch.manual_seed(0)
    base = one_block(1024 if device.type == "cuda" else 64).to(device, dtype).requires_grad_(False)
    model: Any = lora(base, 8, QV, same_dtype=False, dora=True).eval()
    ids = torch.arange(8, device=device).view(1, 8)
    with torch.no_grad():
        plain = model(input_ids=ids).last_hidden_state
        slow = milliseconds(lambda: model(input_ids=ids), device)
        with norms_kept(model):
            first, second = (model(input_ids=ids).last_hidden_state for _ in range(2))
            fast = milliseconds(lambda: model(input_ids=ids), device)
    figure(f"a forward pass {slow:.2f} ms, {fast:.2f} with norms kept: ratio {fast / slow:.2f}")
    assert torch.equal(plain, first)
    assert torch.equal(plain, second)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("method", ["craft", "lora"])
def test_a_step_reads_nothing_itself(
    method: str, tiny_spec: Callable[..., RunSpec], tmp_path: Path, readings: dict[str, list[int]], figure: Figure
) -> None:
    train_run(tiny_spec(method=method, training={"gradient_accumulation": 2}), tmp_path)
    figure(f"ours {max(readings['ours']) - max(readings['theirs'])}, transformers' {max(readings['theirs'])} a micro-batch")
    assert readings["ours"] == readings["theirs"]
    assert max(readings["theirs"]) <= 1, "transformers asks whether an attention mask hides anything"


@pytest.mark.parametrize("contender", list(sweep_step.CONTENDERS))
def test_what_a_sweeps_step_launches(contender: str, device: torch.device, figure: Figure) -> None:
    found = sweep_step.counted(sweep_step.CONTENDERS[contender], SHAPES["minilm"], device.type, 2)
    shown = sweep_step.COLUMNS if device.type == "cuda" else sweep_step.COLUMNS[2:]
    figure(", ".join(f"{name} {found[name]:.0f}" for name in shown))
    assert found["operators"] > 0, "nothing was profiled"

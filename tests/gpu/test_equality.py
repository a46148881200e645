"""The GPU computes what the processor computes: losses, both forms of CRAFT, merging, answers, decompositions.

In float32 without tf32 numbers differ by the order of sums; in float64 that is next to nothing, so a real difference shows.
Not with LLaMA, whose norms and rotations transformers computes in float32 always.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from craft.factors.hosvd import hosvd
from craft.factors.store import hash_weights
from craft.models import Base
from craft.models.loading import load_model, load_tokenizer
from craft.scoring.generation import generate, log_likelihoods
from craft.settings import GenerationSettings
from craft.tasks.prompts import TaughtText
from tests.craft.conftest import MakeSpec
from tests.craft.trainer.same import losses_of, train_watched
from tests.craft.tuners.craft.test_peft_contract import adapted
from tests.gpu.conftest import Figure, in_new_process

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-11}
WORDS = torch.arange(48).view(4, 12)


@pytest.fixture(autouse=True)
def true_float32() -> None:
    torch.backends.cuda.matmul.fp32_precision = "ieee"


def distance(actual: Tensor, other: Tensor) -> float:
    """Relative, in float64."""
    actual, other = actual.detach().cpu().double(), other.detach().cpu().double()
    return float((actual - other).norm() / other.norm())


def learned(model: nn.Module, device: torch.device) -> dict[str, Tensor]:
    """Outputs, and gradients of all that trains."""
    model = model.to(device)
    out = model(input_ids=WORDS.to(device))[0]
    wave = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).view_as(out).to(device, out.dtype)
    (out * wave).sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert {weight.dtype for weight in gradients.values()} == {out.dtype}
    return {"outputs": out, **gradients}


@pytest.mark.parametrize(("family", "dtype"), [("bert", torch.float32), ("bert", torch.float64), ("llama", torch.float32)])
def test_outputs_and_gradients(family: str, dtype: torch.dtype, device: torch.device, tiny_model: Any, figure: Figure) -> None:
    # J and the factors, too, which are float32 over any base.
    here, on_device = (adapted(tiny_model(family)).to(dtype).train() for _ in range(2))
    expected, result = learned(here, torch.device("cpu")), learned(on_device, device)
    assert expected.keys() == result.keys()
    worst = max(distance(result[name], value) for name, value in expected.items())
    figure(f"largest relative difference {worst:.1e}")
    assert worst < TOLERANCE[dtype]


def test_merging(device: torch.device, tiny_model: Any, figure: Figure) -> None:
    model = adapted(tiny_model("llama")).to(device)
    bits = {name: weight.clone() for name, weight in model.named_parameters()}
    with torch.no_grad():
        beside = model(input_ids=WORDS.to(device))[0]
        model.merge_adapter()
        inside = model(input_ids=WORDS.to(device))[0]
        model.unmerge_adapter()
    worst = distance(inside, beside)
    figure(f"relative difference {worst:.1e}")
    assert worst < TOLERANCE[torch.float32]
    assert all(torch.equal(weight, bits[name]) for name, weight in model.named_parameters()), "old bits again"


@pytest.mark.parametrize("beams", [1, 4])
def test_answers(beams: int, device: torch.device, tiny_llama: str, figure: Figure) -> None:
    tokenizer = load_tokenizer(tiny_llama)
    prompts = [tokenizer(text)["input_ids"] for text in ("a fine film", "is it, really?", "x")]
    settings = GenerationSettings(beams=beams, max_new_tokens=12)
    answers, likelihoods = [], []
    for place in (torch.device("cpu"), device):
        model = adapted(load_model(Base(tiny_llama, "generation", ()))).to(place)
        answers.append(generate(model, tokenizer, prompts, settings, 2))
        texts = [TaughtText([*prompt, *prompts[0]], len(prompt)) for prompt in prompts]
        likelihoods.append(torch.from_numpy(log_likelihoods(model, texts, 0, 2)))
    worst = distance(likelihoods[1], likelihoods[0])
    figure(f"log-likelihoods differ by {worst:.1e}")
    assert worst < TOLERANCE[torch.float32]
    assert answers[0] == answers[1]


def test_decompositions(device: torch.device, figure: Figure) -> None:
    """The key is that of the bytes, wherever they lie; factors of one key are interchangeable."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(96, 64, generator=draw) / (1 + torch.arange(64)) for _ in range(4)]
    on_device = [weight.to(device) for weight in weights]
    assert hash_weights(on_device) == hash_weights(weights)
    expected, result = (hosvd(each, ("all", 24, 24), dtype=torch.float64) for each in (weights, on_device))
    sides = [(each.core, each.u1, each.u2, each.u3) for each in (result, expected)]
    parts = {name: distance(getattr(result, name), getattr(expected, name)) for name in ("core", "u1", "u2", "u3")}
    parts["what they stand for"] = distance(*(torch.einsum("abc,la,ob,ic->loi", *each) for each in sides))
    figure(", ".join(f"{name} {value:.0e}" for name, value in parts.items()))
    assert max(parts.values()) < 1e-8


@pytest.mark.parametrize("method", ["craft", "lora", "dora", "full"])
def test_whole_runs(method: str, tiny_spec: MakeSpec, tmp_path: Path, figure: Figure) -> None:
    spec = tiny_spec(method=method, training={"learning_rate": 1e-3})
    expected, losses = in_new_process(train_watched, spec, tmp_path / "cpu", gpu=0)
    result, own = train_watched(spec, tmp_path / "device")
    pairs = zip(losses_of(own), losses_of(losses), strict=True)
    worst = max(abs(actual - other) / other for actual, other in pairs)
    figure(f"{len(own)} losses differ by at most {worst:.1e}")
    assert worst < 1e-3
    assert result.metrics["search_loss"] == pytest.approx(expected.metrics["search_loss"], rel=1e-3)

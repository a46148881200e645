"""Only the positions in the loss go through the last layer: the loss and every gradient are those of all positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from craft.methods import METHODS
from craft.methods.method import BuildContext
from craft.scoring.encoding import Collator, places_in_loss
from craft.scoring.passes import can_choose, loss_at, token_loss
from tests.craft.methods.cases import CASES

IGNORED = -100
LENGTHS, STARTS = (14, 9, 14, 6), (10, 4, 13, 1)
"""Padded texts and one that is not; answers of 4, 5, 1 and 5 tokens, the last of a text that is all answer."""


def batch() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    words = torch.randint(3, 64, (len(LENGTHS), max(LENGTHS)), generator=draw)
    labels, mask = torch.full_like(words, IGNORED), torch.zeros_like(words)
    for row, (length, start) in enumerate(zip(LENGTHS, STARTS, strict=True)):
        words[row, length:] = 0
        mask[row, :length] = 1
        labels[row, start:length] = words[row, start:length]
    return {"input_ids": words, "attention_mask": mask, "labels": labels}


def agree(model: nn.Module) -> None:
    """Loss and gradients by chosen positions against those by all of them."""
    assert can_choose(model)
    model.train()
    inputs = batch()
    labels = inputs.pop("labels")
    found = []
    for places in (None, places_in_loss(labels)):
        model.zero_grad()
        torch.manual_seed(0)
        loss = token_loss(model(**inputs).logits, labels) if places is None else loss_at(model, inputs, labels, places)
        loss.backward()
        found.append((loss.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}))
    (loss, gradients), (chosen, theirs) = found
    torch.testing.assert_close(chosen, loss, rtol=1e-6, atol=0)
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            theirs[name], gradient, rtol=1e-10, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_places_are_those_before_a_token_of_the_loss_and_none_comes_twice() -> None:
    labels = batch()["labels"]
    places = places_in_loss(labels)
    assert places.shape == (4, 5)
    for row, (length, start) in enumerate(zip(LENGTHS, STARTS, strict=True)):
        own = places[row].tolist()
        assert own == sorted(set(own))
        taught = list(range(start - 1, length - 1))
        assert set(taught) <= set(own)
        assert all(labels[row, place + 1] == IGNORED for place in own if place not in taught)
    whole = torch.tensor([[1, 2, 3]])
    assert places_in_loss(whole).tolist() == [[0, 1]], "nothing predicts the first token"


@pytest.mark.parametrize("name", [name for name in METHODS if name in CASES and name not in ("bitfit", "head")])
def test_loss_and_gradients_are_those_of_all_positions(tiny_model: Callable[..., Any], name: str) -> None:
    """LLaMA has no biases, so BitFit has nothing to train; a language model has no task head."""
    row = METHODS[name]
    decomposes = name in ("pissa", "olora", "lora_xs")  # in 32 bits or fewer alone
    base = tiny_model("llama", dtype=torch.float32 if decomposes else torch.float64, head="causal")
    model = row.build(base, row.parameters.model_validate(CASES[name].parameters), BuildContext("CAUSAL_LM", total_steps=20))
    agree(model.double() if decomposes else model)


@pytest.mark.parametrize("name", ["craft", "dora", "full"])
def test_so_they_are_under_gradient_checkpointing(tiny_model: Callable[..., Any], name: str) -> None:
    base = tiny_model("llama", dtype=torch.float64, head="causal")
    base.gradient_checkpointing_enable({"use_reentrant": False})
    row = METHODS[name]
    agree(row.build(base, row.parameters.model_validate(CASES[name].parameters), BuildContext("CAUSAL_LM")))


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj", "lm_head"], "use_dora": True},
        {"target_modules": ["v_proj"], "modules_to_save": ["lm_head"]},
    ],
    ids=["LoRA", "DoRA", "retrained"],
)
def test_so_they_are_if_the_last_layer_itself_is_adapted(tiny_model: Callable[..., Any], config: dict[str, Any]) -> None:
    agree(
        get_peft_model(
            tiny_model("llama", dtype=torch.float64, head="causal"), LoraConfig(r=4, init_lora_weights=False, **config)
        )
    )


@pytest.mark.parametrize("decoder", ["mistral", "qwen2", "qwen3", "gemma", "gpt2", "opt"])
def test_so_they_are_in_other_families(tiny_model: Callable[..., Any], decoder: str) -> None:
    agree(tiny_model(decoder, dtype=torch.float64, head="causal"))


def test_models_without_positions_to_choose_are_known(tiny_model: Callable[..., Any]) -> None:
    class OfSomebodyElse(nn.Module):
        def forward(self, input_ids: torch.Tensor, logits_to_keep: int = 0) -> None:
            """It may read the argument in another way."""

    assert not can_choose(tiny_model("bert", head="classifier"))
    assert not can_choose(OfSomebodyElse())


def test_a_training_batch_says_what_the_host_knows() -> None:
    examples = [
        {"input_ids": torch.arange(3, 3 + length).numpy(), "labels": labels}
        for length, labels in ((3, torch.tensor([IGNORED, 4, 5]).numpy()), (2, torch.tensor([IGNORED, 4]).numpy()))
    ]
    made = Collator(0, chooses=True)(examples)
    assert made["places"].tolist() == [[0, 1], [0, 1]]
    assert "places" not in Collator(0)(examples)

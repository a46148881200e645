"""DoRA's norms kept while a model is scored: every output has the bits that PEFT's own forward pass gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.dora import DoraLinearLayer

from craft.models.loading import load_model, load_tokenizer
from craft.scoring.dora_norms import norms_kept
from craft.scoring.encoding import Collator, EncodedSplit
from craft.scoring.evaluation import predict
from craft.scoring.generation import generate
from craft.settings import GenerationSettings


def dora(base: Any, *targets: str, same_dtype: bool = False) -> Any:
    config = LoraConfig(r=4, use_dora=True, target_modules=list(targets), init_lora_weights=False, lora_dropout=0.1)
    return get_peft_model(base, config, autocast_adapter_dtype=not same_dtype).eval()


@pytest.fixture
def norms(monkeypatch: pytest.MonkeyPatch) -> list[DoraLinearLayer]:
    """The layers in the order in which they compute a norm."""
    computed: list[DoraLinearLayer] = []
    original = DoraLinearLayer.get_weight_norm

    def counted(self: DoraLinearLayer, *args: Any, **kwargs: Any) -> torch.Tensor:
        computed.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(DoraLinearLayer, "get_weight_norm", counted)
    return computed


@pytest.mark.parametrize("same_dtype", [True, False], ids=["adapters in the model's dtype", "float32 adapters"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "targets"), [("llama", ("q_proj", "v_proj", "down_proj")), ("bert", ("query", "key"))])
def test_outputs_keep_their_bits(
    tiny_model: Callable[..., Any], norms: list[Any], kind: str, targets: tuple[str, ...], dtype: torch.dtype, same_dtype: bool
) -> None:
    model = dora(tiny_model(kind, dtype=dtype), *targets, same_dtype=same_dtype)
    words = torch.arange(12).view(2, 6)
    layers = 3 * len(targets)
    with torch.no_grad():
        before = model(input_ids=words)[0]
        norms.clear()
        with norms_kept(model):
            inside = [model(input_ids=words)[0], model(input_ids=words)[0]]
            assert len(norms) == len(set(norms)) == layers, "each once"
        after = model(input_ids=words)[0]
    assert len(norms) == 2 * layers, "PEFT's own forward again"
    assert all(torch.equal(one, before) for one in (*inside, after))


def test_norms_of_changed_weights_are_computed_again(tiny_model: Callable[..., Any]) -> None:
    model = dora(tiny_model("llama"), "q_proj")
    words = torch.arange(12).view(2, 6)
    with torch.no_grad():
        with norms_kept(model):
            model(input_ids=words)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(1.0)
        expected = model(input_ids=words)[0]
        with norms_kept(model):
            assert torch.equal(model(input_ids=words)[0], expected)


def test_they_are_computed_once_for_all_tokens_of_all_prompts(tiny_llama: str, norms: list[Any]) -> None:
    model, tokenizer = dora(load_model(tiny_llama, "generation", ()), "q_proj", "v_proj"), load_tokenizer(tiny_llama)
    settings = GenerationSettings(beams=2, max_new_tokens=6)
    prompts = [[1, 50, 60, 70], [1, 80], [1, 90, 91]]
    with torch.no_grad():
        alone = model.generate(
            input_ids=torch.tensor(prompts[:1]),
            attention_mask=torch.ones(1, 4, dtype=torch.long),
            num_beams=2,
            max_new_tokens=6,
            do_sample=False,
        )
    norms.clear()
    written = generate(model, tokenizer, prompts, settings, 2)
    assert len(norms) == 4, "two projections of two layers"
    assert [token for token in alone[0, 4:].tolist() if token != 2] == written[0]


def test_and_for_all_batches_of_a_split(tiny_model: Callable[..., Any], norms: list[Any]) -> None:
    model = dora(tiny_model("bert", head="classifier"), "query")
    words = np.arange(1, 31, dtype=np.int32)
    split = EncodedSplit({"input_ids": words}, np.arange(0, 31, 5), np.zeros(6, dtype=np.int64))
    with torch.no_grad():
        expected = model(input_ids=torch.from_numpy(words.astype(np.int64)).view(6, 5)).logits
    norms.clear()
    model.train()
    found = predict(model, split, Collator(0), 2)
    assert len(norms) == 3
    assert model.training
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)

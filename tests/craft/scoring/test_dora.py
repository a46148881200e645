"""DoRA's norms are computed once while a model is scored, and never of weights that have changed since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.dora import DoraLinearLayer

from craft.models import Base
from craft.models.loading import load_model, load_tokenizer
from craft.scoring.encoding import Collator, Encoded
from craft.scoring.generation import generate
from craft.scoring.scorer import predict
from craft.settings import GenerationSettings


def dora(base: Any, *targets: str) -> Any:
    config = LoraConfig(r=4, use_dora=True, target_modules=list(targets), init_lora_weights=False, lora_dropout=0.1)
    return get_peft_model(base, config).eval()


@pytest.fixture
def norms(monkeypatch: pytest.MonkeyPatch) -> list[DoraLinearLayer]:
    """The layers in the order in which they compute a norm."""
    computed: list[DoraLinearLayer] = []
    original = torch.linalg.norm

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        computed.append(args[0])
        return original(*args, **kwargs)

    monkeypatch.setattr("peft.tuners.lora.dora.torch.linalg.norm", counted)
    return computed


@pytest.mark.parametrize("training", [True, False])
def test_once_for_all_batches_of_a_split_and_again_after_a_change(
    tiny_model: Callable[..., Any], norms: list[Any], training: bool
) -> None:
    model = dora(tiny_model("bert", head="classifier"), "query").train(training)
    words = np.arange(1, 31, dtype=np.int32)
    split = Encoded({"input_ids": words}, np.arange(0, 31, 5), np.zeros(6, dtype=np.int64))
    for changed in (0.0, 1.0):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.add_(changed)
            expected = model.eval()(input_ids=torch.from_numpy(words.astype(np.int64)).view(6, 5)).logits
            model.train(training)
        norms.clear()
        found = predict(model, split, Collator(0), 2)
        assert len(norms) == 3
        assert model.training == training
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


def test_once_for_all_tokens_of_all_prompts(tiny_llama: str, norms: list[Any]) -> None:
    model, tokenizer = dora(load_model(Base(tiny_llama, "generation", ())), "q_proj", "v_proj"), load_tokenizer(tiny_llama)
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

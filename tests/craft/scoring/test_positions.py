"""What is computed: positions in the loss alone, with all gradients; as many as tables of positions hold; DoRA's norms once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from craft.methods import METHODS
from craft.models import Base
from craft.models.loading import load_model, load_tokenizer
from craft.scoring.encoding import (
    Collator,
    Encoded,
    describe_unknown,
    encode,
    longest_input,
    places_in_loss,
    positions,
    token_key,
)
from craft.scoring.generation import generate
from craft.scoring.passes import can_choose, token_loss
from craft.scoring.scorer import predict, splits_of
from craft.settings import GenerationSettings
from craft.spec import RunSpec
from tests.craft.methods.cases import CASES, put
from tests.craft.scoring.test_answers import as_the_library

LENGTHS, STARTS = (14, 9, 14, 6), (10, 4, 13, 1)
"""Padded texts and one that is not; answers of 4, 5, 1 and 5 tokens, the last of a text that is all answer."""


def agree(model: nn.Module) -> None:
    """Loss and gradients by chosen positions against those by all of them."""
    assert can_choose(model)
    model.train()
    draw = torch.Generator().manual_seed(1)
    words = torch.randint(3, 64, (len(LENGTHS), max(LENGTHS)), generator=draw)
    labels, mask = torch.full_like(words, -100), torch.zeros_like(words)
    for row, (length, start) in enumerate(zip(LENGTHS, STARTS, strict=True)):
        words[row, length:] = 0
        mask[row, :length] = 1
        labels[row, start:length] = words[row, start:length]
    inputs = {"input_ids": words, "attention_mask": mask}
    found = []
    for places in (None, places_in_loss(labels)):
        model.zero_grad()
        torch.manual_seed(0)
        loss = token_loss(model, inputs, labels, places)
        loss.backward()
        found.append((loss.detach(), {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}))
    (loss, gradients), (chosen, theirs) = found
    torch.testing.assert_close(chosen, loss, rtol=1e-6, atol=0)
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients.values())
    torch.testing.assert_close(theirs, gradients, rtol=1e-10, atol=1e-12)


NAMES = [name for name in METHODS if name in CASES and name not in ("bitfit", "head")]


@pytest.mark.parametrize(
    ("name", "checkpoints"), [*((name, False) for name in NAMES), *((name, True) for name in ("craft", "dora", "full"))]
)
def test_loss_and_gradients_are_those_of_all_positions(tiny_model: Callable[..., Any], name: str, checkpoints: bool) -> None:
    """LLaMA has no biases, so BitFit has nothing to train; a language model has no task head."""
    decomposes = name in ("pissa", "olora", "lora_xs")  # in 32 bits or fewer alone
    base = tiny_model("llama", dtype=torch.float32 if decomposes else torch.float64, head="causal")
    if checkpoints:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    model = put(base, name, kind="CAUSAL_LM")
    agree(model.double() if decomposes else model)


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
    model = tiny_model("llama", dtype=torch.float64, head="causal")
    agree(get_peft_model(model, LoraConfig(r=4, init_lora_weights=False, **config)))


@pytest.mark.parametrize("decoder", ["mistral", "qwen2", "qwen3", "gemma", "gpt2", "opt"])
def test_so_they_are_in_other_families(tiny_model: Callable[..., Any], decoder: str) -> None:
    agree(tiny_model(decoder, dtype=torch.float64, head="causal"))


def test_models_without_positions_to_choose_are_known(tiny_model: Callable[..., Any]) -> None:
    class OfSomebodyElse(nn.Module):
        def forward(self, input_ids: torch.Tensor, logits_to_keep: int = 0) -> None:
            """It may read the argument in another way."""

    assert not can_choose(tiny_model("bert", head="classifier"))
    assert not can_choose(OfSomebodyElse())


SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
PAD = 3
ROWS = 40
NEVER = SimpleNamespace(model_max_length=10**30)


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        *[
            (kind, ROWS - PAD - 1)
            for kind in ("roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "data2vec-text", "xmod", "ibert")
        ],
        ("mpnet", ROWS - 2),  # it counts from 2, whatever the padding token is
        ("bert", ROWS),
        ("electra", ROWS),
        ("gpt2", ROWS),
        ("opt", ROWS),
        ("bart", ROWS),
        ("modernbert", ROWS),
    ],
)
def test_the_model_reads_as_many_tokens_as_its_table_holds(kind: str, held: int) -> None:
    sizes = {"vocab_size": 60, "max_position_embeddings": ROWS, "pad_token_id": PAD, "d_model": 32, "n_embd": 32, "n_head": 2}
    more = {"languages": ["en_XX"], "default_language": "en_XX", "cls_token_id": 1, "eos_token_id": 2} | SMALL
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes, **more)).eval()
    assert positions(NEVER, model) == held
    assert [longest_input(most, NEVER, model) for most in (8, 64)] == [8, held]
    assert longest_input(64, SimpleNamespace(model_max_length=16), model) == 16
    with torch.no_grad():
        model(input_ids=torch.full((1, held), 7), attention_mask=torch.ones(1, held, dtype=torch.long))


def test_a_model_without_a_table_has_no_limit() -> None:
    config = AutoConfig.for_model("t5", d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=60)
    assert positions(NEVER, AutoModelForSequenceClassification.from_config(config)) == 10**9


def dora(base: Any, *targets: str) -> Any:
    config = LoraConfig(r=4, use_dora=True, target_modules=list(targets), init_lora_weights=False, lora_dropout=0.1)
    return get_peft_model(base, config).eval()


@pytest.fixture
def norms(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts the norms that DoRA's layers compute."""
    monkeypatch.setattr("peft.tuners.lora.dora.torch.linalg.norm", counted := Mock(wraps=torch.linalg.norm))
    return counted


def test_the_tokens_of_a_split_are_those_of_its_tokenizer(tiny_bert: str, tmp_path: Path) -> None:
    spec = RunSpec(model=tiny_bert, task="toy/sentiment", method="lora")
    splits = splits_of(spec, spec.task_row)
    tokenizer = load_tokenizer(tiny_bert)
    tokenizer.add_tokens(" ".join(splits.train["text"][0].split()[:2]))
    tokenizer.save_pretrained(tmp_path)
    both = load_tokenizer(tiny_bert), load_tokenizer(tiny_bert, files=tmp_path)
    mine, theirs = (encode(splits, spec.task_row, each, 32, key=token_key(spec)).train for each in both)
    assert theirs.lengths[0] < mine.lengths[0]


@pytest.mark.parametrize("training", [True, False])
def test_doras_norms_once_for_all_batches_of_a_split_and_again_after_a_change(
    tiny_model: Callable[..., Any], norms: Mock, training: bool
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
        norms.reset_mock()
        found = predict(model, split, Collator(0), 2)
        assert norms.call_count == 3
        assert model.training == training
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


def test_doras_norms_once_for_all_tokens_of_all_prompts(tiny_llama: str, norms: Mock) -> None:
    model, tokenizer = dora(load_model(Base(tiny_llama, "generation", ())), "q_proj", "v_proj"), load_tokenizer(tiny_llama)
    settings = GenerationSettings(beams=2, max_new_tokens=6)
    prompts = [[1, 50, 60, 70], [1, 80], [1, 90, 91]]
    alone = as_the_library(model, tokenizer, prompts[0], settings)
    norms.reset_mock()
    written = generate(model, tokenizer, prompts, settings, 2)
    assert norms.call_count == 4, "two projections of two layers"
    assert written[0] == alone


@pytest.mark.parametrize(("bos", "notes"), [(1, ["25 % of the tokens are unknown to this tokenizer"]), (3, [])])
def test_the_token_that_begins_each_text_is_no_unknown_one(bos: int, notes: list[str]) -> None:
    tokenizer: Any = SimpleNamespace(all_special_ids=[bos, 3], unk_token_id=3, bos_token_id=bos, eos_token_id=2)
    said = describe_unknown(np.array([bos, 3, 5, 6, 7]), tokenizer)
    assert [line.partition(":")[0] for line in said] == notes

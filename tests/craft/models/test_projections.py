"""Where projections lie: every family's words, fused and grouped-query shapes, other models by a mapping, helpful errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, BartConfig, T5Config

from craft.models.projections import (
    LAYOUTS,
    WORDS,
    ends,
    find_layout,
    find_projections,
    find_targets,
    linear_modules,
    target_modules,
)
from craft.tuners.craft.config import CraftConfig

TinyModel = Callable[..., Any]
GROUPED = ("llama", "mistral", "qwen2", "qwen3", "gemma")


def test_every_family_has_one_layout_whose_words_name_each_linear_module_once(family: str, tiny_model: TinyModel) -> None:
    model = tiny_model(family)
    paths = linear_modules(model)
    layout = find_layout(paths)
    assert [one for one in LAYOUTS if all(any(ends(path, one[word]) for path in paths) for word in ("q", "down"))] == [layout]
    stacks = find_projections(model, list(layout))
    assert list(stacks) == list(layout)
    for name, layers in stacks.items():
        assert len(layers) == 3, name
        assert [layer.module_name for layer in layers] == sorted({layer.module_name for layer in layers})
    expected = (16, 32) if family in GROUPED else (32, 32)
    assert stacks["k"][0].shape == stacks["v"][0].shape == expected
    assert stacks["q"][0].shape == stacks["o"][0].shape == (32, 32)
    assert stacks["up"][0].shape[1] == stacks["down"][0].shape[0] == 32
    named = [layer.module_name for layers in stacks.values() for layer in layers]
    assert len(set(named)) == len(named) - 3 * (2 if family == "gpt2" else 0), "GPT-2's c_attn is three projections"
    assert sorted(set(named)) == sorted(path for path in paths if any(word.isdigit() for word in path.split(".")))


@pytest.mark.parametrize("kind", ["mpnet", "modernbert", "deberta-v2", "smollm3", "lfm2", "qwen3_5_text", "gemma3_text"])
def test_craft_adapts_a_family_from_the_model_as_it_is(kind: str, tiny_model: TinyModel) -> None:
    stacks = find_projections(tiny_model(kind), list(find_layout(linear_modules(tiny_model(kind)))))
    assert {word: len(layers) for word, layers in stacks.items()} | {"up": 3, "down": 3, "gate": 3} == {
        word: 2 if word in "qkvo" and kind in ("lfm2", "qwen3_5_text") else 3 for word in WORDS
    }
    words = torch.arange(12).view(2, 6)
    before = tiny_model(kind).eval()(input_ids=words)[0]
    craft = CraftConfig(ranks=["all", 4, 4], projections=["q", "v", "down"], init_epsilon=0.0)
    model = get_peft_model(tiny_model(kind), craft).eval()
    torch.testing.assert_close(model(input_ids=words)[0], before, atol=1e-4, rtol=1e-4)
    (model(input_ids=words)[0] * torch.randn(before.shape)).sum().backward()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert len(trained) == 9
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in trained)


def test_encoder_decoder_stacks_stay_apart() -> None:
    small = {"d_model": 16, "vocab_size": 32}
    t5 = AutoModel.from_config(T5Config(num_layers=2, num_decoder_layers=3, d_kv=8, num_heads=2, d_ff=32, **small))
    stacks = find_projections(t5, ["q"])
    assert {name: len(layers) for name, layers in stacks.items()} == {
        "q-encoder-block-layer-SelfAttention-q": 2,
        "q-decoder-block-layer-SelfAttention-q": 3,
        "q-decoder-block-layer-EncDecAttention-q": 3,
    }
    bart = AutoModel.from_config(
        BartConfig(encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, **small)
    )
    assert len(find_projections(bart, ["v"])) == 3


def test_other_models_by_a_mapping() -> None:
    model = torch.nn.ModuleDict(
        {"blocks": torch.nn.ModuleList(torch.nn.ModuleDict({"qkv": torch.nn.Linear(8, 24)}) for _ in "ab")}
    )
    stacks = find_projections(model, ["q", "v"], {"q": "qkv[0/3]", "v": r"blocks\.\d+\.qkv[2/3]"})
    assert [(layer.module_name, layer.start, layer.stop) for layer in stacks["v"]] == [
        ("blocks.0.qkv", 16, 24),
        ("blocks.1.qkv", 16, 24),
    ]


def test_modules_of_which_one_path_ends_as_another_are_stacks_apart() -> None:
    model = torch.nn.ModuleDict({"proj": torch.nn.Linear(8, 8), "block": torch.nn.ModuleDict({"proj": torch.nn.Linear(8, 8)})})
    stacks = find_targets(model, lambda path: path.endswith("proj"))
    assert {name: [layer.module_name for layer in layers] for name, layers in stacks.items()} == {
        "proj": ["proj"],
        "block-proj": ["block.proj"],
    }


@pytest.mark.parametrize(
    ("names", "mapping", "said"),
    [
        (["gate"], None, ["no projection 'gate'", "q, k, v, o, up, down", "encoder.layer.attention.self.query"]),
        (["qq"], None, ["Did you mean 'q'?"]),
        (["q"], {"q": "attention.wq"}, ["'attention.wq'", "encoder.layer.attention.self.query"]),
        (["q"], {"q": "query[0/3]"}, ["32 outputs", "3 equal parts"]),
        (["q"], {"q": "query[3/3]"}, ["from 0 to 2"]),
        ([], None, ["no projections given"]),
    ],
)
def test_errors_say_what_there_is(names: list[str], mapping: Any, said: list[str], tiny_model: TinyModel) -> None:
    with pytest.raises(ValueError, match=re.escape(said[0])) as caught:
        find_projections(tiny_model("bert"), names, mapping)
    assert all(part in str(caught.value) for part in said), str(caught.value)


@pytest.mark.parametrize("kind", ["olmo2", "granite", "stablelm", "glm", "mixtral"])
def test_a_family_that_no_row_names_is_found_by_its_layout(kind: str, tiny_model: TinyModel) -> None:
    words = ["q", "k", "v", "o"] if kind == "mixtral" else ["q", "v", "down"]  # its experts are no linear modules
    model = tiny_model(kind)
    assert [len(layers) for layers in find_projections(model, words).values()] == [3] * len(words)
    assert ("down" in find_layout(linear_modules(model))) == ("down" in words)


def test_lora_gets_the_same_modules(family: str, tiny_model: TinyModel) -> None:
    model = tiny_model(family)
    for words in (["q", "v"], ["o"], ["down"]):
        wanted = {layer.module_name for layers in find_projections(model, words).values() for layer in layers}
        names = target_modules(model, words)
        adapted = get_peft_model(tiny_model(family), LoraConfig(target_modules=names, fan_in_fan_out=family == "gpt2"))
        assert set(adapted.base_model.targeted_module_names) == wanted
    if family == "bert":
        assert target_modules(model, ["q"]) == ["query"]
        assert target_modules(model, ["o"]) == ["attention.output.dense"]

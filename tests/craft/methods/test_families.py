"""Our own tuners on every model family, switched off, cast and loaded again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForSequenceClassification, Gemma3Config

from craft.models.projections import linear_modules
from tests.craft.methods import cases
from tests.craft.tuners.craft.test_peft_contract import close

OWN = ("lotr", "superlora", "loretta", "houlsby", "adapterdrop", "milora")
"""All but CRAFT, which has tests of its own of most of this; (IA)³'s places in a model are found in a way of its own."""
JOINT = ("lotr", "superlora", "houlsby", "loretta")
"""A method of each tuner that has CRAFT's base class."""
WORDS = torch.arange(12).view(2, 6)


def put(model: Any, method: str) -> Any:
    given = {"projections": ("q", "k", "v", "o", "down")} if method == "ia3" else None
    return cases.put(model, method, given, "CAUSAL_LM" if hasattr(model, "lm_head") else "FEATURE_EXTRACTION")


def stir(model: nn.Module) -> None:
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.2 * torch.randn(weight.shape, generator=draw))


def out(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=WORDS)[0]


@pytest.mark.parametrize("method", [*OWN, "ia3"])
def test_every_family_starts_as_it_is_and_comes_back(
    tiny_model: Callable[..., Any], family: str, method: str, tmp_path: Path
) -> None:
    before = out(tiny_model(family))
    model = put(tiny_model(family), method)
    torch.testing.assert_close(out(model), before, atol=1e-4, rtol=1e-4)
    stir(model)
    after = out(model)
    assert not torch.allclose(after, before, atol=1e-3), "the adapter changes what the model says"
    model.save_pretrained(str(tmp_path))
    for how in ({}, {"adapter_name": "other"}, {"low_cpu_mem_usage": True}):
        loaded = PeftModel.from_pretrained(tiny_model(family), str(tmp_path), **how)
        torch.testing.assert_close(out(loaded), after, atol=1e-5, rtol=1e-5)
        assert not any(weight.requires_grad for weight in loaded.parameters()), "loaded to be used, not trained"


@pytest.mark.parametrize("method", [*OWN, "craft"])
def test_checkpointing_gives_the_same_gradients(tiny_model: Callable[..., Any], method: str) -> None:
    """Of two forward passes, with a third without gradients before the backward pass."""
    gradients = []
    for checkpoints in (False, True):
        base = tiny_model("llama", head="causal")
        if checkpoints:
            base.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(0)
        model = put(base, method).train()
        stir(model)
        losses = [model(input_ids=words).logits.square().mean() for words in (WORDS, WORDS + 1)]
        with torch.no_grad():
            model(input_ids=WORDS)
        torch.stack(losses).sum().backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad})
    for name, gradient in gradients[0].items():
        assert gradient is not None, name
        torch.testing.assert_close(gradients[1][name], gradient)


@pytest.mark.parametrize("method", [name for name in OWN if name != "milora"])
def test_switched_off_and_with_another_adapter(tiny_model: Callable[..., Any], method: str) -> None:
    before = out(tiny_model("bert"))
    model = put(tiny_model("bert"), method)
    stir(model)
    with model.disable_adapter():
        assert torch.equal(out(model), before)
    first = out(model)
    model.add_adapter("second", model.peft_config["default"])
    model.set_adapter("second")
    assert not torch.allclose(out(model), first, atol=1e-4)
    model.set_adapter("default")
    assert torch.equal(out(model), first)
    with pytest.raises(ValueError, match="adapter_names gives each row of a batch an adapter of its own"):
        model(input_ids=WORDS, adapter_names=["default", "second"])
    model.delete_adapter("second")
    assert torch.equal(out(model), first)


def test_an_adapter_that_cannot_be_made_leaves_the_others_as_they_were(tiny_model: Callable[..., Any]) -> None:
    model = put(tiny_model("bert"), "lotr")
    config = replace(model.peft_config["default"], inference_mode=True)
    model.add_adapter("frozen", config)
    assert all(weight.requires_grad for weight in model.base_model.parts["default"].parameters())
    with pytest.raises(ValueError, match="rank is at most 32"):
        model.add_adapter("second", replace(config, r=33))
    assert list(model.base_model.parts) == ["default", "frozen"]


def stirred(model: Any, method: str) -> Any:
    model = put(model, method)
    stir(model)
    return model.eval()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("method", JOINT)
def test_a_cast_of_the_model_changes_the_outputs_by_rounding(
    method: str, dtype: torch.dtype, tiny_model: Callable[..., Any]
) -> None:
    model = stirred(tiny_model("bert"), method)
    expected, actual = out(model), out(model.to(dtype))
    assert actual.dtype == dtype
    assert {weight.dtype for weight in model.base_model.parts.parameters()} == {torch.promote_types(dtype, torch.float32)}
    close(actual.to(expected.dtype), expected, 1e-5 if dtype == torch.float64 else 0.05)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "query")])
def test_names_by_which_weights_would_be_lost_are_refused(names: tuple[str, str], tiny_model: Callable[..., Any]) -> None:
    config = put(tiny_model("bert"), "lotr").peft_config["default"]
    model: Any = get_peft_model(tiny_model("bert"), config, names[0])
    with pytest.raises(ValueError, match="of several adapters none may be called"):
        model.add_adapter(names[1], config)


@pytest.mark.parametrize("method", JOINT)
def test_all_linear_modules_are_adapted_and_unmerging_warns(method: str, tiny_model: Callable[..., Any]) -> None:
    config = replace(put(tiny_model("bert"), method).peft_config["default"], target_modules="all-linear")
    model: Any = get_peft_model(tiny_model("bert"), config)
    assert {*model.base_model.targeted_module_names} == {*linear_modules(tiny_model("bert"))}
    with pytest.warns(UserWarning, match="Already unmerged"):
        model.unmerge_adapter()


@pytest.mark.parametrize("method", ["lora", "craft", "houlsby", "bitfit"])
def test_a_part_that_reads_images_is_left_as_it_is(method: str) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = sizes | {"head_dim": 16, "num_key_value_heads": 1, "vocab_size": 64, "attention_bias": True}
    config = Gemma3Config(text_config=text, vision_config=sizes | {"image_size": 28, "patch_size": 14}, mm_tokens_per_image=4)
    given = {"ranks": ("all", 6, 7)} if method == "craft" else {}
    model = cases.put(AutoModelForSequenceClassification.from_config(config), method, given)
    model(WORDS).logits.sum().backward()
    silent = [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    assert not silent
    assert any(weight.requires_grad and "classif" not in name for name, weight in model.named_parameters())


@pytest.mark.parametrize("method", JOINT)
def test_a_part_of_the_model_called_by_itself_has_the_present_weights(method: str, tiny_model: Callable[..., Any]) -> None:
    model, x = stirred(tiny_model("bert"), method), torch.randn(3, 32)
    part = model.get_base_model().get_submodule(model.base_model.targeted_module_names[0])
    first = part(x)
    out(model)
    assert torch.equal(part(x), first)
    with torch.no_grad():
        for weight in model.base_model.parts.parameters():
            weight.mul_(1.5)
        second = part(x)
    assert part(x).requires_grad
    assert not torch.equal(second, first)
    out(model)
    assert torch.equal(part(x), second)

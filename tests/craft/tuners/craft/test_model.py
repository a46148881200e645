"""CRAFT on every model family: the paper's function and its gradients, the base model at J = I, counts, reload safety."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from craft import CraftConfig, rank_scaled_adamw
from craft.factors.hosvd import hosvd
from craft.tuners.craft.equation import dropout_masks
from craft.tuners.craft.layer import CraftLinear
from tests.craft.tuners.craft.test_peft_contract import IDS, TinyModel, adapted, hidden, move_j


def paper_model(model: Any, scaling: float = 1.0) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """The paper's weight form of an adapted model, built beside it: base weights replaced by W + s (T - R).

    Factors come from `hosvd` on the base weights, products are written as one einsum in float64, and the model is called
    with the weights as a function of J.
    """
    tuner = model.base_model
    base = copy.deepcopy(model).unload()
    matrices, stacks = [], []
    for stack in tuner.craft_J["default"].stacks.values():
        js = [j.detach().clone().requires_grad_() for j in tuner.craft_J["default"].js(stack)]
        matrices += js
        weights = _weights(tuner.model, stack)
        stacks.append((stack, hosvd(weights, stack.ranks, dtype=weights[0].dtype), js))

    def forward() -> Tensor:
        changed: dict[str, Tensor] = {}
        for stack, parts, js in stacks:
            us = (parts.u1, parts.u2, parts.u3)
            moved = [u @ j for u, j in zip(us, js, strict=True)]
            tensor = torch.einsum("abc,la,ob,ic->loi", parts.core, *moved) - torch.einsum("abc,la,ob,ic->loi", parts.core, *us)
            for layer, delta in zip(stack.layers, scaling * tensor, strict=True):
                key = f"{layer.module_name}.weight"
                module = base.get_submodule(layer.module_name)
                full = torch.zeros(layer.outputs, layer.inputs, dtype=delta.dtype)
                full = torch.cat([full[: layer.start], delta, full[layer.stop :]])
                full = full.T if isinstance(module, Conv1D) else full
                changed[key] = changed.get(key, module.weight.detach()) + full
        out = torch.func.functional_call(base, changed, kwargs={"input_ids": IDS})
        return out.last_hidden_state

    return forward, matrices


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_equals_the_weight_form_in_value_and_gradient(
    family: str, dtype: torch.dtype, tolerance: float, tiny_model: TinyModel
) -> None:
    model = adapted(tiny_model(family), projections=("q", "k", "v", "o"), scaling=0.7)
    if dtype == torch.float64:
        model.double()
        # The store's factors are float32; for 1e-10 both sides take float64 ones.
        tuner = model.base_model
        for stack in tuner.craft_J["default"].stacks.values():
            stack.set_factors(hosvd(_weights(tuner.model, stack), stack.ranks, dtype=dtype))
    forward, matrices = paper_model(model, scaling=0.7)
    ours, theirs = hidden(model), forward()
    scale = float(theirs.detach().abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * scale)
    probe = torch.cos(torch.arange(ours.numel(), dtype=dtype)).view_as(ours)
    (ours * probe).sum().backward()
    expected = torch.autograd.grad((theirs * probe).sum(), matrices)
    for mine, reference in zip(model.base_model.craft_J.parameters(), expected, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, reference, rtol=0, atol=tolerance * float(reference.abs().max()) * 4)


def _weights(model: Any, stack: Any) -> list[Tensor]:
    found = []
    for layer in stack.layers:
        base = model.get_submodule(layer.module_name).get_base_layer()
        weight = base.weight.T if isinstance(base, Conv1D) else base.weight
        found.append(weight.detach()[layer.start : layer.stop])
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_is_the_base_model_bit_for_bit_at_the_identity(family: str, dtype: torch.dtype, tiny_model: TinyModel) -> None:
    model = tiny_model(family, dtype).eval()
    expected = hidden(model)
    model = adapted(model, amount=0.0, init_epsilon=0.0, projections=("q", "k", "v", "o", "up", "down"))
    assert torch.equal(hidden(model), expected)
    model.train()
    assert torch.equal(hidden(model), expected)


def test_starts_near_the_identity_by_its_seed(tiny_model: TinyModel) -> None:
    starts = [adapted(tiny_model("bert"), amount=0.0, init_seed=seed).base_model.craft_J.state_dict() for seed in (3, 3, 4)]
    assert all(torch.equal(starts[0][key], starts[1][key]) for key in starts[0])
    assert not any(torch.equal(starts[0][key], starts[2][key]) for key in starts[0])
    noise = torch.cat([(value - torch.eye(len(value))).flatten() for value in starts[0].values()])
    assert float(noise.std()) == pytest.approx(1e-3, rel=0.15)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ranks": (4, 6, 7)}, "r1 (layers) is 4, but projection 'q' has 3 stacked layers"),
        ({"projections": ("gate",)}, "no projection 'gate'"),
    ],
)
def test_what_the_model_does_not_allow_is_said_and_leaves_it_as_it_was(
    settings: dict[str, Any], said: str, tiny_model: TinyModel
) -> None:
    model = tiny_model("bert")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        adapted(model, **settings)
    assert said in str(caught.value)
    assert not any(isinstance(module, CraftLinear) for module in model.modules())
    assert not model._forward_pre_hooks


def test_a_model_without_weights_says_so(tiny_model: TinyModel) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(tiny_model("bert").config)
    with pytest.raises(ValueError, match="meta device"):
        adapted(model)(input_ids=IDS.to("meta"))
    offloaded = cpu_offload(tiny_model("bert"), execution_device=torch.device("cpu"))
    with pytest.raises(ValueError, match=r"layer\.0\.attention\.self\.query is offloaded \(device_map\)"):
        adapted(offloaded)


@pytest.mark.parametrize("form", ["list", "regex", "all-linear"])
def test_target_modules_as_peft_understands_them(form: str, tiny_model: TinyModel) -> None:
    chosen = {"list": ["query", "value"], "regex": r".*self\.(query|value)", "all-linear": "all-linear"}[form]
    model = adapted(tiny_model("bert"), target_modules=chosen, ranks=("all", 6, 6))
    tuner = model.base_model
    inner = 3 * (2 if form != "all-linear" else 6)
    assert sum("pooler" not in name for name in tuner.targeted_module_names) == inner
    if form != "all-linear":
        assert sorted(tuner.craft_J["default"].stacks) == ["query", "value"]
    assert torch.isfinite(hidden(model)).all()


def test_dropout_draws_masks_once_a_forward(tiny_model: TinyModel) -> None:
    model = adapted(tiny_model("llama"), dropout=0.3).train()
    torch.manual_seed(5)
    first = hidden(model)
    stack = model.base_model.craft_J["default"].stacks["q"]
    again = hidden(model)
    assert not torch.equal(first, again)
    torch.manual_seed(5)
    assert torch.equal(hidden(model), first)
    model.eval()
    assert torch.equal(hidden(model), hidden(model))
    # The masked J are those of the forward pass: the same masks by hand give the same cores.
    torch.manual_seed(5)
    model.train()
    hidden(model)
    js = [j * mask for j, mask in zip(model.base_model.craft_J["default"].js(stack), stack.masks, strict=True)]
    torch.testing.assert_close(torch.stack(stack.cores), stack.offsets(js), rtol=0, atol=1e-6)


def save(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def test_the_configuration_of_an_adapter_with_factors_is_not_the_adapter(tiny_model: TinyModel, tmp_path: Path) -> None:
    adapted(tiny_model("bert"), save_factors=True).save_pretrained(tmp_path)
    model = get_peft_model(tiny_model("bert"), PeftConfig.from_pretrained(tmp_path))
    with pytest.raises(ValueError, match=r"in the adapter's own file .* by PeftModel.from_pretrained"):
        hidden(model)


@pytest.mark.parametrize("save_factors", [False, True])
def test_reload_gives_equal_outputs(save_factors: bool, family: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    model = adapted(tiny_model(family), save_factors=save_factors)
    folder, expected = save(model, tmp_path), hidden(model)
    keys = load_file(folder / "adapter_model.safetensors").keys()
    js = {f"base_model.craft_J.{stack}_J{mode}" for stack in "qv" for mode in (1, 2, 3)}
    assert {key for key in keys if "craft_J" in key} == js
    for how in ({"low_cpu_mem_usage": False}, {"low_cpu_mem_usage": True}, {"adapter_name": "other"}):
        assert torch.equal(hidden(PeftModel.from_pretrained(tiny_model(family), folder, **how)), expected), how


@pytest.mark.parametrize("save_factors", [False, True])
def test_other_base_weights_are_refused(save_factors: bool, tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = save(adapted(tiny_model("bert"), save_factors=save_factors), tmp_path)
    with pytest.raises(ValueError, match="other weights of projection 'q'"):
        PeftModel.from_pretrained(tiny_model("bert", seed=1), folder)
    with pytest.raises(ValueError, match="other weights of projection 'q'"):
        PeftModel.from_pretrained(tiny_model("bert", torch.bfloat16), folder)


def test_factors_that_came_out_differently_are_refused(
    tiny_model: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, carrying = tmp_path / "plain", tmp_path / "carrying"
    model = adapted(tiny_model("bert"))
    save(model, plain)
    model.peft_config["default"].save_factors = True
    save(model, carrying)
    expected = hidden(model)

    def flipped(weights: Any, ranks: Any, *, name: str, weights_hash: str) -> Any:
        import dataclasses

        parts = hosvd(weights, ranks)
        return dataclasses.replace(parts, u2=-parts.u2)

    monkeypatch.setattr("craft.tuners.craft.stack.stack_factors", flipped)
    with pytest.raises(ValueError, match="another basis"):
        PeftModel.from_pretrained(tiny_model("bert"), plain)
    assert torch.equal(hidden(PeftModel.from_pretrained(tiny_model("bert"), carrying)), expected)
    assert torch.equal(hidden(PeftModel.from_pretrained(tiny_model("bert"), carrying, is_trainable=True).eval()), expected)


def test_a_broken_or_nameless_record_is_refused(tiny_model: TinyModel, tmp_path: Path) -> None:
    folder = save(adapted(tiny_model("bert"), save_factors=True), tmp_path)
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    save_file({key: tensor for key, tensor in tensors.items() if "craft_fingerprint" not in key}, path)
    with pytest.raises(ValueError, match="does not say which factors"):
        PeftModel.from_pretrained(tiny_model("bert"), folder)
    key = next(key for key in tensors if key.endswith("q_u3"))
    for broken in (tensors[key].flip(0).contiguous(), tensors[key] * torch.nan):
        save_file(tensors | {key: broken}, path)
        with pytest.raises(ValueError, match="broken"):
            PeftModel.from_pretrained(tiny_model("bert"), folder)


def test_the_default_ranks_are_64_or_what_a_narrow_model_has(tiny_model: TinyModel, tmp_path: Path) -> None:
    model = get_peft_model(tiny_model("bert"), CraftConfig(init_seed=3))
    (shape,) = {stack.ranks for stack in model.base_model.craft_J["default"].stacks.values()}
    assert shape == (3, 32, 32)
    move_j(model)
    again = PeftModel.from_pretrained(tiny_model("bert"), save(model, tmp_path))
    assert torch.equal(hidden(again), hidden(model.eval()))


def test_one_rate_serves_all_ranks_and_the_head_has_its_own(tiny_model: TinyModel) -> None:
    model = adapted(tiny_model("bert"), ranks=("all", 32, 16), modules_to_save=["pooler"])
    model.add_adapter("other", CraftConfig(ranks=("all", 16, 32)))
    model.base_model.craft_J["other"].requires_grad_(True)  # as where both are active
    optimizer = rank_scaled_adamw(model, learning_rate=1e-3, head_learning_rate=5e-4, weight_decay=0.1)
    assert optimizer.param_groups[0]["lr"] == 1e-3, "the logged rate is the one that was asked for"
    rates = {id(weight): (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for weight in group["params"]}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            wanted = {3: 1e-3, 32: 2e-3, 16: 4e-3}[len(weight)] if "craft_J" in name else None
            assert rates.pop(id(weight)) == ((5e-4, 0.1) if wanted is None else (wanted, 0.0)), name
    assert not rates


@pytest.mark.parametrize("projections", [("q", "v"), ("q", "k", "v", "o")])
def test_lora_export_is_exact(projections: tuple[str, ...], family: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    model = adapted(tiny_model(family), projections=projections, scaling=1.3)
    folder = model.to_lora(tmp_path / "lora")
    lora = PeftModel.from_pretrained(tiny_model(family), folder).eval()
    assert isinstance(lora.peft_config["default"], LoraConfig)
    expected = hidden(model)
    torch.testing.assert_close(hidden(lora), expected, rtol=0, atol=2e-5 * float(expected.detach().abs().max()))
    assert {config.r for config in lora.peft_config.values()} <= {6, 12, 18}


def test_lora_export_has_a_tied_vocabulary_that_was_resized(tiny_model: TinyModel, tmp_path: Path) -> None:
    tiny_model("gpt2", head="causal").save_pretrained(tmp_path / "base")

    def resized() -> Any:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        model.resize_token_embeddings(70, mean_resizing=False)
        return model

    model = adapted(resized(), task_type="CAUSAL_LM")
    lora = PeftModel.from_pretrained(resized(), model.to_lora(tmp_path / "lora")).eval()
    assert lora.get_input_embeddings().weight is lora.get_output_embeddings().weight
    torch.testing.assert_close(lora(IDS).logits, model(IDS).logits, rtol=0, atol=1e-4)


def test_dropout_masks_keep_the_mean() -> None:
    torch.manual_seed(0)
    mask = dropout_masks((200, 200, 200), 0.25, torch.empty(0))[1]
    assert mask.shape == (200, 200)
    assert sorted(mask.unique().tolist()) == pytest.approx([0.0, 4 / 3])
    assert float(mask.mean()) == pytest.approx(1.0, abs=0.02)

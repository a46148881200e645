"""What PEFT holds its own methods to, held of CRAFT: several adapters, merging, disabling, saving.

However PyTorch runs a model (half precision, checkpointing, autocast, compiled), outputs and gradients stay; so with TRL."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from craft import CraftConfig
from craft.tuners.craft.layer import CraftLinear

TinyModel = Callable[..., Any]
IDS = torch.arange(24).view(2, 12) % 60 + 1
RANKS = ("all", 6, 7)


def config(**settings: Any) -> CraftConfig:
    return CraftConfig(**{"ranks": RANKS, "init_seed": 3, **settings})


def move_j(model: Any, adapter: str = "default", amount: float = 0.2, seed: int = 7) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.base_model.craft_J[adapter].parameters():
            parameter.add_(amount * torch.randn(parameter.shape, generator=generator).to(parameter))


def hidden(model: Any, **kwargs: Any) -> Tensor:
    return model(input_ids=IDS, **kwargs).last_hidden_state


def loss(out: Tensor) -> Tensor:
    """A fixed linear function: the last norm makes mean squares constant, and their gradient rounding alone."""
    return (out * torch.cos(torch.arange(out.numel(), dtype=out.dtype)).view_as(out)).sum()


def adapted(model: Any, amount: float = 0.2, **settings: Any) -> Any:
    adapted_model = get_peft_model(model, config(**settings)).eval()
    move_j(adapted_model, amount=amount)
    return adapted_model


def two_adapters(model: Any) -> Any:
    adapted_model = adapted(model)
    adapted_model.add_adapter("other", config(ranks=("all", 4, 5), projections=("q", "o"), init_seed=4))
    move_j(adapted_model, "other", seed=8)
    return adapted_model.eval()


def flags(model: Any, adapter: str) -> set[bool]:
    return {parameter.requires_grad for parameter in model.base_model.craft_J[adapter].parameters()}


def close(actual: Tensor, other: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, other, rtol=0, atol=tolerance * float(other.detach().abs().max()))


def gradients(model: Any) -> list[Tensor]:
    grads = [parameter.grad.clone() for parameter in model.base_model.craft_J.parameters() if parameter.grad is not None]
    model.zero_grad()
    return grads


@pytest.mark.parametrize("safe", [False, True])
def test_disabled_merged_and_unloaded(safe: bool, family: str, tiny_model: TinyModel) -> None:
    base = hidden(tiny_model(family).eval())
    model = adapted(tiny_model(family), projections=("q", "k", "v", "o"))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = hidden(model)
    assert not torch.equal(expected, base)
    with model.disable_adapter():
        assert torch.equal(hidden(model), base)
    assert torch.equal(hidden(model), expected)
    assert flags(model, "default") == {True}
    model.merge_adapter(safe_merge=safe)
    close(hidden(model), expected)
    assert not all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model.unmerge_adapter()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(hidden(model), expected)
    unloaded = model.merge_and_unload()
    close(hidden(unloaded), expected)
    assert type(unloaded) is type(tiny_model(family))
    assert not unloaded._forward_pre_hooks
    assert not any(isinstance(module, CraftLinear) for module in unloaded.modules())


def test_safe_merge_refuses_what_is_not_finite(tiny_model: TinyModel) -> None:
    model = adapted(tiny_model("bert"))
    before = {key: value.clone() for key, value in model.base_model.model.state_dict().items()}
    with torch.no_grad():
        model.base_model.craft_J["default"].q_J2[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"NaNs detected in the merged weights\. The adapter default seems to be broken"):
        model.merge_adapter(safe_merge=True)
    model.base_model.unmerge_adapter()
    assert all(torch.equal(value, before[key]) for key, value in model.base_model.model.state_dict().items())


def test_merged_weights_are_not_decomposed(tiny_model: TinyModel) -> None:
    model = adapted(tiny_model("bert"))
    model.merge_adapter()
    with pytest.raises(ValueError, match="unmerge_adapter"):
        model.add_adapter("other", config())
    assert list(model.peft_config) == ["default"]
    model.unmerge_adapter()
    model.add_adapter("other", config())


def test_adapters_in_turn(family: str, tiny_model: TinyModel) -> None:
    model = two_adapters(tiny_model(family))
    first = hidden(model)
    assert torch.equal(first, hidden(adapted(tiny_model(family))))
    model.set_adapter("other")
    second = hidden(model)
    alone = get_peft_model(tiny_model(family), config(ranks=("all", 4, 5), projections=("q", "o"), init_seed=4), "other")
    move_j(alone, "other", seed=8)
    assert torch.equal(second, hidden(alone.eval()))
    model.set_adapter("default")
    assert torch.equal(hidden(model), first)
    assert (flags(model, "default"), flags(model, "other")) == ({True}, {False})
    model.delete_adapter("other")
    assert torch.equal(hidden(model), first)
    assert list(model.base_model.craft_J) == ["default"]
    assert not any("other" in key for key in model.state_dict())


def test_adapters_at_once_add_up(tiny_model: TinyModel) -> None:
    model = two_adapters(tiny_model("llama"))
    model.base_model.set_adapter(["default", "other"])
    both = hidden(model)
    layer = next(module for module in model.modules() if isinstance(module, CraftLinear))
    assert layer.active_adapters == ["default", "other"]
    model.merge_adapter()
    close(hidden(model), both)
    model.unmerge_adapter()
    loss(both).backward()
    assert all(parameter.grad is not None for parameter in model.base_model.craft_J.parameters())


def test_a_second_adapter_leaves_the_first_as_it_was(tiny_model: TinyModel, tmp_path: Path) -> None:
    adapted(tiny_model("bert")).save_pretrained(tmp_path)
    model = adapted(tiny_model("bert"))
    model.load_adapter(tmp_path, "loaded")
    assert (flags(model, "default"), flags(model, "loaded")) == ({True}, {False})
    assert model.active_adapters == ["default"]
    frozen = PeftModel.from_pretrained(tiny_model("bert"), tmp_path)
    frozen.add_adapter("new", config())
    assert flags(frozen, "default") == {False}
    assert sum(status.num_adapter_layers for status in [frozen.get_model_status()]) == 6


def test_weighted_sums_of_adapters_are_refused_in_words(tiny_model: TinyModel) -> None:
    model = two_adapters(tiny_model("llama"))
    with pytest.raises(ValueError, match=r"no linear function of J.*set_adapter"):
        model.add_weighted_adapter(["default", "other"], [0.5, 0.5], "both")
    assert list(model.peft_config) == ["default", "other"]


def test_config_travels_by_pickle_and_json(tmp_path: Path) -> None:
    adapted_model = config(projections=["q", "o"], dropout=0.1, projection_map={"q": "wq"}, exclude_modules=["x"])
    assert pickle.loads(pickle.dumps(adapted_model)) == adapted_model  # noqa: S301
    adapted_model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["peft_type"] == "CRAFT"
    loaded = PeftConfig.from_pretrained(tmp_path)
    assert loaded == adapted_model
    assert loaded.ranks == ("all", 6, 7)


def test_model_copies_and_pickles(tiny_model: TinyModel) -> None:
    model = adapted(tiny_model("bert"))
    expected = hidden(model)  # leaves cores with a graph behind
    twin = copy.deepcopy(model)
    assert torch.equal(hidden(twin), expected)
    move_j(twin, seed=1)
    assert not torch.equal(hidden(twin), expected)
    assert torch.equal(hidden(model), expected)
    assert torch.equal(hidden(pickle.loads(pickle.dumps(model))), expected)  # noqa: S301


QUIET: dict[str, Any] = {"per_device_train_batch_size": 4, "report_to": "none", "use_cpu": True, "disable_tqdm": True}


def test_trainer_resumes_bit_for_bit(tiny_model: TinyModel, tmp_path: Path) -> None:
    rows = [{"input_ids": IDS[i % 2], "labels": i % 2} for i in range(16)]
    settings = QUIET | {"save_steps": 3, "learning_rate": 1e-2, "seed": 1, "lr_scheduler_type": "constant"}

    def train(folder: Path, steps: int, resume: str | None = None) -> Any:
        model = get_peft_model(tiny_model("bert", head="classifier"), config(task_type="SEQ_CLS", dropout=0.1))
        Trainer(model, TrainingArguments(folder, max_steps=steps, **settings), train_dataset=rows).train(resume)
        return get_peft_model_state_dict(model)

    expected = train(tmp_path / "whole", 6)
    train(tmp_path / "parts", 3)
    resumed = train(tmp_path / "parts", 6, str(tmp_path / "parts" / "checkpoint-3"))
    assert all(torch.equal(tensor, expected[key]) for key, tensor in resumed.items())


def test_generation_is_that_of_the_merged_model(tiny_model: TinyModel) -> None:
    ids = IDS[:, :5]
    settings = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    for family in ("llama", "gpt2", "opt"):
        model = adapted(tiny_model(family, head="causal"), task_type="CAUSAL_LM")
        mask = torch.ones_like(ids)
        bypass = model.generate(input_ids=ids, attention_mask=mask, **settings)
        model.merge_adapter()
        assert torch.equal(model.generate(input_ids=ids, attention_mask=mask, **settings), bypass)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"layers_to_transform": [0]}, "layers_to_transform"),
        ({"projections": ("q",), "target_modules": ["query"]}, "not both"),
        ({"ranks": (2, 3)}, "three"),
        ({"dropout": 1.0}, "dropout"),
        ({"scaling": 0.0}, "scaling"),
        ({"projections": ("q", "q")}, "each once"),
    ],
)
def test_config_refuses(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        config(**settings)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("cast", ["before", "after"])
def test_j_and_factors_stay_float32_in_half_precision(cast: str, dtype: torch.dtype, tiny_model: TinyModel) -> None:
    model = tiny_model("llama", dtype) if cast == "before" else tiny_model("llama")
    model = adapted(model, amount=0.01).to(dtype)
    factors = model.base_model.craft_J["default"].stacks["q"].factors
    assert {tensor.dtype for tensor in (*model.base_model.craft_J.parameters(), factors.core, factors.u2)} == {torch.float32}
    assert {parameter.dtype for parameter in model.base_model.model.parameters()} == {dtype}
    out = hidden(model)
    assert out.dtype == dtype
    loss(out.float()).backward()
    reference = adapted(tiny_model("llama", dtype).float(), amount=0.01)
    close(out.float(), hidden(reference), 0.05)
    assert torch.isfinite(torch.cat([grad.flatten() for grad in gradients(model)])).all()


def test_dropout_under_checkpoints(tiny_model: TinyModel) -> None:
    """Gradients are those without checkpoints; a backward pass whose masks a later forward pass has replaced is refused."""
    plain, model = (adapted(tiny_model("llama"), dropout=0.3).train() for _ in range(2))
    model.base_model.model.gradient_checkpointing_enable({"use_reentrant": False})

    def step(model: Any) -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(5)
        with torch.no_grad():
            hidden(model)
        loss(hidden(model)).backward()
        loss(hidden(model)).backward()
        return [grad.clone() for grad in gradients(model)]

    assert all(torch.equal(mine, theirs) for mine, theirs in zip(step(model), step(plain), strict=True))
    first, _ = loss(hidden(model)), hidden(model)
    with pytest.raises(RuntimeError, match=r"backward\(\) after each forward pass"):
        first.backward()
    move_j(model)  # as an optimizer does
    step(model)
    first = loss(hidden(model))
    with torch.no_grad():
        hidden(model.eval())
    with pytest.raises(RuntimeError, match="dropout"):
        first.backward()


def test_autocast_keeps_the_cores_float32(tiny_model: TinyModel) -> None:
    model = adapted(tiny_model("llama")).train()
    exact = hidden(model)
    loss(exact).backward()
    expected = gradients(model)
    with torch.autocast("cpu", torch.bfloat16):
        out = hidden(model)
    loss(out.float()).backward()
    close(out.float(), exact, 0.05)
    for mine, theirs in zip(gradients(model), expected, strict=True):
        assert mine.dtype == torch.float32
        assert float((mine - theirs).norm() / theirs.norm()) < 0.1


def test_evaluation_follows_training_steps(tiny_model: TinyModel) -> None:
    """Cores are kept between forward passes of evaluation, and never longer than J stays as it is."""
    model = adapted(tiny_model("bert"))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    with torch.no_grad():
        first = hidden(model)
        stack = model.base_model.craft_J["default"].stacks["q"]
        cores = stack.cores
        hidden(model)
        assert stack.cores is cores
    loss(hidden(model)).backward()
    optimizer.step()
    with torch.no_grad():
        second = hidden(model)
    assert not torch.equal(first, second)
    with torch.inference_mode():
        assert torch.equal(hidden(model), second)
    close(hidden(model), second, 1e-6)
    with torch.no_grad():  # an average of weights is put in through .data, which raises no version
        assert torch.equal(hidden(model), second)
        for j in model.base_model.craft_J.parameters():
            j.data.mul_(1.1)
        assert not torch.equal(hidden(model.eval()), second)
    # A part of the model called by itself, past the hook of the whole, sees the present J too.
    optimizer.step()
    inner = model.base_model.model.encoder.layer[0].attention.self.query
    x = torch.randn(3, 32)
    expected = x @ (inner.base_layer.weight + inner.get_delta_weight("default")).T + inner.base_layer.bias
    close(inner(x), expected)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_model_gives_the_same(backend: str, tiny_model: TinyModel) -> None:
    model = adapted(tiny_model("bert")).train()
    expected = hidden(model)
    loss(expected).backward()
    reference = gradients(model)
    compiled = torch.compile(model, backend=backend)
    out = hidden(compiled)
    loss(out).backward()
    close(out, expected)
    for mine, theirs in zip(gradients(model), reference, strict=True):
        close(mine, theirs)
    with torch.no_grad():
        move_j(model, seed=9)
        close(hidden(compiled.eval()), hidden(model.eval()))


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_trl_trains_an_adapter_further(tiny_llama: str, tmp_path: Path, checkpointing: bool) -> None:
    trl = pytest.importorskip("trl", reason="pip install -e '.[trl]'")
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_llama), config()).save_pretrained(tmp_path / "first")
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_llama), str(tmp_path / "first"), is_trainable=True
    )
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trains = {name for name, value in model.named_parameters() if value.requires_grad}
    steps = {"max_steps": 8, "learning_rate": 0.05, "gradient_checkpointing": checkpointing, "save_strategy": "no"}
    arguments = trl.SFTConfig(str(tmp_path / "trl"), **QUIET | steps, bf16=False)
    rows = Dataset.from_list([{"prompt": "say", "completion": " abc"}] * 8)
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama, pad_token="</s>")
    trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
    start = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < start
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert moved == trains
    trainer.save_model(tmp_path / "second")
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_llama), str(tmp_path / "second")).eval()
    tokens = torch.tensor([[1, 50, 60, 70]])
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model.eval()(tokens).logits)

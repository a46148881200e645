"""However PyTorch runs a model (half precision, checkpointing, autocast, compiled), CRAFT's outputs and gradients stay; TRL."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.craft.tuners.craft.test_peft_contract import TinyModel, adapted, close, config, gradients, hidden, loss, move_j


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


def test_a_checkpoint_that_would_run_backward_twice_is_torchs_error(tiny_model: TinyModel) -> None:
    model = adapted(tiny_model("llama")).train()
    model.base_model.model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    with pytest.raises(RuntimeError, match="second time"):
        loss(hidden(model)).backward()


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
    arguments = trl.SFTConfig(
        str(tmp_path / "trl"),
        max_steps=8,
        per_device_train_batch_size=4,
        learning_rate=0.05,
        gradient_checkpointing=checkpointing,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
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

"""TRL's SFTTrainer trains a saved adapter further."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from craft import CraftConfig


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
def test_trl_trains_an_adapter_further(tiny_llama: str, tmp_path: Path, checkpointing: bool) -> None:
    trl = pytest.importorskip("trl", reason="pip install -e '.[trl]'")
    get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_llama), CraftConfig(ranks=("all", 8, 8), projections=("q", "v"))
    ).save_pretrained(tmp_path / "first")
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

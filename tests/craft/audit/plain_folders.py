"""Folders of adapters that plain PEFT writes, and held-out rows for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import torch
from transformers import AutoModelForSequenceClassification

from craft.tuners.low_rank import MiloraConfig

BOTH = ["query", "value"]
CONFIGS = {
    "lora": peft.LoraConfig(r=4, target_modules=BOTH),
    "rslora": peft.LoraConfig(r=4, lora_alpha=16, use_rslora=True, target_modules=BOTH),
    "patterns": peft.LoraConfig(
        r=4, target_modules=BOTH, rank_pattern={"layer.0.attention.self.query": 2}, alpha_pattern={"value": 3}
    ),
    "dora": peft.LoraConfig(r=4, use_dora=True, target_modules=BOTH),
    "loha": peft.LoHaConfig(r=2, target_modules=BOTH),
    "vera": peft.VeraConfig(r=8, target_modules=BOTH),
    "boft": peft.BOFTConfig(boft_block_size=4, target_modules=BOTH),
    "adalora": peft.AdaLoraConfig(init_r=4, target_r=2, total_step=10, target_modules=BOTH),
    "pissa": peft.LoraConfig(r=4, init_lora_weights="pissa", target_modules=BOTH),
    "olora": peft.LoraConfig(r=4, init_lora_weights="olora", target_modules=BOTH),
    "milora": MiloraConfig(r=4, target_modules=BOTH),
}


def saved(base: str, config: Any, folder: Path, whole: list[str] | None = None) -> Any:
    """An adapter with random weights, written by PEFT, and its model; `whole` names modules that it trains whole."""
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    config.task_type, config.modules_to_save = "SEQ_CLS", whole
    adapted = peft.get_peft_model(model, config)
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn_like(weight))
    adapted.save_pretrained(folder)
    return adapted


def merged(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.merge_and_unload().state_dict().items()}


def rows(folder: Path, many: int = 40) -> str:
    file = folder / "rows.csv"
    file.write_text("text,label\n" + "".join(f"row {at} is {'good' if at % 2 else 'bad'},{at % 2}\n" for at in range(many)))
    return str(file)

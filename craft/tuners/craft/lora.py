"""CRAFT adapters for programs that do not know CRAFT: an exact LoRA.

A layer's change s U2 M_l U3ᵀ has rank r2, so it is a LoRA with A = M_l U3ᵀ and B = s U2: no further decomposition, no loss.
Any server that serves LoRA serves it, with quantized or half-precision weights too. A fused module that holds several
projections gets their A stacked and their B side by side, each in its own outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from craft.tuners.craft.fingerprint import FACTORS, FINGERPRINT
from craft.tuners.craft.layer import CraftLinear


def to_lora(tuner: Any, directory: str | Path, adapter_name: str | None = None, *, equal_ranks: bool = False) -> Path:
    """Writes an adapter of a `CraftModel`, the active one by default, as a PEFT LoRA folder with equal outputs, its task head
    included.

    With `equal_ranks` zeros fill all modules up to the largest rank, as servers want it that have one scale and one rank.
    """
    name = adapter_name or tuner.active_adapters[0]
    tuner.craft_adapter(name)
    tensors = {
        # The tuner has no PeftModel around it. Tied weights, which PEFT saves after a resize, are no two names in one file.
        f"base_model.{key}": tensor.detach().to("cpu", copy=True).contiguous()
        for key, tensor in get_peft_model_state_dict(tuner, adapter_name=name).items()
        if not any(mark in key for mark in ("craft_J.", FINGERPRINT, FACTORS))
    }
    layers = {
        key: layer
        for key, layer in tuner.model.named_modules()
        if isinstance(layer, CraftLinear) and name in layer.craft_slices
    }
    pairs = {key: lora_pair(layer, name) for key, layer in layers.items()}
    largest = max(len(down) for down, _ in pairs.values())
    ranks = {key: largest if equal_ranks else len(down) for key, (down, _) in pairs.items()}
    for key, (down, up) in pairs.items():
        lacking = ranks[key] - len(down)
        tensors[f"base_model.model.{key}.lora_A.weight"] = F.pad(down.cpu(), (0, 0, 0, lacking)).contiguous()
        tensors[f"base_model.model.{key}.lora_B.weight"] = F.pad(up.cpu(), (0, lacking)).contiguous()
    conv = any(isinstance(layer.get_base_layer(), Conv1D) for layer in layers.values())
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
    ours = tuner.peft_config[name]
    usual = max(set(ranks.values()), key=list(ranks.values()).count)
    # PEFT reads the patterns as regular expressions; alpha is the rank, so that LoRA's factor alpha / r is 1.
    pattern = {key.replace(".", r"\."): rank for key, rank in ranks.items() if rank != usual}
    config = LoraConfig(
        r=usual,
        lora_alpha=usual,
        rank_pattern=dict(pattern),
        alpha_pattern=dict(pattern),
        target_modules=sorted(ranks),
        fan_in_fan_out=conv,
        modules_to_save=getattr(ours, "modules_to_save", None),
        task_type=ours.task_type,
        base_model_name_or_path=ours.base_model_name_or_path,
        revision=ours.revision,
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    return folder


def lora_pair(layer: CraftLinear, adapter_name: str) -> tuple[Tensor, Tensor]:
    """Computes A (r, d_in) and B (d_out, r) with B A = the layer's change; r sums r2 over a module's projections."""
    downs, ups = [], []
    with torch.no_grad():
        for piece in layer.craft_slices[adapter_name]:
            factors = piece.stack.ready()
            core = piece.stack.offsets(piece.adapter.js(piece.stack), layer=piece.index)[0]
            up = core.new_zeros(piece.place.outputs, core.shape[0])
            up[piece.place.start : piece.place.stop] = piece.stack.scaling * factors.u2
            downs.append(core @ factors.u3.T)
            ups.append(up)
    return torch.cat(downs), torch.cat(ups, dim=1)

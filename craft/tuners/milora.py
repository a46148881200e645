"""MiLoRA: LoRA on the minor singular components of the weights (Wang et al. 2024, arXiv 2406.09044).

    W = U S Vᵀ        B = U_r (S_r / s)^½,  A = (S_r / s)^½ V_rᵀ of the r smallest singular values;  W loses s B A

As with PiSSA, the base weights are changed in the model, and again whenever an adapter is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora import LoraLayer, LoraModel
from peft.utils.other import transpose
from peft.utils.peft_types import PeftType


@dataclass
class MiloraConfig(LoraConfig):
    """LoRA's configuration; `init_lora_weights` stays True."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType("MILORA")


class MiloraModel(LoraModel):
    """LoRA whose layers start at their minor singular components."""

    def _create_and_replace(  # type: ignore[override]  # LoRA's own takes the parameter's name by keyword alone
        self, lora_config: Any, adapter_name: str, target: Any, target_name: str, parent: Any, *args: Any, **kwargs: Any
    ) -> None:
        super()._create_and_replace(lora_config, adapter_name, target, target_name, parent, *args, **kwargs)
        layer = getattr(parent, target_name)
        assert isinstance(layer, LoraLayer)
        start_minor(layer, adapter_name)


def start_minor(layer: Any, adapter_name: str) -> None:
    """Moves the minor singular components of the layer's weight into its adapter."""
    weight, rank = layer.get_base_layer().weight, layer.r[adapter_name]
    if weight.is_meta:
        return
    if not weight.is_floating_point():
        raise ValueError("MiLoRA takes components out of the base weights, which a quantized base does not allow; use LoRA")
    if rank > min(weight.shape):
        sides = " x ".join(map(str, weight.shape))
        raise ValueError(f"MiLoRA's rank is at most {min(weight.shape)} for a weight of {sides}; got {rank}")
    scale, matrix = layer.scaling[adapter_name], transpose(weight.data, layer.fan_in_fan_out).to(torch.float32)
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    root = (s[-rank:] / scale).sqrt()
    a, b = (root[:, None] * vt[-rank:]).contiguous(), (u[:, -rank:] * root).contiguous()
    layer.lora_A[adapter_name].weight.data, layer.lora_B[adapter_name].weight.data = a, b
    residual = matrix - scale * b @ a
    layer.get_base_layer().weight.data = transpose(residual.to(weight.dtype), layer.fan_in_fan_out)

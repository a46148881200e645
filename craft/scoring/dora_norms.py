"""DoRA's norms, computed once for many forward passes.

    y = W x + (m / ‖W + s B A‖ - 1) W x + (m / ‖W + s B A‖) s B A x          the norm is over each row of the weight

PEFT forms B A and the norm in every forward pass, which decoding pays at every token: with float32 adapters it passes over a
float32 copy of every adapted weight. The norm changes only with the weights. `peft.helpers.DoraCaching` keeps norms too, but
also B A of every layer, as large as the adapted weights themselves (5 GB in float32 for q, k, v and o of LLaMA3-8B), and it
still makes that copy. Here a layer keeps d_out numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from peft.tuners.lora.dora import DoraLinearLayer
from peft.utils.integrations import dequantize_module_weight
from torch import Tensor, nn


@contextmanager
def norms_kept(model: nn.Module) -> Iterator[None]:
    """Every linear DoRA layer of `model` computes its norm once inside the block. The model is in eval mode and nothing changes
    its weights; outputs keep their bits."""
    layers = [module for module in model.modules() if type(module) is DoraLinearLayer]
    for layer in layers:
        layer.forward = partial(_forward, layer, {})  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _forward(
    layer: DoraLinearLayer,
    kept: dict[tuple[Any, ...], Tensor],
    x: Tensor,
    *,
    lora_A: nn.Module,
    lora_B: nn.Module,
    scaling: float,
    base_layer: Any,
    base_result: Tensor | None = None,
    adapter_name: str = "default",
) -> Tensor:
    """`DoraLinearLayer.forward` of PEFT without dropout: what is added to the base layer's output."""
    assert base_result is not None, "PEFT gives the base layer's output in eval mode"
    assert not layer.training, "weights that train change their norms"
    key = adapter_name, x.dtype, x.device
    if key not in kept:
        change = layer.get_lora_weight(lora_A=lora_A, lora_B=lora_B).to(x.dtype).detach()
        norm = layer.get_weight_norm(dequantize_module_weight(base_layer).to(x.dtype), change, scaling)
        kept[key] = (layer.weight / norm.detach()).view(1, -1).detach()
    scale = kept[key]
    bias = base_layer.bias
    without_bias = base_result if bias is None else base_result - bias
    return (scale - 1) * without_bias + scale * lora_B(lora_A(x)) * scaling

"""Gives PEFT's PiSSA and PSOFT (LoRA-XS) their singular vectors from the store, instead of an SVD of their own.

    with svd_from_store():
        peft.get_peft_model(...) or PeftModel.from_pretrained(...)

PEFT computes the SVD of each adapted weight inside the layer's initialization, for every trial and at every loading. Inside the
block both layers ask `craft.factors.svd` at the place where they would call `torch.linalg.svd`; the rest of their
initialization stays PEFT's, and on a CPU the numbers are equal to the last bit. Outside the block, and for PEFT's
approximate SVDs, nothing differs from PEFT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import wrapt
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.psoft.layer import PsoftLayer
from peft.utils.other import transpose
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from craft.factors.svd import Components, End, singular_vectors
from craft.models.projections import find_projections

_stored: ContextVar[bool] = ContextVar("craft_svd_from_store", default=False)


@contextmanager
def svd_from_store() -> Iterator[None]:
    """Makes PEFT's layers take exact SVDs from the store, in this thread inside the block."""
    _install()
    reset_token = _stored.set(True)
    try:
        yield
    finally:
        _stored.reset(reset_token)


def adapted_weights(model: nn.Module, projection: str) -> dict[str, Tensor]:
    """Lists the matrices (d_out, d_in) that the layers of a projection would ask for, by module."""
    names = sorted({layer.module_name for stack in find_projections(model, [projection]).values() for layer in stack})
    modules: dict[str, Any] = {name: model.get_submodule(name) for name in names}
    return {
        name: transpose(module.weight.data, isinstance(module, Conv1D))
        for name, module in modules.items()
        if _decomposable(module.weight)
    }


@cache
def _install() -> None:
    wrapt.wrap_function_wrapper(LoraLayer, "pissa_init", _pissa)
    wrapt.wrap_function_wrapper(PsoftLayer, "_compute_svd_factors", _psoft)


def _pissa(wrapped: Callable[..., None], layer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Replaces `LoraLayer.pissa_init(adapter_name, init_lora_weights)`."""
    weight, (adapter, init) = layer.get_base_layer().weight, arguments
    if not _stored.get() or init != "pissa" or not _decomposable(weight):
        return wrapped(*arguments, **named)
    return move_components(layer, adapter, "largest")


def move_components(layer: Any, adapter: str, end: End) -> None:
    """Moves singular components of a layer's weight into its LoRA: A = S^½ Vᵀ, B = U S^½ of S / s, and W loses s B A."""
    weight, rank, scale = layer.get_base_layer().weight, layer.r[adapter], layer.scaling[adapter]
    u, s, vt = singular_vectors(transpose(weight.data, layer.fan_in_fan_out), rank, end)
    root = (s / scale).sqrt()
    # A product with a diagonal matrix has one term for each entry, so these are PEFT's bits, in PEFT's memory order.
    a, b = (root[:, None] * vt).contiguous(), (u * root).contiguous()
    layer.lora_A[adapter].weight.data, layer.lora_B[adapter].weight.data = a, b
    residual = transpose(weight.data.float(), layer.fan_in_fan_out) - scale * b @ a
    layer.get_base_layer().weight.data = transpose(residual.to(weight.dtype), layer.fan_in_fan_out)


def _psoft(wrapped: Callable[..., Components], layer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Components:
    """Replaces `PsoftLayer._compute_svd_factors(weight, r, svd_mode=..., ...)`, whose `weight` is the float32 base weight."""
    weight = layer.get_base_layer().weight
    if not _stored.get() or named["svd_mode"] != "full" or not _decomposable(weight):
        return wrapped(*arguments, **named)
    return singular_vectors(transpose(weight.data, layer.fan_in_fan_out), arguments[1], "largest")


def _decomposable(weight: Tensor) -> bool:
    return not weight.is_meta and weight.is_floating_point()

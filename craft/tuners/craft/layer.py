"""`CraftLinear`: a linear module with CRAFT's change of its weight next to it, merged into it, or switched off.

    y = W x + b  +  s U2 (M_l (U3ᵀ x))        for each active adapter; M_l from the adapter's stack (`craft.tuners.craft.stack`)

A layer holds nothing that trains. The base layer is called as it is, so it may be quantized.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from peft.utils.quantization_utils import resolve_quantization_backend
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from craft.models.projections import Located
from craft.tuners.craft.equation import bypass
from craft.tuners.craft.stack import CraftAdapter, Stack


@dataclass(eq=False)
class Slice:
    """One stack's share of a layer: the layer's place in the stack and in the module's outputs."""

    adapter: CraftAdapter
    stack: Stack
    index: int
    place: Located

    def matrices(self, x: Tensor, training: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Returns U3ᵀ, M and s U2ᵀ in the dtype of the products with x, which autocast decides."""
        kind, device = x.device.type, x.device
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        core = self.stack.core_of(self.index, self.adapter.js(self.stack), dtype, device, training)
        return self.stack.cast("u3t", dtype, device), core, self.stack.cast("u2s", dtype, device)


class CraftLinear(nn.Module, BaseTunerLayer):
    """A Linear, Conv1D or quantized linear module under CRAFT; made by `CraftModel`."""

    craft_J: nn.ModuleDict
    adapter_layer_names = ("craft_J",)
    other_param_names = ("craft_slices",)
    cast_input_dtype_enabled = True  # `peft.helpers.disable_input_dtype_casting` turns it off; no input is cast here

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        # Adapter -> its J, which belong to the tuner and are shared by all layers. PEFT's bookkeeping reads them here; not a
        # submodule, so that they are not saved again with every layer.
        object.__setattr__(self, "craft_J", nn.ModuleDict())
        self.craft_slices: dict[str, list[Slice]] = {}
        self.merged_adapters: list[str] = []
        self._disable_adapters = False
        self._pristine: Tensor | None = None
        self.quantization_backend = resolve_quantization_backend(base_layer, get_apply_tensor_subclass=lambda: None)

    def update_layer(self, adapter_name: str, slices: list[Slice]) -> None:
        self.in_features, self.out_features = slices[0].place.inputs, slices[0].place.outputs
        self.craft_J[adapter_name] = slices[0].adapter
        self.craft_slices[adapter_name] = slices

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.merged and self.disable_adapters:
            self.unmerge()
        y: Tensor = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters or self.merged:
            return y
        for piece in [piece for name in self.active_adapters for piece in self.craft_slices.get(name, ())]:
            (u3t, core, u2s), start, stop = piece.matrices(x, self.training), piece.place.start, piece.place.stop
            if stop - start == piece.place.outputs:
                y = bypass(x.to(core.dtype), y, u3t, core, u2s)
            else:
                part = bypass(x.to(core.dtype), y[..., start:stop], u3t, core, u2s)
                y = torch.cat([y[..., :start], part, y[..., stop:]], dim=-1)
        return y

    def get_delta_weight(self, adapter_name: str) -> Tensor:
        """Returns what the adapter adds to the base weight: of its shape, float32 or wider, in its orientation."""
        conv = isinstance(self.get_base_layer(), Conv1D)
        slices = self.craft_slices[adapter_name]
        with torch.no_grad():
            changes = [piece.stack.delta(piece.adapter.js(piece.stack), piece.index) for piece in slices]
        delta = changes[0].new_zeros(slices[0].place.outputs, slices[0].place.inputs)
        for piece, change in zip(slices, changes, strict=True):
            delta[piece.place.start : piece.place.stop] += change
        return delta.T if conv else delta

    def supports_lora_conversion(self, adapter_name: str = "default") -> bool:
        return self.quantization_backend is None

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Adds the adapters' change to the base weight; `unmerge` restores its exact bits.

        Raises ValueError if the base is quantized, or `safe_merge` finds a sum that is not finite, before anything is changed.
        """
        names = [name for name in check_adapters_to_merge(self, adapter_names) if name in self.craft_slices]
        if not names:
            return
        weight: Any = self.get_base_layer().weight
        if self.quantization_backend is not None or not weight.is_floating_point():
            kind = self.quantization_backend.backend_name if self.quantization_backend else "integer"
            raise ValueError(
                f"CRAFT cannot be merged into quantized weights ({kind}): rounding them again would drown the change. Score "
                "through the bypass, or export with to_lora() and serve it with the quantized base."
            )
        with torch.no_grad():
            change = torch.stack([self.get_delta_weight(name) for name in names]).sum(0)
            merged = (weight.data.to(change.dtype) + change.to(weight.device)).to(weight.dtype)
            if safe_merge and not torch.isfinite(merged).all():
                # The first sentence is PEFT's own, which programs may look for.
                raise ValueError(
                    f"NaNs detected in the merged weights. The adapter {', '.join(names)} seems to be broken: it gives NaN or "
                    "infinite weights. No weight of this layer was changed"
                )
            if self._pristine is None:
                self._pristine = weight.data.clone()
            weight.data.copy_(merged)
        self.merged_adapters = [*self.merged_adapters, *names]

    def unmerge(self) -> None:
        if not self.merged:
            warnings.warn("Already unmerged. Nothing to do.", stacklevel=2)
            return
        if self._pristine is not None:
            self.get_base_layer().weight.data.copy_(self._pristine)  # type: ignore[operator]
        self._pristine = None
        self.merged_adapters = []

    def __repr__(self) -> str:
        return "craft." + super().__repr__()

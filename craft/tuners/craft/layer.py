"""`CraftLinear`: a linear module with CRAFT's change of its weight next to it, merged into it, or switched off.

    y = W x + b  +  s U2 M_l U3ᵀ x        for each active adapter; M_l from the adapter's stack (`craft.tuners.craft.stack`)

A layer holds nothing that trains. It knows of which stacks it is a slice, and which outputs belong to each slice (a fused
module holds several). The base layer is called as it is, so it may be quantized or offloaded.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from peft.utils.quantization_utils import resolve_quantization_backend
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from craft.models.projections import Located
from craft.tuners.craft.adapter import CraftAdapter
from craft.tuners.craft.bypass import HybridLinear, bypass, cheapest
from craft.tuners.craft.stack import Stack


class Rows(NamedTuple):
    """The rows of a batch that have an adapter of their own.

    Attributes:
        total: how many rows there are.
        indices: adapter -> its rows.
    """

    total: int
    indices: dict[str, Tensor]

    @classmethod
    def of(cls, names: list[str], device: torch.device) -> Rows:
        """Groups rows by the names of their adapters; "__base__" for none. Placed once, so no layer waits for its device."""
        chosen = {name: [row for row, adapter in enumerate(names) if adapter == name] for name in names if name != "__base__"}
        return cls(len(names), {name: torch.tensor(rows, device=device) for name, rows in chosen.items()})


@dataclass(eq=False)
class Slice:
    """One stack's share of a layer: the layer's place in the stack and in the module's outputs.

    `recomputes` is set while a reentrant checkpoint runs the layer without gradients; the recomputation in the backward pass
    then computes this layer's core again, because the graph that all layers share allows one backward pass.
    """

    adapter: CraftAdapter
    stack: Stack
    index: int
    place: Located
    recomputes: bool = False

    def core(self, dtype: torch.dtype, device: torch.device, training: bool) -> Tensor:
        stack = self.stack
        if not torch.compiler.is_compiling():
            in_backward = torch._C._current_graph_task_id() != -1
            if in_backward:
                stack.check_masks()
            if stack.cores is None or (not in_backward and stack.is_stale(self.adapter.js(stack))):
                stack.refresh(self.adapter.js(stack), dtype, training)
            if stack.has_grad and not torch.is_grad_enabled():
                self.recomputes = True
            elif in_backward and self.recomputes:
                return stack.offsets(self.adapter.js(stack), stack.masks, self.index, dtype)[0].to(device, dtype)
            else:
                self.recomputes = False
        assert stack.cores is not None
        return _placed(stack.cores[self.index], dtype, device)

    def inner(self, dtype: torch.dtype, device: torch.device, training: bool) -> tuple[Tensor, ...]:
        """Returns the matrices between x and s U2: U3ᵀ and M, or their product M U3ᵀ if no gradient is wanted."""
        core, folded = self.core(dtype, device, training), self.stack.folded()
        if folded is not None:
            return (_placed(folded[self.index], dtype, device),)
        return self.stack.cast(dtype, device)[0], core


def _placed(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return tensor if tensor.dtype == dtype and tensor.device == device else tensor.to(device, dtype)


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
        self.craft_rows: Rows | None = None
        self.merged_adapters: list[str] = []
        self._disable_adapters = False
        self._pristine: Tensor | None = None
        self.quantization_backend = resolve_quantization_backend(base_layer, get_apply_tensor_subclass=lambda: None)

    def update_layer(self, adapter_name: str, slices: list[Slice]) -> None:
        """Puts an adapter on the layer: a slice for each projection that the module holds."""
        self.in_features, self.out_features = slices[0].place.inputs, slices[0].place.outputs
        self.craft_J[adapter_name] = slices[0].adapter
        self.craft_slices[adapter_name] = slices

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.disable_adapters or self.merged:
            if self.merged and self.disable_adapters:
                self.unmerge()
            return self.base_layer(x, *args, **kwargs)
        if self.craft_rows is not None:
            return self._forward_by_row(x, self.base_layer(x, *args, **kwargs))
        slices = [piece for name in self.active_adapters for piece in self.craft_slices.get(name, ())]
        if len(slices) == 1 and not args and not kwargs:
            adapted = self._through_weight(x, slices[0])
            if adapted is not None:
                return adapted
        y = self.base_layer(x, *args, **kwargs)
        for piece in slices:
            y = self._bypass(x, y, piece)
        return y

    def _bypass(self, x: Tensor, y: Tensor, piece: Slice) -> Tensor:
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        u2s = piece.stack.cast(dtype, x.device)[1]
        inner = piece.inner(dtype, x.device, self.training)
        x = x.to(dtype)
        if piece.place.is_whole:
            return bypass(x, y, inner, u2s)
        start, stop = piece.place.start, piece.place.stop
        part = bypass(x, y[..., start:stop], inner, u2s)
        return torch.cat([y[..., :start], part, y[..., stop:]], dim=-1)

    def _through_weight(self, x: Tensor, piece: Slice) -> Tensor | None:
        """Computes the output in the hybrid form if that is exact and cheaper; returns None otherwise."""
        base = self.base_layer
        if type(base) is not nn.Linear or base._forward_hooks or base._forward_pre_hooks or hasattr(base, "_hf_hook"):
            return None
        weight = base.weight
        if base.bias is not None and base.bias.requires_grad:
            return None
        # A narrower W would round the change away; under autocast W is cast first.
        if x.dtype != weight.dtype or weight.dtype not in (torch.float32, torch.float64) or weight.requires_grad:
            return None
        if torch.is_autocast_enabled(x.device.type) or not piece.place.is_whole:
            return None
        learns = torch.is_grad_enabled()
        d_out, d_in = weight.shape
        _, r2, r3 = piece.stack.ranks
        form = cheapest(x.numel() // d_in, d_out, d_in, r2, r3, training=learns)
        if form == "bypass":
            return None
        u3t, u2s = piece.stack.cast(x.dtype, x.device)
        core = piece.core(x.dtype, x.device, self.training)
        if learns and (core.requires_grad or x.requires_grad):
            return HybridLinear.apply(x, weight, base.bias, core, u3t, u2s, form == "dense")
        folded = piece.stack.folded()
        change = core @ u3t if folded is None else _placed(folded[piece.index], x.dtype, x.device)
        return F.linear(x, torch.addmm(weight, u2s.T, change), base.bias)

    def _forward_by_row(self, x: Tensor, y: Tensor) -> Tensor:
        """Adds to each row of the batch the change of its own adapter."""
        assert self.craft_rows is not None
        if len(x) != self.craft_rows.total:
            raise ValueError(
                "Length of `adapter_names` should be the same as the number of inputs, but got "
                f"{self.craft_rows.total} and {len(x)} respectively. A model may also join rows and tokens before a layer."
            )
        for name, rows in self.craft_rows.indices.items():
            rows = rows.to(x.device)
            for piece in self.craft_slices.get(name, ()):
                y = y.index_copy(0, rows, self._bypass(x[rows], y[rows], piece))
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

    def _base_parameter(self) -> Tensor:
        weight = self.get_base_layer().weight
        assert isinstance(weight, Tensor)
        return weight

    def supports_lora_conversion(self, adapter_name: str = "default") -> bool:
        return self.quantization_backend is None

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Adds the adapters' change to the base weight; `unmerge` restores its exact bits.

        Args:
            safe_merge: refuse if the sum is not finite, before anything is changed.
            adapter_names: the adapters to merge; the active ones if absent.

        Raises:
            ValueError: the base is quantized, or `safe_merge` found NaN or infinity.
        """
        names = [name for name in check_adapters_to_merge(self, adapter_names) if name in self.craft_slices]
        if not names:
            return
        weight = self._base_parameter()
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
        """Puts back the weight as it was before any adapter was merged."""
        if not self.merged:
            warnings.warn("Already unmerged. Nothing to do.", stacklevel=2)
            return
        if self._pristine is not None:
            self._base_parameter().data.copy_(self._pristine)
        self._pristine = None
        self.merged_adapters = []

    def __repr__(self) -> str:
        return "craft." + super().__repr__()

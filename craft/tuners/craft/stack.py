"""`Stack`: one projection of all layers under CRAFT, its frozen factors and the cores that a forward pass uses.

::

    CraftAdapter.stacks["q"]: Stack               G, U1, U2, U3                        not in the state dict
        .refresh() -> .cores[l]                   M_l of every layer, once a forward   read by the layers

`craft.tuners.craft.adapter` holds the trainable J of the stacks. The factors are never narrower than float32.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from craft.factors.hosvd import TuckerFactors
from craft.models.compute import no_autocast
from craft.models.projections import Located
from craft.ranks import Ranks
from craft.tuners.craft.bypass import core_offsets, dropout_masks, weight_delta
from craft.tuners.craft.config import CraftConfig

Cores = tuple[Tensor, ...]


class Stack:
    """One projection of all layers: the frozen factors, and the cores M that belong to the present J.

    Attributes:
        name: the projection's name, unique in the adapter.
        layers: the place of each layer's weight.
        ranks: (r1, r2, r3), resolved.
        factors: None on the meta device, and until they are loaded from an adapter that carries them.
        weights_hash: SHA-256 of the stacked weights; None on the meta device.
        device: where factors and cores live.
        cores: M of each layer, in the dtype of the layers' products; None before the first forward.
    """

    def __init__(self, name: str, layers: Sequence[Located], ranks: Ranks, config: CraftConfig, device: torch.device) -> None:
        self.name = name
        self.device = device
        self.layers = list(layers)
        self.ranks = ranks
        self.scaling = config.scaling
        self.dropout = config.dropout
        self.factors: TuckerFactors | None = None
        self.weights_hash: str | None = None
        self._cast: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}
        self._turned: dict[torch.dtype, Tensor] = {}
        self._awaited: list[weakref.ref[_Awaited]] = []
        self.drop()

    @property
    def shape(self) -> Ranks:
        """(L, d_out, d_in)."""
        return (len(self.layers), *self.layers[0].shape)

    def set_factors(self, factors: TuckerFactors) -> None:
        """Gives the stack its factors, which a forward pass needs."""
        self.factors = replace(factors, core=factors.core.contiguous(), u1=factors.u1.contiguous())
        self._cast.clear()
        self._turned.clear()
        self.drop()

    def move(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        if self.factors is not None and (self.factors.core.device != device or self.factors.core.dtype != dtype):
            self.set_factors(self.factors.to(device, dtype))

    def drop(self) -> None:
        """Drops what was derived from J; the next forward pass computes it again."""
        self.cores: Cores | None = None
        self._folded: Cores | None = None
        self.masks: tuple[Tensor, ...] | None = None
        self.has_grad = False
        self._stamp: tuple[Any, ...] = ()

    def cast(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns U3ᵀ (r3, d_in) and s U2ᵀ (r2, d_out) in the dtype of a layer's products."""
        if (dtype, device) not in self._cast:
            factors = self.ready()
            with torch.inference_mode(False), torch.no_grad():
                pair = factors.u3.T, factors.u2.T * self.scaling
                self._cast[dtype, device] = tuple(part.to(device, dtype).contiguous() for part in pair)  # type: ignore[assignment]
        return self._cast[dtype, device]

    def ready(self) -> TuckerFactors:
        if self.factors is None:
            raise ValueError(
                f"CRAFT's factors of projection {self.name!r} are not there: the model was built on the meta device, where "
                "only shapes are known. Load the base model with its weights before putting the adapter on it."
            )
        return self.factors

    def turned(self, dtype: torch.dtype) -> Tensor:
        """Returns G as (r2, r1, r3), for products in `dtype`."""
        if dtype not in self._turned:
            with torch.inference_mode(False), torch.no_grad():
                self._turned[dtype] = self.ready().core.transpose(0, 1).to(dtype).contiguous()
        return self._turned[dtype]

    def offsets(
        self,
        js: Sequence[Tensor],
        masks: Sequence[Tensor] | None = None,
        layer: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Computes M of all layers, or of one: (L or 1, r2, r3), differentiable in `js`.

        Args:
            dtype: of the products; the factors' own if None. Of the narrow dtypes only bfloat16 is used, because float16 lacks
                the range for D.
        """
        factors = self.ready()
        if masks is not None:
            js = [j * mask for j, mask in zip(js, masks, strict=True)]
        turned = self.turned(dtype if dtype == torch.bfloat16 else factors.core.dtype)
        u1 = factors.u1 if layer is None else factors.u1[layer : layer + 1]
        with no_autocast(u1.device):
            return core_offsets(u1, turned, *js)

    def delta(self, js: Sequence[Tensor], layer: int) -> Tensor:
        """Computes s U2 M_l U3ᵀ, (d_out, d_in): the change of one layer's weight."""
        factors = self.ready()
        return weight_delta(self.offsets(js, layer=layer)[0], factors.u2, factors.u3, self.scaling)

    def is_stale(self, js: Sequence[Tensor]) -> bool:
        """Says whether `cores` belong to different J, or lack the graph that is wanted now."""
        wants_grad = torch.is_grad_enabled() and any(j.requires_grad for j in js)
        return self.cores is None or (wants_grad and not self.has_grad) or not _same(self._stamp, _stamp(js))

    def refresh(self, js: Sequence[Tensor], dtype: torch.dtype, training: bool) -> None:
        """Computes the cores of all layers, with new dropout masks; does nothing if nothing has changed."""
        wants_grad = torch.is_grad_enabled() and any(j.requires_grad for j in js)
        drops = training and self.dropout > 0
        compiling = torch.compiler.is_compiling()
        changed = wants_grad or drops or self.has_grad or self.masks is not None or self.is_stale(js)
        if not compiling and not changed and self.cores and self.cores[0].dtype == dtype:
            return
        self.masks = dropout_masks(self.ranks, self.dropout, js[0]) if drops else None
        if wants_grad or compiling:
            cores = self.offsets(js, self.masks, dtype=dtype).to(dtype)
            if drops and not compiling:
                self._await_backward(cores)
            self.cores = cores.unbind()
        else:
            with torch.inference_mode(False), torch.no_grad():
                self.cores = self.offsets(js, self.masks, dtype=dtype).to(dtype).unbind()
        self._folded = None
        self.has_grad = wants_grad
        self._stamp = () if compiling else _stamp(js)

    def folded(self) -> Cores | None:
        """Returns M U3ᵀ of each layer, (r2, d_in), stored as long as the cores, which saves every layer a product; None if
        the cores have a graph, or need one."""
        if self.cores is None or self.has_grad or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        if self._folded is None:
            u3t = self.ready().u3.T
            with torch.inference_mode(False), torch.no_grad(), no_autocast(u3t.device):
                self._folded = tuple((core.to(u3t.dtype) @ u3t).to(core.dtype) for core in self.cores)
        return self._folded

    def _await_backward(self, cores: Tensor) -> None:
        awaited = _Awaited()
        self._awaited = [*self._waiting(), weakref.ref(awaited)]
        # Only the graph holds it, so it disappears once its backward pass has run or the graph was dropped.
        cores.register_hook(awaited.done)

    def check_masks(self) -> None:
        """Checks, when a checkpoint runs a layer again, that it meets the masks that it had.

        Raises:
            RuntimeError: dropout masks of several forward passes are waiting for their backward pass. A reentrant checkpoint
                keeps no graph that would show this; there the caller must run backward after each forward pass.
        """
        if self.masks is not None and len(self._waiting()) > 1:
            raise RuntimeError(
                f"CRAFT's projection {self.name!r} was run forward more than once before this backward pass, with dropout "
                f"{self.dropout} under gradient checkpointing: the layers cannot be run again with the masks they had. Call "
                "backward after each forward pass (gradient accumulation does), or train with dropout=0 or without gradient "
                "checkpointing."
            )

    def _waiting(self) -> list[weakref.ref[_Awaited]]:
        return [reference for reference in self._awaited if (awaited := reference()) is not None and not awaited.is_done]

    def __getstate__(self) -> dict[str, Any]:
        derived = {"cores": None, "_folded": None, "masks": None, "has_grad": False, "_stamp": ()}
        return {**self.__dict__, **derived, "_cast": {}, "_turned": {}, "_awaited": []}


class _Awaited:
    """Masks whose backward pass has not run yet."""

    is_done = False

    def done(self, gradient: Tensor) -> None:
        self.is_done = True


def _stamp(js: Sequence[Tensor]) -> tuple[Any, ...]:
    return tuple((j, 0 if j.is_inference() else j._version) for j in js)


def _same(old: tuple[Any, ...], new: tuple[Any, ...]) -> bool:
    return len(old) == len(new) and all(a is b and m == n for (a, m), (b, n) in zip(old, new, strict=True))

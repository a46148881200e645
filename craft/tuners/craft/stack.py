"""`CraftAdapter`: one CRAFT adapter, its trainable J; `Stack`: one projection of all layers, its frozen factors.

    CraftModel.craft_J["default"]: CraftAdapter     parameters q_J1 q_J2 q_J3 v_J1 ...         in the state dict
      .stacks["q"]: Stack                           buffers core u1 u2 u3                      not in the state dict
        .prepare() -> .cores[l]                     M_l of every layer, once a forward pass    read by the layers

Neither is ever narrower than float32: only a model cast to float64 widens them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from craft.factors.hosvd import TuckerFactors
from craft.models.compute import no_autocast
from craft.models.projections import Located
from craft.ranks import Ranks
from craft.tuners.craft.config import CraftConfig
from craft.tuners.craft.equation import core_offsets, dropout_masks

PARTS = ("core", "u1", "u2", "u3")


class Stack(nn.Module):
    """One projection of all layers.

    Attributes:
        weights_hash: None on the meta device.
        squared_norm: ‖W‖² of the stack; NaN where the factors came without their singular values.
        cores: M of each layer, in the dtype of the layers' products; None before the first forward pass.
        masks: dropout masks of J1, J2, J3 that are in `cores`.
    """

    core: Tensor | None
    u1: Tensor
    u2: Tensor
    u3: Tensor

    def __init__(self, name: str, layers: Sequence[Located], ranks: Ranks, config: CraftConfig, device: torch.device) -> None:
        super().__init__()
        self.name, self.layers, self.ranks = name, list(layers), ranks
        self.scaling, self.dropout = config.scaling, config.dropout
        self.weights_hash: str | None = None
        self.squared_norm = math.nan
        self._placed = device
        for part in PARTS:  # None on the meta device, and until they are loaded from an adapter that carries them
            self.register_buffer(part, None, persistent=False)
        self.drop()

    @property
    def shape(self) -> Ranks:
        """(L, d_out, d_in)."""
        return (len(self.layers), *self.layers[0].shape)

    @property
    def device(self) -> torch.device:
        return self._placed if self.core is None else self.core.device

    @property
    def factors(self) -> TuckerFactors | None:
        return None if self.core is None else TuckerFactors(self.core, self.u1, self.u2, self.u3)

    def set_factors(self, factors: TuckerFactors) -> None:
        """Gives the stack its factors, which a forward pass needs."""
        for part in PARTS:
            setattr(self, part, getattr(factors, part).contiguous())
        self.squared_norm = factors.squared_norm
        self.drop()

    def drop(self) -> None:
        """Drops what is derived from J and factors; the next forward pass computes it again."""
        self.cores: tuple[Tensor, ...] | None = None
        self.masks: tuple[Tensor, ...] | None = None
        self._made_with: list[tuple[Tensor, int]] = []
        self._casts: dict[Any, Tensor] = {}

    def ready(self) -> TuckerFactors:
        if (factors := self.factors) is None:
            raise ValueError(
                f"CRAFT's factors of projection {self.name!r} are not there: the model was built on the meta device, where "
                "only shapes are known. Load the base model with its weights before putting the adapter on it."
            )
        return factors

    def cast(self, part: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns U3ᵀ (`u3t`), s U2ᵀ (`u2s`) or G as (r2, r1, r3) (`turned`) in the dtype of products, cast once."""
        if (part, dtype, device) not in self._casts:
            factors = self.ready()
            with torch.inference_mode(False), torch.no_grad():
                match part:
                    case "u3t":
                        tensor = factors.u3.T
                    case "u2s":
                        tensor = factors.u2.T * self.scaling
                    case _:
                        tensor = factors.core.transpose(0, 1)
                self._casts[part, dtype, device] = tensor.to(device, dtype).contiguous()
        return self._casts[part, dtype, device]

    def offsets(
        self,
        js: Sequence[Tensor],
        masks: Sequence[Tensor] | None = None,
        layer: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Computes M of all layers, or of one: (L or 1, r2, r3), differentiable in `js`.

        Of the narrow dtypes only bfloat16 is used for the products, because float16 lacks the range for D.
        """
        factors = self.ready()
        if masks is not None:
            js = [j * mask for j, mask in zip(js, masks, strict=True)]
        turned = self.cast("turned", dtype if dtype == torch.bfloat16 else factors.core.dtype, self.device)
        u1 = factors.u1 if layer is None else factors.u1[layer : layer + 1]
        with no_autocast(u1.device):
            return core_offsets(u1, turned, *js)

    def delta(self, js: Sequence[Tensor], layer: int) -> Tensor:
        """Computes s U2 M_l U3ᵀ, (d_out, d_in): the change of one layer's weight."""
        factors = self.ready()
        return (self.scaling * factors.u2) @ self.offsets(js, layer=layer)[0] @ factors.u3.T

    def prepare(self, js: Sequence[Tensor], dtype: torch.dtype, training: bool) -> None:
        """Computes the cores of all layers, with new dropout masks; keeps them in evaluation while J stays as it is."""
        drops, learns = training and self.dropout > 0, torch.is_grad_enabled() and any(j.requires_grad for j in js)
        compiles = torch.compiler.is_compiling()
        if not (drops or learns or compiles) and self.is_current(js) and self.masks is None:
            assert self.cores is not None
            if self.cores[0].dtype == dtype and not self.cores[0].requires_grad:
                return
        self.masks = dropout_masks(self.ranks, self.dropout, js[0]) if drops else None
        if learns or compiles:
            self.cores = self.offsets(js, self.masks, dtype=dtype).to(dtype).unbind()
        else:
            with torch.inference_mode(False), torch.no_grad():
                self.cores = self.offsets(js, self.masks, dtype=dtype).to(dtype).unbind()
        self._made_with = [] if compiles else _versions(js)

    def is_current(self, js: Sequence[Tensor]) -> bool:
        """Returns whether `cores` are those of the present J, with a graph if one is wanted."""
        if self.cores is None:
            return False
        lacks_graph = torch.is_grad_enabled() and any(j.requires_grad for j in js) and not self.cores[0].requires_grad
        same = zip(self._made_with, _versions(js), strict=False)
        return not lacks_graph and bool(self._made_with) and all(a is b and m == n for (a, m), (b, n) in same)

    def core_of(self, index: int, js: Sequence[Tensor], dtype: torch.dtype, device: torch.device, training: bool) -> Tensor:
        """Returns M of one layer. A call that went past the hook of the whole model computes the cores here.

        Where a checkpoint runs a layer again, in a backward pass, it meets the cores that it had.
        """
        if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() == -1 and not self.is_current(js):
            self.prepare(js, dtype, training)
        assert self.cores is not None
        core = self.cores[index]
        return core if core.dtype == dtype and core.device == device else core.to(device, dtype)

    def extra_repr(self) -> str:
        return f"{self.name}: {self.shape} at ranks {self.ranks}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cores": None, "masks": None, "_made_with": [], "_casts": {}}


def _versions(js: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    return [(j, 0 if j.is_inference() else j._version) for j in js]


class CraftAdapter(nn.Module):
    """J1, J2, J3 of every stack of one adapter, with the stacks. J starts at I + epsilon N(0, 1), drawn on the CPU."""

    def __init__(self, stacks: Sequence[Stack], device: torch.device, epsilon: float = 1e-3, seed: int | None = None) -> None:
        super().__init__()
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for stack in stacks:
            self.add_module(f"{stack.name}_stack", stack)
            for mode, rank in enumerate(stack.ranks, start=1):
                if device.type == "meta":
                    start = torch.empty(rank, rank, dtype=torch.float32, device=device)
                else:
                    noise = torch.randn(rank, rank, dtype=torch.float32, device="cpu", generator=generator)
                    start = (torch.eye(rank) + epsilon * noise).to(device)
                self.register_parameter(f"{stack.name}_J{mode}", nn.Parameter(start))

    @property
    def stacks(self) -> dict[str, Stack]:
        return {stack.name: stack for stack in self.children() if isinstance(stack, Stack)}

    def js(self, stack: Stack) -> list[Tensor]:
        """Returns (J1, J2, J3) of one stack."""
        return [self._parameters[f"{stack.name}_J{mode}"] for mode in (1, 2, 3)]  # type: ignore[misc]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CraftAdapter:
        def wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrow = moved.is_floating_point() and torch.finfo(moved.dtype).bits < 32
            return tensor.to(moved.device, torch.float32) if narrow else moved

        super()._apply(wide, recurse)
        for stack in self.stacks.values():
            stack.drop()
        return self

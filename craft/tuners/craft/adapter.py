"""`CraftAdapter`: one CRAFT adapter, its trainable J and its frozen stacks.

::

    CraftModel.craft_J["default"]: CraftAdapter     parameters q_J1 q_J2 q_J3 v_J1 ...   in the state dict
      .stacks["q"]: Stack                           `craft.tuners.craft.stack`           not in the state dict

J and the factors are never narrower than float32: casting the model to half precision leaves them as they are, moving it to
another device takes them along, and only a model cast to float64 widens them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from craft.tuners.craft.stack import Stack


class CraftAdapter(nn.Module):
    """J1, J2, J3 of every stack of one adapter, with the stacks.

    Args:
        stacks: the adapter's projections, in order.
        device: of J; on the meta device they are shapes without values.
        epsilon, seed: J starts at I + epsilon N(0, 1), drawn on the CPU in the order of the stacks.
    """

    def __init__(self, stacks: Sequence[Stack], device: torch.device, epsilon: float = 1e-3, seed: int | None = None) -> None:
        super().__init__()
        self.stacks = {stack.name: stack for stack in stacks}
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for stack in stacks:
            for mode, rank in enumerate(stack.ranks, start=1):
                if device.type == "meta":
                    start = torch.empty(rank, rank, dtype=torch.float32, device=device)
                else:
                    noise = torch.randn(rank, rank, dtype=torch.float32, device="cpu", generator=generator)
                    start = (torch.eye(rank) + epsilon * noise).to(device)
                self.register_parameter(f"{stack.name}_J{mode}", nn.Parameter(start))

    def js(self, stack: Stack) -> list[Tensor]:
        """Returns (J1, J2, J3) of one stack."""
        return [self._parameters[f"{stack.name}_J{mode}"] for mode in (1, 2, 3)]  # type: ignore[misc]

    def drop(self) -> None:
        for stack in self.stacks.values():
            stack.drop()

    def train(self, mode: bool = True) -> CraftAdapter:
        self.drop()
        return super().train(mode)

    def move(self, device: torch.device) -> None:
        """Moves J and factors to a device, and casts J of a narrower dtype back to float32."""
        for parameter in self.parameters():
            if not parameter.is_meta:
                wide = torch.promote_types(parameter.dtype, torch.float32)
                parameter.data = parameter.data.to(device, wide)
        for stack in self.stacks.values():
            stack.move(device, stack.factors.core.dtype if stack.factors else torch.float32)
        self.drop()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CraftAdapter:
        def wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrow = moved.is_floating_point() and torch.finfo(moved.dtype).bits < 32
            return tensor.to(moved.device, torch.float32) if narrow else moved

        super()._apply(wide, recurse)
        for stack in self.stacks.values():
            if stack.factors is not None:
                # `fn` is tried on an empty tensor: it may return uninitialized memory (to_empty), and factors must stay.
                probe = wide(torch.empty(0, dtype=stack.factors.core.dtype, device=stack.factors.core.device))
                if probe.device.type != "meta":
                    stack.move(probe.device, probe.dtype)
        self.drop()
        return self

    def extra_repr(self) -> str:
        return ", ".join(f"{stack.name}: {stack.shape} at ranks {stack.ranks}" for stack in self.stacks.values())

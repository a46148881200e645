"""`GaLoreAdam`: AdamW that keeps its moments of large gradients in a small subspace (Zhao et al. 2024, arXiv 2403.03507).

For a weight W (m x n, m <= n; transposed otherwise) with gradient G::

    P ← first r left singular vectors of G, every T steps       R = Pᵀ G  (r x n)
    N = Adam(R)                                                 W ← W - η α P N

The weight trains whole, at full rank over time. GaLore saves memory: it keeps two moments of r x n and P (m x r) instead of two
moments of m x n. Parameters that are not projected take plain AdamW steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from craft.processes import gather_parts, part_of


class GaLoreAdam(torch.optim.AdamW):
    """Args:
    groups: parameter groups with `lr` and `weight_decay`.
    projected: the matrices among them whose gradients are projected.
    rank: r, at most the smaller side of every projected matrix.
    interval: T, the optimizer steps from one subspace to the next.
    scale: α.
    """

    def __init__(
        self, groups: list[dict[str, Any]], projected: Iterable[nn.Parameter], *, rank: int, interval: int, scale: float
    ) -> None:
        super().__init__(groups)
        self.projected = {id(weight) for weight in projected}
        self.rank, self.interval, self.scale = rank, interval, scale

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        aside: list[tuple[nn.Parameter, Tensor, dict[str, Any]]] = []
        for group in self.param_groups:
            for weight in group["params"]:
                if id(weight) in self.projected and weight.grad is not None:
                    aside.append((weight, weight.grad, group))
                    weight.grad = None
        value = super().step(closure)
        for weight, gradient, group in aside:
            self._step_projected(weight, gather_parts(gradient).float(), group)
            weight.grad = gradient
        return value

    @torch.no_grad()
    def _step_projected(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        wide = gradient.shape[0] <= gradient.shape[1]
        gradient = gradient if wide else gradient.T
        state = self.state[weight]
        # AdamW stores `step` as a tensor and expects it when a state is loaded: name and type stay.
        steps = int(state.get("step", 0))
        if steps % self.interval == 0:
            state["projector"] = torch.linalg.svd(gradient, full_matrices=False)[0][:, : self.rank].contiguous()
        projector = state["projector"].float()
        small = projector.T @ gradient
        if steps == 0:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(small), torch.zeros_like(small)
        state["step"] = torch.tensor(float(steps + 1))
        beta1, beta2 = group["betas"]
        first = state["exp_avg"].lerp_(small, 1 - beta1)
        second = state["exp_avg_sq"].mul_(beta2).addcmul_(small, small, value=1 - beta2)
        corrected = first / (1 - beta1 ** (steps + 1))
        direction = corrected / ((second / (1 - beta2 ** (steps + 1))).sqrt() + group["eps"])
        update = self.scale * projector @ direction
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(part_of((update if wide else update.T).to(weight.dtype), weight), alpha=-group["lr"])

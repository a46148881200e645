"""`AdaLoraAdam`: AdamW that also does AdaLoRA's part of every step (Zhang et al. 2023, sections 3.2 and 3.3).

    before the step    gradients of γ · mean ‖PᵀP - I‖_F, ‖QQᵀ - I‖_F are added
    after the step     I ← β1 I + (1 - β1) |w ∂w|,  Ū ← β2 Ū + (1 - β2) ||w ∂w| - I|
                       score of a λ: its I·Ū + the mean I·Ū of its column of P + the same of its row of Q
                       the λ with the lowest scores are set to 0

The number of λ that stay, the budget, falls along PEFT's cubic schedule from all triplets to the target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import AdaLoraConfig
from torch import Tensor, nn


class AdaLoraAdam(torch.optim.AdamW):
    """Args:
    model: the PEFT model whose adapter it allocates.
    groups: parameter groups with `lr` and `weight_decay`.
    """

    def __init__(self, model: Any, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups)
        config = next(iter(model.peft_config.values()))
        assert isinstance(config, AdaLoraConfig)
        self.config, self.allocator = config, model.base_model.rankallocator
        self.triplets: list[tuple[nn.Parameter, nn.Parameter, nn.Parameter]] = [
            (module.lora_E[name], module.lora_A[name], module.lora_B[name])
            for module in model.modules()
            for name in getattr(module, "lora_E", {})
        ]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self._add_penalty()
        value = super().step(closure)
        self._allocate()
        return value

    def _add_penalty(self) -> None:
        sides = [(weight, transposed) for _, a, b in self.triplets for weight, transposed in ((a, False), (b, True))]
        with torch.no_grad():
            for weight, transposed in sides:
                if weight.grad is None:
                    continue
                rows = weight.T if transposed else weight
                residual = rows @ rows.T - torch.eye(len(rows), device=rows.device, dtype=rows.dtype)
                slope = 2 * (residual @ rows) / residual.norm().clamp_min(1e-12)
                weight.grad.add_(slope.T if transposed else slope, alpha=self.config.orth_reg_weight / len(sides))

    @torch.no_grad()
    def _allocate(self) -> None:
        clock = self._state_of(self.triplets[0][0])
        clock["allocations"] = step = int(clock.get("allocations", 0)) + 1
        total = self.config.total_step
        assert total is not None
        last = total - self.config.tfinal
        if step <= last:
            for weight in (weight for triplet in self.triplets for weight in triplet):
                self._weigh(weight)
            budget, allocates = self.allocator.budget_schedule(step)
            if step == last:
                budget, allocates = self.allocator.target_bgt, True
            if allocates:
                self._keep(budget)
        else:
            for value, _, _ in self.triplets:
                mask = self._state_of(value).get("mask")
                if mask is not None:
                    value.mul_(mask)

    def _weigh(self, weight: nn.Parameter) -> None:
        if weight.grad is None:
            return
        state = self._state_of(weight)
        sensitivity = (weight * weight.grad).abs()
        if "importance" not in state:
            state["importance"], state["uncertainty"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["importance"].lerp_(sensitivity, 1 - self.config.beta1)
        state["uncertainty"].lerp_((sensitivity - state["importance"]).abs(), 1 - self.config.beta2)

    def _keep(self, budget: int) -> None:
        scores = [self._score(triplet) for triplet in self.triplets]
        order = torch.cat(scores).argsort(descending=True, stable=True)
        masks = torch.zeros(len(order), device=order.device)
        masks[order[:budget]] = 1
        for (value, _, _), mask in zip(self.triplets, masks.split([len(score) for score in scores]), strict=True):
            self._state_of(value)["mask"] = mask.view_as(value)
            value.mul_(mask.view_as(value))

    def _score(self, triplet: tuple[nn.Parameter, nn.Parameter, nn.Parameter]) -> Tensor:
        value, a, b = (self._element_score(weight) for weight in triplet)
        return value.view(-1) + a.mean(dim=1) + b.mean(dim=0)

    def _element_score(self, weight: nn.Parameter) -> Tensor:
        state = self._state_of(weight)
        if "importance" not in state:
            return torch.zeros_like(weight)
        return state["importance"] * state["uncertainty"]

    def _state_of(self, weight: nn.Parameter) -> dict[str, Any]:
        state: dict[str, Any] = self.state[weight]
        return state

"""AdamW that does a method's part of every step: AdaLoRA's (arXiv 2303.10512, 3.2 and 3.3) and GaLore's (arXiv 2403.03507).

AdaLoRA   before a step: gradients of γ · mean ‖PᵀP - I‖_F, ‖QQᵀ - I‖_F are added
          after it:      I ← β1 I + (1 - β1) |w ∂w|,  Ū ← β2 Ū + (1 - β2) ||w ∂w| - I|;  the λ of the lowest scores are 0
GaLore    P ← first r left singular vectors of the gradient G (m x n, m <= n), every T steps
          N = Adam(Pᵀ G)         W ← W - η α P N
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from peft import AdaLoraConfig
from torch import Tensor, nn

from craft.processes import gather_parts, part_of


class AdaLoraAdam(torch.optim.AdamW):
    """AdamW that adds AdaLoRA's penalty to the gradients and prunes ranks after each step."""

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
        clock = self.state[self.triplets[0][0]]
        clock["allocations"] = step = int(clock.get("allocations", 0)) + 1
        total = self.config.total_step
        assert total is not None
        last = total - self.config.tfinal
        if step <= last:
            for weight in (weight for triplet in self.triplets for weight in triplet):
                if weight.grad is None:
                    continue
                state, sensitivity = self.state[weight], (weight * weight.grad).abs()
                if "importance" not in state:
                    state["importance"], state["uncertainty"] = torch.zeros_like(weight), torch.zeros_like(weight)
                state["importance"].lerp_(sensitivity, 1 - self.config.beta1)
                state["uncertainty"].lerp_((sensitivity - state["importance"]).abs(), 1 - self.config.beta2)
            budget, allocates = self.allocator.budget_schedule(step)
            if step == last:
                budget, allocates = self.allocator.target_bgt, True
            if allocates:
                self._keep(budget)
        else:
            for value, _, _ in self.triplets:
                mask = self.state[value].get("mask")
                if mask is not None:
                    value.mul_(mask)

    def _keep(self, budget: int) -> None:
        scores = [self._score(triplet) for triplet in self.triplets]
        order = torch.cat(scores).argsort(descending=True, stable=True)
        masks = torch.zeros(len(order), device=order.device)
        masks[order[:budget]] = 1
        for (value, _, _), mask in zip(self.triplets, masks.split([len(score) for score in scores]), strict=True):
            self.state[value]["mask"] = mask.view_as(value)
            value.mul_(mask.view_as(value))

    def _score(self, triplet: tuple[nn.Parameter, nn.Parameter, nn.Parameter]) -> Tensor:
        states = [self.state[weight] for weight in triplet]
        value, a, b = (
            state["importance"] * state["uncertainty"] if "importance" in state else torch.zeros_like(weight)
            for weight, state in zip(triplet, states, strict=True)
        )
        return value.view(-1) + a.mean(dim=1) + b.mean(dim=0)


class GaLoreAdam(torch.optim.AdamW):
    """AdamW that steps in a subspace of rank r for the `projected` matrices, a new one every T (`interval`) steps, times α."""

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

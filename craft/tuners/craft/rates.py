"""Learning rates of J that carry over from rank to rank.

AdamW moves every entry of an r x r matrix by about the learning rate, so the matrix moves by up to r times that, and the best
rate falls like 1 / r. So J2 and J3 learn at the rate times `reference` / r, and J1, whose rank is nearly always the number of
layers, at the rate itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from craft.models.compute import adamw
from craft.tuners.craft.stack import CraftAdapter


def scale_by_rank(groups: list[dict[str, Any]], adapter: CraftAdapter, reference: float) -> list[dict[str, Any]]:
    """Divides an optimizer's groups so that J2 and J3 learn at `reference` / their rank times the rate of their group."""
    factors = {j: reference / len(j) for stack in adapter.stacks.values() for j in adapter.js(stack)[1:]}
    by_rate: list[dict[str, Any]] = []
    for group in groups:
        rates: dict[float, list[nn.Parameter]] = {}
        for weight in group["params"]:
            rates.setdefault(factors.get(weight, 1.0), []).append(weight)
        # J1 comes first, so that the logged rate is the requested one.
        ordered = sorted(rates.items(), key=lambda item: item[0] != 1.0)
        by_rate += [group | {"params": weights, "lr": group["lr"] * rate} for rate, weights in ordered]
    return by_rate


def rank_scaled_adamw(
    model: nn.Module,
    learning_rate: float = 3e-3,
    head_learning_rate: float = 1e-3,
    weight_decay: float = 0.0,
    adapter_name: str = "default",
    reference: int = 64,
) -> torch.optim.AdamW:
    """Makes AdamW for a program that trains a CRAFT adapter itself, so that one rate serves all ranks.

    Args:
        model: the `PeftModel` with the adapter.
        learning_rate: of J1, and of J2 and J3 at the reference rank.
        head_learning_rate: of everything else that trains, such as a task head.
        weight_decay: of that; J is never pulled to 0, where it would erase the weights.
    """
    adapter = model.base_model.craft_adapter(adapter_name)  # type: ignore[union-attr, operator]
    js = set(adapter.parameters())
    weights = [weight for weight in model.parameters() if weight.requires_grad and weight not in js]
    groups: list[dict[str, Any]] = [{"params": list(adapter.parameters()), "lr": learning_rate, "weight_decay": 0.0}]
    groups += [{"params": weights, "lr": head_learning_rate, "weight_decay": weight_decay}] if weights else []
    return adamw(scale_by_rank(groups, adapter, reference))

"""Learning rates by rank, against an AdamW that is written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import get_peft_model

from craft.tuners.craft.config import CraftConfig
from craft.tuners.craft.rates import scaled_adamw


def test_j2_and_j3_learn_at_the_reference_over_their_rank(tiny_model: Callable[..., Any]) -> None:
    config = CraftConfig(task_type="FEATURE_EXTRACTION", ranks=("all", 4, 3), projections=("q", "v"), init_seed=3)
    model = get_peft_model(tiny_model("bert", torch.float64), config)
    learnt = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    groups = [{"params": [*learnt.values()], "lr": 1e-2, "weight_decay": 0.1}]
    optimizer = scaled_adamw(groups, model.base_model.craft_adapter("default"), 8)
    assert optimizer.param_groups[0]["lr"] == 1e-2, "the logged rate is the one that was asked for"
    rates = {name: 1e-2 * {"1": 1, "2": 8 / 4, "3": 8 / 3}[name[-1]] for name in learnt}
    copies = {name: torch.nn.Parameter(weight.detach().clone()) for name, weight in learnt.items()}
    reference = torch.optim.AdamW([{"params": [one], "lr": rates[name]} for name, one in copies.items()], weight_decay=0.1)
    generator = torch.Generator().manual_seed(6)
    for _ in range(3):
        for name, weight in learnt.items():
            weight.grad = torch.randn(weight.shape, dtype=weight.dtype, generator=generator)
            copies[name].grad = weight.grad.clone()
        optimizer.step()
        reference.step()
    assert all(torch.equal(weight, copies[name]) for name, weight in learnt.items())

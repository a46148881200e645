"""Learning rates of J that carry over from rank to rank.

AdamW moves every entry of an r x r matrix by about the learning rate, so the matrix moves by up to r times that, and the best
rate falls like 1 / r. So an entry of J2 or J3 learns at the rate times r0 / k, with k the smallest of the trained ranks that
holds the entry; J1 at the rate itself::

    ranks 2, 4 of one J          shells of J2          k = 2: within J[:2, :2]     r0 / 2
                                 2 2 4 4               k = 4: the rest of it       r0 / 4
                                 2 2 4 4
                                 4 4 4 4               an adapter of one rank has one shell: r0 / r2 and r0 / r3
                                 4 4 4 4
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from craft.factors.hosvd import Ranks
from craft.tuners.craft.adapter import CraftAdapter
from craft.tuners.craft.stack import Stack


def shell_factors(ranks: Iterable[int], reference: float) -> Tensor:
    """`reference` / k of each entry, as large as the largest rank: k is the smallest of `ranks` that holds the entry."""
    descending = sorted(set(ranks), reverse=True)
    factors = torch.empty(descending[0], descending[0], dtype=torch.float64)
    for rank in descending:
        factors[:rank, :rank] = reference / rank
    return factors


def scaled_adamw(
    groups: list[dict[str, Any]], adapter: CraftAdapter, trained: Callable[[Stack], Iterable[Ranks]], reference: float
) -> torch.optim.AdamW:
    """AdamW under which J2 and J3 learn at rates by shell.

    Args:
        groups: torch's parameter groups, each with its `lr`.
        trained: the ranks (r1, r2, r3) that a stack trains together, one or more.
        reference: the rank at which the rate is the group's own.
    """
    factors: dict[nn.Parameter, Tensor] = {}
    for stack in adapter.stacks.values():
        _, j2, j3 = adapter.js(stack)
        for mode, j in ((1, j2), (2, j3)):
            assert isinstance(j, nn.Parameter)
            factors[j] = shell_factors((ranks[mode] for ranks in trained(stack)), reference)
    by_rate: list[dict[str, Any]] = []
    for group in groups:
        rates: dict[float, list[nn.Parameter]] = {}
        for weight in group["params"]:
            # A matrix of several shells gets the rate of its outermost one here, and `ByEntry` does the rest.
            rates.setdefault(float(factors[weight][-1, -1]) if weight in factors else 1.0, []).append(weight)
        # J1 comes first, so that the rate that is logged is the one that was asked for.
        ordered = sorted(rates.items(), key=lambda item: item[0] != 1.0)
        by_rate += [group | {"params": weights, "lr": group["lr"] * rate} for rate, weights in ordered]
    several = {weight: factor / factor[-1, -1] for weight, factor in factors.items() if factor.min() != factor.max()}
    return ByEntry(by_rate, several) if several else torch.optim.AdamW(by_rate)


class ByEntry(torch.optim.AdamW):
    """AdamW that multiplies the learning rate of every entry of some weights by a factor of its own.

    AdamW works entry by entry, so its step under another rate is its step times the factor, weight decay included. Where the
    factor is 1 the result is AdamW's, bit for bit. What it remembers is AdamW's too.
    """

    def __init__(self, groups: list[dict[str, Any]], factors: Mapping[nn.Parameter, Tensor]) -> None:
        super().__init__(groups)
        self.factors = {weight: factor.to(weight.device, weight.dtype) for weight, factor in factors.items()}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        before = {weight: weight.clone() for weight in self.factors if weight.grad is not None}
        loss = super().step(closure)
        for weight, old in before.items():
            factor = self.factors[weight]
            weight.copy_(torch.where(factor == 1, weight, old + factor * (weight - old)))
        return loss

"""Adapters behind sublayers: dense bottlenecks (arXiv 1902.00751), and LoRETTA's of tensor trains (arXiv 2402.11417).

    y ← y + U σ(D y + d) + u        y: the output of the sublayer's last projection (..., d), D (m x d), U (d x m)
    y ← y + U σ(D y)                D and U each a train of cores G_k (r_{k-1} x n_k x r_k):
                                    W[i_1 ... i_K] = G_1[i_1] G_2[i_2] ... G_K[i_K],  r_0 = r_K = 1, all other r_k = r

They follow the projection before the residual sum and the layer norm. U, or its first core, starts at 0: the base model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from craft.models.compute import no_autocast
from craft.tuners.joint import JointAdapter, JointConfig, JointTuner, Shape, key_of, parameter


@dataclass
class BottleneckConfig(JointConfig):
    KIND: ClassVar[str] = "BOTTLENECK"
    bottleneck: int = field(default=16, metadata={"help": "m"})
    activation: str = field(default="gelu", metadata={"help": "σ, a name of transformers' activations"})


class BottleneckAdapter(JointAdapter):
    """D, d, U, u of every module."""

    def __init__(self, config: Any, stacks: dict[str, dict[str, Shape]]) -> None:
        super().__init__(config, stacks)
        self.activation = ACT2FN[config.activation]
        self.networks = nn.ModuleDict()
        m = config.bottleneck
        for path, (d, _) in self.shapes.items():
            network = {"down": parameter(m, d), "down_bias": parameter(m), "up": parameter(d, m), "up_bias": parameter(d)}
            self.networks[key_of(path)] = nn.ParameterDict(network)

    @torch.no_grad()
    def reset(self) -> None:
        for network in self.networks.values():
            for name, weight in network.items():  # type: ignore[operator]
                if name == "down":
                    nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
                else:
                    nn.init.zeros_(weight)

    def change(self, path: str, x: Tensor, y: Tensor) -> Tensor:
        network: Any = self.networks[key_of(path)]
        inner = self.activation(F.linear(y, network["down"], network["down_bias"]))
        return F.linear(inner, network["up"], network["up_bias"])


class BottleneckModel(JointTuner):
    prefix = "bottleneck_"
    adapter_cls: ClassVar[type[JointAdapter]] = BottleneckAdapter


@dataclass
class LorettaConfig(BottleneckConfig):
    KIND: ClassVar[str] = "LORETTA"
    bottleneck: int = field(default=64, metadata={"help": "m"})
    r: int = field(default=5, metadata={"help": "rank of the trains"})


def factors(number: int, count: int) -> tuple[int, ...]:
    """Splits `number` into a product of `count` whole numbers of the least sum, largest first."""
    if count == 1:
        return (number,)
    splits = (
        tuple(sorted((first, *factors(number // first, count - 1)), reverse=True))
        for first in range(1, number + 1)
        if number % first == 0
    )
    return min(splits, key=lambda split: (sum(split), split))


class Train(nn.Module):
    """A (rows x columns) matrix as a tensor train: the rows' factors first, then the columns'."""

    def __init__(self, rows: int, columns: int, rank: int) -> None:
        super().__init__()
        self.shape = rows, columns
        factors = _split(rows) + _split(columns)
        ranks = [1, *[rank] * (len(factors) - 1), 1]
        self.cores = nn.ParameterList(parameter(ranks[k], size, ranks[k + 1]) for k, size in enumerate(factors))

    @torch.no_grad()
    def reset(self, zero: bool) -> None:
        """Draws cores that give the matrix entries of variance 1 / columns; with `zero`, the first core is 0."""
        # Variances multiply: each of the products of K cores sums over r^(K - 1) paths.
        inner = math.prod(core.shape[2] for core in self.cores)
        spread = (1 / (self.shape[1] * inner)) ** (1 / (2 * len(self.cores)))
        for core in self.cores:
            nn.init.normal_(core, std=spread)
        if zero:
            nn.init.zeros_(self.cores[0])

    def matrix(self) -> Tensor:
        """Multiplies the train to (rows, columns), in float32: it is short."""
        product: Tensor = self.cores[0]
        with no_autocast(product.device):
            for core in list(self.cores)[1:]:
                product = torch.tensordot(product, core, dims=1)
        return product.reshape(self.shape)


def _split(size: int) -> tuple[int, ...]:
    """Splits widths into three factors, those up to 100, such as the paper's bottleneck of 64, into two."""
    return factors(size, 2 if size <= 100 else 3)


class LorettaAdapter(JointAdapter):
    """D and U of every module."""

    def __init__(self, config: Any, stacks: dict[str, dict[str, Shape]]) -> None:
        super().__init__(config, stacks)
        self.activation = ACT2FN[config.activation]
        self.down, self.up = nn.ModuleDict(), nn.ModuleDict()
        for path, (d, _) in self.shapes.items():
            self.down[key_of(path)] = Train(config.bottleneck, d, config.r)
            self.up[key_of(path)] = Train(d, config.bottleneck, config.r)

    def reset(self) -> None:
        for key in self.down:
            self.down[key].reset(zero=False)  # type: ignore[operator]
            self.up[key].reset(zero=True)  # type: ignore[operator]

    def change(self, path: str, x: Tensor, y: Tensor) -> Tensor:
        key = key_of(path)
        inner = self.activation(F.linear(y, self.down[key].matrix()))  # type: ignore[operator]
        return F.linear(inner, self.up[key].matrix())  # type: ignore[operator]


class LorettaModel(JointTuner):
    prefix = "loretta_"
    adapter_cls: ClassVar[type[JointAdapter]] = LorettaAdapter

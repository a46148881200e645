"""Bottleneck adapters: a small network with a skip connection behind a sublayer (Houlsby et al. 2019, arXiv 1902.00751).

    y ← y + U σ(D y + d) + u        y: the output of the sublayer's last projection (..., d), D (m x d), U (d x m)

The network follows the projection to the model's width, before the residual sum and the layer norm. U starts at 0, D at
N(0, 1 / d): the model starts as the base model. One adapter trains 2 d m + d + m numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

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

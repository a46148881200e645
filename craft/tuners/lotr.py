"""LoTR: one Tucker-2 decomposition of the changes of all layers (Bershatsky et al. 2024, arXiv 2402.01376).

    ΔW_l = s A G_l Bᵀ        A (d_out x r), B (d_in x r) shared by the layers of a stack, G_l (r x r) each layer's own

A and B start with orthonormal columns, G at 0: the model starts as the base model. A stack of L layers trains
r (d_out + d_in) + L r² numbers. Modules of one projection and shape are one stack.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from craft.tuners.joint import JointAdapter, JointConfig, JointTuner, Shape, parameter


@dataclass
class LotrConfig(JointConfig):
    KIND: ClassVar[str] = "LOTR"
    r: int = field(default=32, metadata={"help": "rank of both shared factors"})
    scaling: float = field(default=1.0, metadata={"help": "s"})


class LotrAdapter(JointAdapter):
    """A, B and the cores G (L, r, r) of every stack."""

    def __init__(self, config: Any, stacks: dict[str, dict[str, Shape]]) -> None:
        super().__init__(config, stacks)
        self.scaling = config.scaling
        self.a, self.b, self.g = nn.ParameterDict(), nn.ParameterDict(), nn.ParameterDict()
        self.places: dict[str, tuple[str, int]] = {}
        for name, layers in stacks.items():
            d_out, d_in = next(iter(layers.values()))
            if config.r > min(d_out, d_in):
                raise ValueError(f"LoTR's rank is at most {min(d_out, d_in)} for {name} ({d_out} x {d_in}); got {config.r}")
            self.a[name], self.b[name] = parameter(d_out, config.r), parameter(d_in, config.r)
            self.g[name] = parameter(len(layers), config.r, config.r)
            self.places |= {path: (name, index) for index, path in enumerate(layers)}

    @torch.no_grad()
    def reset(self) -> None:
        for name in self.g:
            nn.init.orthogonal_(self.a[name])
            nn.init.orthogonal_(self.b[name])
            nn.init.zeros_(self.g[name])

    def change(self, path: str, x: Tensor, y: Tensor) -> Tensor:
        name, index = self.places[path]
        return (x @ self.b[name] @ self.g[name][index].T @ self.a[name].T) * self.scaling


class LotrModel(JointTuner):
    prefix = "lotr_"
    adapter_cls: ClassVar[type[JointAdapter]] = LotrAdapter

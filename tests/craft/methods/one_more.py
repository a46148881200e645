"""A method and its tuner as a contributor adds them: this file, a row of TUNERS and a row of METHODS.

y ← y + g ⊙ y        g (d_out) starts at 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from craft.methods.method import Method, Projected, attaches
from craft.tuners.joint import JointAdapter, JointConfig, JointTuner, Shape, parameter

TUNER_ROW = {"ONEMORE": (__name__, "OneMoreConfig", "OneMoreModel")}


@dataclass
class OneMoreConfig(JointConfig):
    KIND: ClassVar[str] = "ONEMORE"


class OneMoreAdapter(JointAdapter):
    def __init__(self, config: Any, stacks: dict[str, dict[str, Shape]]) -> None:
        super().__init__(config, stacks)
        self.gains = nn.ParameterDict({path.replace(".", "-"): parameter(d_out) for path, (d_out, _) in self.shapes.items()})

    @torch.no_grad()
    def reset(self) -> None:
        for gain in self.gains.values():
            nn.init.zeros_(gain)

    def change(self, path: str, x: Tensor, y: Tensor) -> Tensor:
        return y * self.gains[path.replace(".", "-")]


class OneMoreModel(JointTuner):
    prefix = "onemore_"
    adapter_cls: ClassVar[type[JointAdapter]] = OneMoreAdapter


METHOD = Method(
    "one_more", "One more", "tests of this project", Projected, attaches("ONEMORE"), lambda given: " ".join(given.projections)
)

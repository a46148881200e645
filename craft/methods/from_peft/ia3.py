"""(IA)³: learnt vectors that rescale keys, values and the inner activations of the MLP, by PEFT.

    k, v:  y = l ⊙ (W x + b)        MLP's down:  y = W (l ⊙ x) + b        l starts at 1

A module trains d_out numbers, the MLP's `down` d_in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected, attach

if TYPE_CHECKING:
    from torch import nn


class Ia3Parameters(Projected):
    projections: tuple[str, ...] = Field(
        ("k", "v", "down"), min_length=1, description="Rescaled projections; `down` is rescaled at its input."
    )


def build(model: nn.Module, parameters: Ia3Parameters, context: BuildContext) -> nn.Module:
    from craft.models.projections import target_modules

    inputs = target_modules(model, ["down"]) if "down" in parameters.projections else []
    return attach(model, context, "IA3", parameters.projections, feedforward_modules=inputs)


def label(parameters: Any) -> str:
    return " ".join(parameters.projections)


METHOD: Method = Method(
    name="ia3",
    title="(IA)³",
    reference="Liu et al. 2022, arXiv 2205.05638",
    parameters=Ia3Parameters,
    build=build,
    label=label,
    decays_to_start=True,
)

"""LoTR: the changes of all layers as one Tucker-2 decomposition with shared factors (`craft.tuners.lotr`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected, attach

if TYPE_CHECKING:
    from torch import nn


class LotrParameters(Projected):
    rank: int = Field(32, gt=0, validation_alias=AliasChoices("rank", "r"), description="Rank of the shared factors.")
    scaling: float = Field(1.0, gt=0, description="Factor on the change of the weights.")


def build(model: nn.Module, parameters: LotrParameters, context: BuildContext) -> nn.Module:
    return attach(model, context, "LOTR", parameters.projections, r=parameters.rank, scaling=parameters.scaling)


def label(parameters: Any) -> str:
    return f"r{parameters.rank}, {' '.join(parameters.projections)}"


METHOD: Method = Method(
    name="lotr",
    title="LoTR",
    reference="Bershatsky et al. 2024, arXiv 2402.01376",
    parameters=LotrParameters,
    build=build,
    label=label,
)

"""SuperLoRA: groups of joined weights, changed by one Tucker tensor each (`craft.tuners.superlora`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected, attach

if TYPE_CHECKING:
    from torch import nn


class SuperloraParameters(Projected):
    rank: int = Field(8, gt=0, validation_alias=AliasChoices("rank", "r"), description="Tucker rank of every group.")
    groups: int = Field(4, gt=0, description="Groups that the joined weights are divided into.")
    order: int = Field(3, ge=2, le=5, description="Dimensions of the tensor that a group is folded into.")
    scaling: float = Field(1.0, gt=0, description="Factor on the change of the weights.")


def build(model: nn.Module, parameters: SuperloraParameters, context: BuildContext) -> nn.Module:
    return attach(
        model,
        context,
        "SUPERLORA",
        parameters.projections,
        r=parameters.rank,
        groups=parameters.groups,
        order=parameters.order,
        scaling=parameters.scaling,
    )


def label(parameters: Any) -> str:
    return f"r{parameters.rank} {parameters.groups}x{parameters.order}D, {' '.join(parameters.projections)}"


METHOD: Method = Method(
    name="superlora",
    title="SuperLoRA",
    reference="Chen et al. 2024, arXiv 2403.11887",
    parameters=SuperloraParameters,
    build=build,
    label=label,
)

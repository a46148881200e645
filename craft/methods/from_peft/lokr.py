"""LoKr: the change of a weight as a Kronecker product, the larger factor of low rank, by PEFT.

    ΔW = s C ⊗ (B A)        C (u1 x v1), B (u2 x r), A (r x v2);  d_out = u1 u2, d_in = v1 v2, u1 <= u2, v1 <= v2

C starts at 0. Where r is not below max(u2, v2) / 2 the larger factor is kept whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected, attach, letters

if TYPE_CHECKING:
    from torch import nn


class LokrParameters(Projected):
    rank: int = Field(8, gt=0, validation_alias=AliasChoices("rank", "r"), description="Rank of the larger Kronecker factor.")
    alpha: float | None = Field(None, gt=0, description="Numerator of the scale; `rank` if absent.")
    decompose_both: bool = Field(False, description="Whether the smaller factor has low rank too.")
    decompose_factor: int = Field(-1, ge=-1, description="Largest u1 and v1; -1 comes as near to the square roots as can be.")


def build(model: nn.Module, parameters: LokrParameters, context: BuildContext) -> nn.Module:
    return attach(
        model,
        context,
        "LOKR",
        parameters.projections,
        r=parameters.rank,
        alpha=parameters.alpha if parameters.alpha is not None else parameters.rank,
        decompose_both=parameters.decompose_both,
        decompose_factor=parameters.decompose_factor,
    )


def label(parameters: Any) -> str:
    return f"r{parameters.rank} {letters(parameters.projections)}"


METHOD: Method = Method(
    name="lokr",
    title="LoKr",
    reference="Yeh et al. 2024, arXiv 2309.14859",
    parameters=LokrParameters,
    build=build,
    label=label,
)

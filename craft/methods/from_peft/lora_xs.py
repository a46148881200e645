"""LoRA-XS: one small trained matrix between frozen singular vectors, by PEFT's PSOFT.

    y = W x + U_r S_r (R - I) V_rᵀ x        R (r x r) trained, started at I;  W = U S Vᵀ

The paper writes A R B with A = U_r S_r, B = V_rᵀ and R near 0; R - I is that R, and starts at exactly 0. A module trains r²
numbers, whatever its size. The scale of U_r S_r is the weight's own: alpha would cancel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected, attach

if TYPE_CHECKING:
    from torch import nn


class LoraXsParameters(Projected):
    rank: int = Field(
        16,
        gt=0,
        validation_alias=AliasChoices("rank", "r"),
        description="Rank of the singular vectors, and side of the trained matrix.",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        validation_alias=AliasChoices("dropout", "psoft_dropout"),
        description="Dropout of the adapter's input, in training only.",
    )


def build(model: nn.Module, parameters: LoraXsParameters, context: BuildContext) -> nn.Module:
    return attach(
        model,
        context,
        "PSOFT",
        parameters.projections,
        r=parameters.rank,
        psoft_alpha=parameters.rank,
        psoft_dropout=parameters.dropout,
        psoft_orth=False,
        psoft_mag_a=False,
        psoft_mag_b=False,
    )


def label(parameters: Any) -> str:
    return f"r{parameters.rank}, {' '.join(parameters.projections)}"


METHOD: Method = Method(
    name="lora_xs",
    title="LoRA-XS",
    reference="Bałazy et al. 2024, arXiv 2405.17604",
    parameters=LoraXsParameters,
    build=build,
    label=label,
    singular_vectors=True,
    decays_to_start=True,
)

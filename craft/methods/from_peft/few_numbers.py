"""Methods of PEFT that train few numbers for each module, most of them between frozen matrices.

    lora_xs   y = W x + U_r S_r (R - I) V_rᵀ x          R (r x r) starts at I;  W = U S Vᵀ          r² numbers
    vera      y = W x + diag(b) B diag(d) A x           A (r x d_in), B (d_out x r) of a seed       r + d_out numbers
    ia3       k, v: y = l ⊙ (W x + b)                   l starts at 1                               d_out numbers
              down: y = W (l ⊙ x) + b                                                               d_in numbers

LoRA-XS is PEFT's PSOFT. The paper writes A R B with A = U_r S_r, B = V_rᵀ and R near 0; R - I is that R, and starts at exactly
0. The scale of U_r S_r is the weight's own: alpha would cancel. VeRA's b starts at 0, and its random matrices, which all layers
share, are made again from the seed when an adapter is loaded, so they are not saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from craft.methods.method import HIGH_RATES, BuildContext, Method
from craft.methods.projected import Projected, attach, attaches, dropout_field, projections_field, rank_field, rank_label
from craft.settings import Projections

if TYPE_CHECKING:
    from torch import nn


class LoraXsParameters(Projected):
    rank: int = rank_field(16, "Rank of the singular vectors, and side of the trained matrix.")
    dropout: float = dropout_field("psoft_dropout")


class VeraParameters(Projected):
    rank: int = rank_field(256, "Rank of the shared random matrices.")
    dropout: float = dropout_field("vera_dropout")


class Ia3Parameters(Projected):
    projections: Projections = projections_field(
        "k", "v", "down", description="Rescaled projections; `down` is rescaled at its input."
    )


def build_ia3(model: nn.Module, parameters: Ia3Parameters, context: BuildContext) -> nn.Module:
    from craft.models.projections import target_modules

    inputs = target_modules(model, ["down"]) if "down" in parameters.projections else []
    return attach(model, context, "IA3", parameters.projections, feedforward_modules=inputs)


LORA_XS: Method = Method(
    name="lora_xs",
    title="LoRA-XS",
    reference="Bałazy et al. 2024, arXiv 2405.17604",
    parameters=LoraXsParameters,
    build=attaches(
        "PSOFT",
        {"psoft_orth": False, "psoft_mag_a": False, "psoft_mag_b": False},
        r="rank",
        psoft_alpha="rank",
        psoft_dropout="dropout",
    ),
    label=rank_label,
    decays_to_start=True,
)
VERA: Method = Method(
    name="vera",
    title="VeRA",
    reference="Kopiczko et al. 2024, arXiv 2310.11454",
    parameters=VeraParameters,
    build=attaches(
        "VERA",
        {"save_projection": False},
        r="rank",
        vera_dropout="dropout",
    ),
    label=rank_label,
    rates=HIGH_RATES,
)
IA3: Method = Method(
    name="ia3",
    title="(IA)³",
    reference="Liu et al. 2022, arXiv 2205.05638",
    parameters=Ia3Parameters,
    build=build_ia3,
    copies=(2, 0),
    label=lambda parameters: " ".join(parameters.projections),
    decays_to_start=True,
    rates=HIGH_RATES,
)

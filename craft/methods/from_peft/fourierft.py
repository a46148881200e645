"""FourierFT: the change of a weight by a few entries of its Fourier transform, by PEFT.

    ΔW = s Re(IDFT2(F))        F is zero but at n places drawn from a seed, the same for every module

A module trains n numbers, whatever its size. They start at N(0, 1), as in the paper: the start is not the base model's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected, attach, letters

if TYPE_CHECKING:
    from torch import nn


class FourierftParameters(Projected):
    n_frequency: int = Field(1000, gt=0, description="Trained entries of the Fourier transform of each weight.")
    scaling: float = Field(150.0, gt=0, description="Factor on the change of the weights.")
    random_loc_seed: int = Field(777, ge=0, description="Seed of the entries' places.")


def build(model: nn.Module, parameters: FourierftParameters, context: BuildContext) -> nn.Module:
    return attach(
        model,
        context,
        "FOURIERFT",
        parameters.projections,
        n_frequency=parameters.n_frequency,
        scaling=parameters.scaling,
        random_loc_seed=parameters.random_loc_seed,
    )


def label(parameters: Any) -> str:
    return f"n{parameters.n_frequency} {letters(parameters.projections)}"


METHOD: Method = Method(
    name="fourierft",
    title="FourierFT",
    reference="Gao et al. 2024, arXiv 2405.03003",
    parameters=FourierftParameters,
    build=build,
    label=label,
)

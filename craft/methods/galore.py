"""GaLore: all parameters train, with the optimizer's memory of the projections' gradients kept at low rank.

GaLore is an optimizer, not an adapter (`craft.tuners.galore`): its parameter count and its files are those of full fine-tuning,
and its advantage shows in the optimizer's bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected
from craft.methods.whole import build_full

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class GaloreParameters(Projected):
    """What GaLore takes. The defaults are the paper's for GLUE."""

    rank: int = Field(4, gt=0, validation_alias=AliasChoices("rank", "r"), description="Rank of the projected gradients.")
    interval: int = Field(
        500,
        gt=0,
        validation_alias=AliasChoices("interval", "update_proj_gap"),
        description="Optimizer steps between two subspaces.",
    )
    scale: float = Field(4.0, gt=0, description="Factor on the projected update.")
    projections: tuple[str, ...] = Field(
        ("q", "k", "v", "o", "up", "down"),
        min_length=1,
        description="Projections whose gradients are projected; all parameters train.",
    )


def build(model: nn.Module, parameters: GaloreParameters, context: BuildContext) -> nn.Module:
    for place, shape in _places(model, parameters):
        if parameters.rank > min(shape):
            raise ValueError(
                f"galore's rank is at most {min(shape)} for {place} ({shape[0]} x {shape[1]}); got {parameters.rank}"
            )
    return build_full(model, parameters, context)


def optimizer(model: nn.Module, groups: list[dict[str, Any]], parameters: GaloreParameters, context: BuildContext) -> Optimizer:
    from craft.tuners.galore import GaLoreAdam

    weights: Any = [model.get_submodule(place).weight for place, _ in _places(model, parameters)]
    return GaLoreAdam(groups, weights, rank=parameters.rank, interval=parameters.interval, scale=parameters.scale)


def _places(model: nn.Module, parameters: GaloreParameters) -> list[tuple[str, tuple[int, int]]]:
    from craft.models.projections import find_projections

    stacks = find_projections(model, parameters.projections)
    return list({layer.module_name: layer.shape for layers in stacks.values() for layer in layers}.items())


def label(parameters: Any) -> str:
    return f"r{parameters.rank}, {' '.join(parameters.projections)}"


METHOD: Method = Method(
    name="galore",
    title="GaLore",
    reference="Zhao et al. 2024, arXiv 2403.03507",
    parameters=GaloreParameters,
    build=build,
    label=label,
    optimizer=optimizer,
    master_weights=True,
)

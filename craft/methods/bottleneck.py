"""Bottleneck adapters behind sublayers, dense or as tensor trains (`craft.tuners.bottleneck`).

===========  ========================================================================================
houlsby      behind the attention's and the MLP's last projection of every layer; layer norms train too
pfeiffer     behind the MLP alone: half the adapters, layer norms frozen
adapterdrop  pfeiffer without the first n layers' adapters, in training and after it ("specialized" AdapterDrop)
loretta      houlsby's places with tensor trains for matrices; layer norms frozen
===========  ========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from craft.methods.method import BuildContext, Method, Projected, attach, projections_field, rank_field
from craft.settings import Projections

if TYPE_CHECKING:
    from torch import nn


_PLACES = "Projections with an adapter behind their outputs."


class PfeifferParameters(Projected):
    projections: Projections = projections_field("down", description=_PLACES)
    bottleneck: int = Field(16, gt=0, description="Width of the adapter.")


class HoulsbyParameters(PfeifferParameters):
    projections: Projections = projections_field("o", "down", description=_PLACES)


class AdapterdropParameters(PfeifferParameters):
    dropped_layers: int = Field(1, ge=0, description="First layers without an adapter.")
    layers: None = Field(None, exclude=True, description="Give `dropped_layers`.")


class LorettaParameters(PfeifferParameters):
    projections: Projections = projections_field("o", "down", description=_PLACES)
    bottleneck: int = Field(64, gt=0, description="Width of the adapter.")
    rank: int = rank_field(5, "Rank of the tensor trains.")


def builder(kind: str, *, layer_norms: bool = False) -> Callable[[nn.Module, Any, BuildContext], nn.Module]:
    """Makes a builder of the tuner `kind`, a row of `craft.TUNERS`; it may train layer norms too."""

    def build(model: nn.Module, parameters: Any, context: BuildContext) -> nn.Module:
        settings: dict[str, Any] = {"bottleneck": parameters.bottleneck}
        if kind == "LORETTA":
            settings["r"] = parameters.rank
        if layer_norms:
            settings["modules_to_save"] = find_layer_norms(model, parameters)
        if hasattr(parameters, "dropped_layers"):
            parameters = parameters.model_copy(update={"layers": layers_left(model, parameters)})
        return attach(model, context, kind, parameters, **settings)

    return build


def find_layer_norms(model: nn.Module, parameters: Projected) -> list[str]:
    """Lists the paths of the normalizations inside the adapted layers."""
    from craft.models.projections import find_projections, layer_number

    stacks = find_projections(model, parameters.projections, layers=parameters.layers)
    numbers = {layer_number(place.module_name) for stack in stacks.values() for place in stack}
    return [
        name
        for name, module in model.named_modules()
        if type(module).__name__.endswith(("LayerNorm", "RMSNorm")) and layer_number(name) in numbers
    ]


def layers_left(model: nn.Module, parameters: AdapterdropParameters) -> int:
    """Returns how many layers keep their adapters. Raises ValueError if none does."""
    from craft.models.projections import find_projections

    depth, dropped = max(map(len, find_projections(model, parameters.projections).values())), parameters.dropped_layers
    if dropped >= depth:
        raise ValueError(f"dropped_layers {dropped} leaves no adapter: the model has {depth} layers; give at most {depth - 1}")
    return depth - dropped


def label(parameters: Any) -> str:
    rank = f" r{parameters.rank}" if hasattr(parameters, "rank") else ""
    dropped = f", without {parameters.dropped_layers}" if hasattr(parameters, "dropped_layers") else ""
    return f"m{parameters.bottleneck}{rank}, {' '.join(parameters.projections)}{dropped}"


def _rate(parameters: Any) -> float:
    return 2e-3


_HOULSBY = "Houlsby et al. 2019, arXiv 1902.00751"
_PFEIFFER = "Pfeiffer et al. 2021, arXiv 2005.00247"
_DROP = "Rücklé et al. 2021, arXiv 2010.11918"
_LORETTA = "Yang et al. 2024, arXiv 2402.11417"
METHODS: tuple[Method, ...] = (
    # The layer norms that it trains are the base's.
    Method(
        "houlsby",
        "Houlsby adapter",
        _HOULSBY,
        HoulsbyParameters,
        builder("BOTTLENECK", layer_norms=True),
        label,
        master_weights=True,
        rate=_rate,
    ),
    Method("pfeiffer", "Pfeiffer adapter", _PFEIFFER, PfeifferParameters, builder("BOTTLENECK"), label, rate=_rate),
    Method("adapterdrop", "AdapterDrop", _DROP, AdapterdropParameters, builder("BOTTLENECK"), label, rate=_rate),
    Method("loretta", "LoRETTA", _LORETTA, LorettaParameters, builder("LORETTA"), label),
)

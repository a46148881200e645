"""Bottleneck adapters behind sublayers, dense or as tensor trains (`craft.tuners.bottleneck`).

===========  ========================================================================================
houlsby      behind the attention's and the MLP's last projection of every layer; layer norms train too
pfeiffer     behind the MLP alone: half the adapters, layer norms frozen
adapterdrop  pfeiffer without the first n layers' adapters, in training and after it ("specialized" AdapterDrop)
loretta      houlsby's places with tensor trains for matrices; layer norms frozen
===========  ========================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from craft.methods.method import BuildContext, Method, Projected, attach, attaches, rank_field
from craft.settings import Projections

if TYPE_CHECKING:
    from torch import nn


_PLACES = "Projections with an adapter behind their outputs."


class PfeifferParameters(Projected):
    projections: Projections = Field(("down",), min_length=1, description=_PLACES)
    bottleneck: int = Field(16, gt=0, description="Width of the adapter.")


class HoulsbyParameters(PfeifferParameters):
    projections: Projections = Field(("o", "down"), min_length=1, description=_PLACES)


class AdapterdropParameters(PfeifferParameters):
    dropped_layers: int = Field(1, ge=0, description="First layers without an adapter.")
    layers: None = Field(None, exclude=True, description="Give `dropped_layers`.")


class LorettaParameters(HoulsbyParameters):
    bottleneck: int = Field(64, gt=0, description="Width of the adapter.")
    rank: int = rank_field(5, "Rank of the tensor trains.")


build_pfeiffer = attaches("BOTTLENECK", bottleneck="bottleneck")


def build_houlsby(model: nn.Module, parameters: HoulsbyParameters, context: BuildContext) -> nn.Module:
    """Trains the normalizations inside the adapted layers, too."""
    from craft.models.projections import find_projections, layer_number, other_senses

    stacks, unread = find_projections(model, parameters.projections, layers=parameters.layers), other_senses(model)
    numbers = {layer_number(place.module_name) for stack in stacks.values() for place in stack}
    norms = [
        name
        for name, module in model.named_modules()
        if type(module).__name__.endswith(("LayerNorm", "RMSNorm"))
        and layer_number(name) in numbers
        and not name.startswith(unread)
    ]
    return attach(model, context, "BOTTLENECK", parameters, bottleneck=parameters.bottleneck, modules_to_save=norms)


def build_adapterdrop(model: nn.Module, parameters: AdapterdropParameters, context: BuildContext) -> nn.Module:
    """Adapts the layers that are left. Raises ValueError if none is."""
    from craft.models.projections import find_projections

    depth, dropped = max(map(len, find_projections(model, parameters.projections).values())), parameters.dropped_layers
    if dropped >= depth:
        raise ValueError(f"dropped_layers {dropped} leaves no adapter: the model has {depth} layers; give at most {depth - 1}")
    return build_pfeiffer(model, parameters.model_copy(update={"layers": depth - dropped}), context)


def label(parameters: Any, more: str = "") -> str:
    return f"m{parameters.bottleneck}{more}, {' '.join(parameters.projections)}"


_HOULSBY = "Houlsby et al. 2019, arXiv 1902.00751"
_PFEIFFER = "Pfeiffer et al. 2021, arXiv 2005.00247"
_RATE: dict[str, Any] = {"rate": lambda _: 2e-3}
METHODS: tuple[Method, ...] = (
    # The layer norms that it trains are the base's.
    Method("houlsby", "Houlsby adapter", _HOULSBY, HoulsbyParameters, build_houlsby, label, master_weights=True, **_RATE),
    Method("pfeiffer", "Pfeiffer adapter", _PFEIFFER, PfeifferParameters, build_pfeiffer, label, **_RATE),
    Method(
        name="adapterdrop",
        title="AdapterDrop",
        reference="Rücklé et al. 2021, arXiv 2010.11918",
        parameters=AdapterdropParameters,
        build=build_adapterdrop,
        label=lambda each: f"{label(each)}, without {each.dropped_layers}",
        **_RATE,
    ),
    Method(
        name="loretta",
        title="LoRETTA",
        reference="Yang et al. 2024, arXiv 2402.11417",
        parameters=LorettaParameters,
        build=attaches("LORETTA", bottleneck="bottleneck", r="rank"),
        label=lambda each: label(each, f" r{each.rank}"),
    ),
)

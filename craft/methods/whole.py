"""Methods that train the model's own parameters: full fine-tuning, GaLore, BitFit (the biases) and the task head alone.

None makes a PEFT model. The trained parameters are saved and counted under their own names. GaLore is an optimizer
(`craft.tuners.optimizers`): its counts and files are those of full fine-tuning, its advantage shows in the optimizer's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from craft.methods.method import LOW_RATES, BuildContext, Method, rank_field, rank_label
from craft.settings import Projections, Settings

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


BASE_MODEL = "Base model"
"""What `head` is called where a task is answered in words."""


class NoParameters(Settings):
    """The parameters of a method that has none."""


class GaloreParameters(Settings):
    """The defaults are the paper's for GLUE."""

    rank: int = rank_field(4, "Rank of the projected gradients.")
    interval: int = Field(
        500,
        gt=0,
        validation_alias=AliasChoices("interval", "update_proj_gap"),
        description="Steps between two updates of the projection.",
    )
    scale: float = Field(4.0, gt=0, description="Factor on the projected update.")
    projections: Projections = Field(
        ("q", "k", "v", "o", "up", "down"), min_length=1, description="Projections whose gradients are projected."
    )


def _train(model: nn.Module, chosen: Callable[[str, bool], bool]) -> nn.Module:
    """Lets the parameters train that are `chosen` by their name and by whether they are the task head's."""
    from craft.models.loading import head_names, is_head

    heads = head_names(model)
    for name, weight in model.named_parameters():
        weight.requires_grad_(chosen(name, is_head(name, heads)))
    return model


def build_full(model: nn.Module, parameters: Any, context: BuildContext) -> nn.Module:
    return _train(model, lambda _name, _head: True)


def build_bitfit(model: nn.Module, parameters: Any, context: BuildContext) -> nn.Module:
    """Trains every bias vector that texts reach, those of the layer norms included, and the task head."""
    from craft.models.loading import trained_weights
    from craft.models.projections import other_senses

    unread = other_senses(model)
    _train(model, lambda name, head: head or (name.rpartition(".")[2] == "bias" and not name.startswith(unread)))
    if all(head for *_, head in trained_weights(model)):
        raise ValueError(
            f"bitfit trains bias vectors, and {type(model).__name__} has none; choose another method for this model"
        )
    return model


def build_galore(model: nn.Module, parameters: GaloreParameters, context: BuildContext) -> nn.Module:
    for place, shape in _places(model, parameters):
        if parameters.rank > min(shape):
            raise ValueError(
                f"galore's rank is at most {min(shape)} for {place} ({shape[0]} x {shape[1]}); got {parameters.rank}"
            )
    return build_full(model, parameters, context)


def galore_optimizer(
    model: nn.Module, groups: list[dict[str, Any]], parameters: GaloreParameters, context: BuildContext
) -> Optimizer:
    from craft.tuners.optimizers import GaLoreAdam

    weights: Any = [model.get_submodule(place).weight for place, _ in _places(model, parameters)]
    return GaLoreAdam(groups, weights, rank=parameters.rank, interval=parameters.interval, scale=parameters.scale)


def _places(model: nn.Module, parameters: GaloreParameters) -> list[tuple[str, tuple[int, int]]]:
    from craft.models.projections import find_projections

    stacks = find_projections(model, parameters.projections)
    return list({layer.module_name: layer.shape for layers in stacks.values() for layer in layers}.items())


_HEAD = "Alain and Bengio 2016, arXiv 1610.01644"
_FULL = "Devlin et al. 2019, arXiv 1810.04805"
_BITFIT = "Ben Zaken et al. 2022, arXiv 2106.10199"
METHODS: tuple[Method, ...] = (
    # The control of every comparison: nothing is adapted. A model that answers in words is scored as it is.
    Method(
        "head",
        "Head",
        _HEAD,
        NoParameters,
        lambda model, *_: _train(model, lambda _name, head: head),
        lambda _: "alone",
        adapts=False,
    ),
    Method(
        "full",
        "Full fine-tuning",
        _FULL,
        NoParameters,
        build_full,
        lambda _: "all",
        master_weights=True,
        rates=LOW_RATES,
        rate=lambda _: 6e-5,
    ),
    Method(
        "bitfit", "BitFit", _BITFIT, NoParameters, build_bitfit, lambda _: "biases", master_weights=True, rate=lambda _: 2e-3
    ),
    Method(
        name="galore",
        title="GaLore",
        reference="Zhao et al. 2024, arXiv 2403.03507",
        parameters=GaloreParameters,
        build=build_galore,
        label=rank_label,
        optimizer=galore_optimizer,
        master_weights=True,
        rates=LOW_RATES,
    ),
)

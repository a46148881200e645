"""Methods that train the model's own parameters: full fine-tuning, BitFit (the biases) and the task head alone.

None makes a PEFT model. The trained parameters are saved and counted under their own names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from craft.methods.method import BuildContext, Method
from craft.settings import Settings

if TYPE_CHECKING:
    from torch import nn


BASE_MODEL = "Base model"
"""What `head` is called where a task is answered in words."""


class NoParameters(Settings):
    """The method has none."""


def build_full(model: nn.Module, parameters: Any, context: BuildContext) -> nn.Module:
    for weight in model.parameters():
        weight.requires_grad_(True)
    return model


def build_bitfit(model: nn.Module, parameters: Any, context: BuildContext) -> nn.Module:
    """Every bias vector of the model, those of the layer norms included; the task head whole."""
    from craft.models.heads import head_names, is_head

    heads = head_names(model)
    found = False
    for name, weight in model.named_parameters():
        bias = name.rsplit(".", 1)[-1] == "bias"
        found |= bias and not is_head(name, heads)
        weight.requires_grad_(bias or is_head(name, heads))
    if not found:
        raise ValueError(
            f"bitfit trains bias vectors, and {type(model).__name__} has none; choose another method for this model"
        )
    return model


def build_head(model: nn.Module, parameters: Any, context: BuildContext) -> nn.Module:
    """The control of every comparison: nothing is adapted, so its adapter has 0 parameters.

    A model that answers in words has no head. There nothing trains, and the base model is scored as it is.
    """
    from craft.models.heads import head_names, is_head

    heads = head_names(model)
    for name, weight in model.named_parameters():
        weight.requires_grad_(is_head(name, heads))
    return model


METHODS: tuple[Method, ...] = (
    Method(
        "head",
        "Head",
        "Alain and Bengio 2016, arXiv 1610.01644",
        NoParameters,
        build_head,
        lambda _parameters: "alone",
    ),
    Method(
        "full",
        "Full fine-tuning",
        "Devlin et al. 2019, arXiv 1810.04805",
        NoParameters,
        build_full,
        lambda _parameters: "all",
        master_weights=True,
    ),
    Method(
        "bitfit",
        "BitFit",
        "Ben Zaken et al. 2022, arXiv 2106.10199",
        NoParameters,
        build_bitfit,
        lambda _parameters: "biases",
        master_weights=True,
    ),
)

"""Shared by the methods that adapt projections: their parameters' fields, and `attach`, which calls PEFT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from craft.methods.method import BuildContext
from craft.settings import Projections, Settings

if TYPE_CHECKING:
    from torch import nn


class Projected(Settings):
    """Parameters of a method that adapts the chosen projections of every layer, each by itself."""

    projections: Projections = Field(
        ("q", "v"), min_length=1, description="Adapted projections of every layer: q, k, v, o, and the MLP's gate, up, down."
    )


def rank_field(default: int, description: str) -> Any:
    """Makes the field of a rank; files may also write it as PEFT does, `r`."""
    return Field(default, gt=0, validation_alias=AliasChoices("rank", "r"), description=description)


def dropout_field(pefts: str) -> Any:
    """Makes the field of the dropout of the adapter's input; files may also write it by PEFT's name."""
    names = AliasChoices("dropout", pefts)
    return Field(0.0, ge=0, lt=1, validation_alias=names, description="Dropout of the adapter's input, in training only.")


def projections_field(*default: str, description: str) -> Any:
    """Makes the field of projections that differ from those of `Projected`."""
    return Field(default, min_length=1, description=description)


def rank_label(parameters: Any) -> str:
    """Makes a label such as `r8, q v`."""
    return f"r{parameters.rank}, {' '.join(parameters.projections)}"


_WIDER = frozenset({"VERA", "SUPERLORA"})
"""Tuners whose rank is not that of a matrix within one weight: VeRA's is of a random pair that all layers share, SuperLoRA's of
a tensor of another shape."""


def attach(model: nn.Module, context: BuildContext, kind: str, projections: Sequence[str], **settings: Any) -> nn.Module:
    """Puts a PEFT method on `model`.

    Args:
        kind: PEFT's name of the method (`VERA`); a row of `craft.tuner_types.TUNERS` for a tuner of our own.
        settings: fields of the method's configuration class.
    """
    import peft

    from craft.models.projections import linear_modules, target_modules

    targets = target_modules(model, projections)
    rank = settings.get("r", settings.get("init_r"))
    if rank is not None and kind not in _WIDER:
        ends = tuple(f".{target}" for target in targets)
        most = min(min(shape) for path, shape in linear_modules(model).items() if f".{path}".endswith(ends))
        if rank > most:
            raise ValueError(f"rank {rank} is more than the smaller side of an adapted weight; at most {most} here")
    config = {"peft_type": kind, "task_type": context.task_type, "target_modules": targets}
    put: Any = peft.get_peft_model
    return put(model, peft.get_peft_config(config | settings))


def attaches(
    kind: str, fixed: Mapping[str, Any] | None = None, **fields: str
) -> Callable[[nn.Module, Any, BuildContext], nn.Module]:
    """Makes a builder for `Method` that calls `attach`.

    Args:
        kind: PEFT's name of the method.
        fixed: settings that are the same for all parameters.
        fields: PEFT's name of a setting -> the parameter that it takes.
    """

    def build(model: nn.Module, parameters: Any, context: BuildContext) -> nn.Module:
        settings = {theirs: getattr(parameters, ours) for theirs, ours in fields.items()}
        return attach(model, context, kind, parameters.projections, **settings, **(fixed or {}))

    return build


def is_meta(model: nn.Module) -> bool:
    """Says whether `model` has shapes without weights, so that nothing can be computed from them."""
    return any(weight.is_meta for weight in model.parameters())

"""LoRA: W x + (alpha / r) B A x on the chosen projections (Hu et al. 2022), by PEFT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from craft.methods import BuildContext, Method
from craft.spec import Settings

if TYPE_CHECKING:
    from torch import nn


class LoraParameters(Settings):
    """PEFT's own names (`r`, `lora_alpha`, `lora_dropout`) are understood too."""

    rank: int = Field(8, gt=0, validation_alias=AliasChoices("rank", "r"))
    alpha: float | None = Field(None, gt=0, validation_alias=AliasChoices("alpha", "lora_alpha"), description="rank if absent")
    dropout: float = Field(0.0, ge=0, lt=1, validation_alias=AliasChoices("dropout", "lora_dropout"))
    projections: tuple[str, ...] = Field(("q", "v"), min_length=1)


def build(model: nn.Module, parameters: LoraParameters, context: BuildContext) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    from craft.projections import target_modules

    config = LoraConfig(
        task_type=context.task_type,
        r=parameters.rank,
        lora_alpha=parameters.alpha if parameters.alpha is not None else parameters.rank,
        lora_dropout=parameters.dropout,
        target_modules=target_modules(model, parameters.projections),
    )
    return get_peft_model(model, config)  # type: ignore[arg-type]


def label(parameters: Any) -> str:
    return f"r{parameters.rank} {''.join(parameters.projections)}"


METHOD = Method(
    name="lora",
    title="LoRA",
    reference="Hu et al. 2022, arXiv 2106.09685",
    parameters=LoraParameters,
    build=build,
    label=label,
)

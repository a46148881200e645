"""AdaLoRA: LoRA as a singular value decomposition, with more rank for the modules that matter more, by PEFT.

    y = W x + s P diag(λ) Q x        P (d_out x r0), Q (r0 x d_in), λ (r0) starts at 0
    loss + γ (mean of ‖PᵀP - I‖_F and ‖QQᵀ - I‖_F over all of them)

Every module starts with `init_rank` triplets. During training, the least important λ of all modules are set to 0, until each
module has `target_rank` left on average; importance is the smoothed |weight x gradient| times its uncertainty. Trained, and
counted, are the `init_rank` triplets that each module starts with.

PEFT leaves the penalty to a loss computed inside the model and the allocation to a call after every step. Here both belong to
the optimizer (`AdaLoraAdam`), whose state a checkpoint holds. λ that were set to 0 are saved as 0, so an adapter
holds exactly the weights that were scored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field, model_validator

from craft.methods.method import HIGH_RATES, BuildContext, Method
from craft.methods.projected import Projected, attach, dropout_field

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class AdaloraParameters(Projected):
    """The shares are of the run's optimizer steps, where PEFT's `tinit` and `tfinal` count steps."""

    init_rank: int = Field(
        12, gt=0, validation_alias=AliasChoices("init_rank", "init_r"), description="Rank of every module at the start."
    )
    target_rank: int = Field(
        8, gt=0, validation_alias=AliasChoices("target_rank", "target_r"), description="Mean rank of a module at the end."
    )
    alpha: float | None = Field(
        None,
        gt=0,
        validation_alias=AliasChoices("alpha", "lora_alpha"),
        description="Numerator of the scale; `init_rank` if absent.",
    )
    dropout: float = dropout_field("lora_dropout")
    warmup_share: float = Field(0.1, ge=0, lt=1, description="Share of the steps before ranks begin to fall.")
    final_share: float = Field(0.3, ge=0, lt=1, description="Share of the steps, at the end, with the final ranks.")

    @model_validator(mode="after")
    def _goes_down(self) -> AdaloraParameters:
        if self.target_rank > self.init_rank:
            raise ValueError(f"target_rank is at most init_rank; got {self.target_rank} and {self.init_rank}")
        if self.warmup_share + self.final_share >= 1:
            raise ValueError(
                f"warmup_share and final_share leave no steps between; got {self.warmup_share} + {self.final_share}"
            )
        return self


def build(model: nn.Module, parameters: AdaloraParameters, context: BuildContext) -> nn.Module:
    steps = context.total_steps or 100
    return attach(
        model,
        context,
        "ADALORA",
        parameters.projections,
        init_r=parameters.init_rank,
        target_r=parameters.target_rank,
        lora_alpha=parameters.alpha if parameters.alpha is not None else parameters.init_rank,
        lora_dropout=parameters.dropout,
        tinit=int(parameters.warmup_share * steps),
        tfinal=int(parameters.final_share * steps),
        total_step=steps,
    )


def optimizer(
    model: nn.Module, groups: list[dict[str, Any]], parameters: AdaloraParameters, context: BuildContext
) -> Optimizer:
    from craft.tuners.adalora import AdaLoraAdam

    return AdaLoraAdam(model, groups)


def label(parameters: Any) -> str:
    return f"r{parameters.init_rank}→{parameters.target_rank}, {' '.join(parameters.projections)}"


METHOD: Method = Method(
    name="adalora",
    title="AdaLoRA",
    reference="Zhang et al. 2023, arXiv 2303.10512",
    parameters=AdaloraParameters,
    build=build,
    label=label,
    optimizer=optimizer,
    rates=HIGH_RATES,
)

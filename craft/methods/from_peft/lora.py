"""LoRA and the variants that keep its two matrices, by PEFT.

    y = W x + s B A x        A (r x d_in), B (d_out x r), s = alpha / r

========  ==================================================================================================
lora      B starts at 0
rslora    s = alpha / sqrt(r)
dora      the columns of the sum are normalized and rescaled by a learnt magnitude m (d_out more numbers per module)
pissa     B A starts at the r principal singular components of W, which are subtracted from W
olora     B A starts at the first r columns of Q and rows of R of W = Q R; this product is subtracted from W
milora    B A starts at the r minor singular components of W, which are subtracted from W (`craft.tuners.milora`)
========  ==================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AliasChoices, Field

from craft.methods.cutting import PRODUCTS, Cutting
from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected, attach, is_meta

if TYPE_CHECKING:
    from torch import nn


LoraDropout = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        validation_alias=AliasChoices("dropout", "lora_dropout"),
        description="Dropout of the adapter's input, in training only.",
    ),
]


class LoraParameters(Projected):
    """What LoRA and its variants take."""

    rank: int = Field(8, gt=0, validation_alias=AliasChoices("rank", "r"), description="Rank of the product B A.")
    alpha: float | None = Field(
        None,
        gt=0,
        validation_alias=AliasChoices("alpha", "lora_alpha"),
        description="Numerator of the scale; `rank` if absent.",
    )
    dropout: LoraDropout = 0.0


def lora_settings(parameters: LoraParameters) -> dict[str, Any]:
    """PEFT's names for the parameters that every variant has."""
    alpha = parameters.alpha if parameters.alpha is not None else parameters.rank
    return {"r": parameters.rank, "lora_alpha": alpha, "lora_dropout": parameters.dropout}


def variant(start: str | None = None, **settings: Any) -> Callable[[nn.Module, LoraParameters, BuildContext], nn.Module]:
    """A builder of LoRA with `settings`, or with a `start` that is computed from the weights where there are any."""

    def build(model: nn.Module, parameters: LoraParameters, context: BuildContext) -> nn.Module:
        start_now = {} if start is None or is_meta(model) else {"init_lora_weights": start}
        made = lora_settings(parameters) | settings | start_now
        return attach(model, context, "LORA", parameters.projections, **made)

    return build


def build_milora(model: nn.Module, parameters: LoraParameters, context: BuildContext) -> nn.Module:
    return attach(model, context, "MILORA", parameters.projections, **lora_settings(parameters))


def label(parameters: Any) -> str:
    return f"r{parameters.rank}, {' '.join(parameters.projections)}"


def row(
    name: str,
    title: str,
    reference: str,
    build: Callable[[nn.Module, LoraParameters, BuildContext], nn.Module],
    singular_vectors: bool = False,
    decays_to_start: bool = False,
    cutting: Cutting | None = None,
) -> Method:
    return Method(
        name,
        title,
        reference,
        LoraParameters,
        build,
        label,
        singular_vectors=singular_vectors,
        decays_to_start=decays_to_start,
        cutting=cutting,
        rank="rank",
        one_rate={},
    )


METHOD: Method = row("lora", "LoRA", "Hu et al. 2022, arXiv 2106.09685", variant(), cutting=PRODUCTS)
METHODS: tuple[Method, ...] = (
    METHOD,
    row("rslora", "rsLoRA", "Kalajdzievski 2023, arXiv 2312.03732", variant(use_rslora=True), cutting=PRODUCTS),
    row("dora", "DoRA", "Liu et al. 2024, arXiv 2402.09353", variant(use_dora=True), decays_to_start=True),
    row("pissa", "PiSSA", "Meng et al. 2024, arXiv 2404.02948", variant("pissa"), singular_vectors=True, decays_to_start=True),
    row("olora", "OLoRA", "Büyükakyüz 2024, arXiv 2406.01775", variant("olora"), decays_to_start=True),
    row("milora", "MiLoRA", "Wang et al. 2024, arXiv 2406.09044", build_milora, singular_vectors=True, decays_to_start=True),
)

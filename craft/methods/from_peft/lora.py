"""LoRA and the variants that keep its two matrices, by PEFT.

    y = W x + s B A x        A (r x d_in), B (d_out x r), s = alpha / r

========  ==================================================================================================
lora      B starts at 0
rslora    s = alpha / sqrt(r)
dora      the columns of the sum are normalized and rescaled by a learnt magnitude m (d_out more numbers per module)
pissa     B A starts at the r principal singular components of W, which are subtracted from W
olora     B A starts at the first r columns of Q and rows of R of W = Q R; this product is subtracted from W
milora    B A starts at the r minor singular components of W, which are subtracted from W (`craft.tuners.milora`)
qlora     W is kept in 4 bits, in blocks of 64: one of 16 levels times the block's constant; needs a CUDA GPU
========  ==================================================================================================

QLoRA's levels are those of a normal distribution (NF4); its constants are quantized too. The run's precision holds for products
and for the weights that are not quantized: norms, embeddings, a language model's output layer. PEFT's
`prepare_model_for_kbit_training` is not called: it casts those weights to float32, nothing casts the hidden states back, and
attention then computes in float32. (TRL leaves it out for the same reason.) The paper adapts every linear layer; name them in
`projections`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field

from craft.methods.cutting import PRODUCTS
from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected, attach, dropout_field, is_meta, rank_field, rank_label

if TYPE_CHECKING:
    from torch import nn


class LoraParameters(Projected):
    rank: int = rank_field(8, "Rank of the product B A.")
    alpha: float | None = Field(
        None,
        gt=0,
        validation_alias=AliasChoices("alpha", "lora_alpha"),
        description="Numerator of the scale; `rank` if absent.",
    )
    dropout: float = dropout_field("lora_dropout")


def variant(
    start: str | None = None, kind: str = "LORA", **settings: Any
) -> Callable[[nn.Module, LoraParameters, BuildContext], nn.Module]:
    """Makes a builder of LoRA with `settings`, and with a `start` that is computed from the weights if there are any."""

    def build(model: nn.Module, parameters: LoraParameters, context: BuildContext) -> nn.Module:
        alpha = parameters.alpha if parameters.alpha is not None else parameters.rank
        config = {"r": parameters.rank, "lora_alpha": alpha, "lora_dropout": parameters.dropout} | settings
        if start is not None and not is_meta(model):
            config["init_lora_weights"] = start
        return attach(model, context, kind, parameters.projections, **config)

    return build


def row(
    name: str, title: str, reference: str, build: Callable[[nn.Module, LoraParameters, BuildContext], nn.Module], **more: Any
) -> Method:
    settings: dict[str, Any] = {"parameters": LoraParameters, "rank": "rank", "one_rate": {}} | more
    return Method(name, title, reference, build=build, label=rank_label, **settings)


METHOD: Method = row("lora", "LoRA", "Hu et al. 2022, arXiv 2106.09685", variant(), cutting=PRODUCTS)
METHODS: tuple[Method, ...] = (
    METHOD,
    row("rslora", "rsLoRA", "Kalajdzievski 2023, arXiv 2312.03732", variant(use_rslora=True), cutting=PRODUCTS),
    row("dora", "DoRA", "Liu et al. 2024, arXiv 2402.09353", variant(use_dora=True), decays_to_start=True, copies=(1, 3)),
    row("pissa", "PiSSA", "Meng et al. 2024, arXiv 2404.02948", variant("pissa"), decays_to_start=True),
    row("olora", "OLoRA", "Büyükakyüz 2024, arXiv 2406.01775", variant("olora"), decays_to_start=True),
    row("milora", "MiLoRA", "Wang et al. 2024, arXiv 2406.09044", variant(kind="MILORA"), decays_to_start=True),
    row(
        "qlora",
        "QLoRA",
        "Dettmers et al. 2023, arXiv 2305.14314",
        variant(),
        requires="cuda",
        packages=("bitsandbytes",),
        quantization={"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        # Half a byte, and for each block of 64 a constant of one byte.
        base_bytes=0.5 + 1 / 64,
        cutting=PRODUCTS,
    ),
)

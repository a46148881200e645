"""QLoRA: LoRA over a base whose weights are kept in 4 bits, by PEFT and bitsandbytes. Needs a CUDA GPU.

    y = dequantized(Q) x + s B A x        Q: W in blocks of 64, each number one of 16 levels times the block's constant

The levels are those of a normal distribution (NF4); the constants are quantized too (double quantization). The run's precision
holds for products and for the weights that are not quantized: norms, embeddings, a language model's output layer. PEFT's
`prepare_model_for_kbit_training` is not called: it casts those weights to float32, nothing casts the hidden states back, and
attention then computes in float32. (TRL leaves it out for the same reason.) The trained parameters and their count are LoRA's.
The paper adapts every linear layer; name them in `projections`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic.json_schema import SkipJsonSchema

from craft.methods.cutting import PRODUCTS
from craft.methods.from_peft.lora import LoraParameters, label, lora_settings
from craft.methods.method import BuildContext, Method
from craft.methods.projected import attach
from craft.settings import PAPERS, Retired

if TYPE_CHECKING:
    from torch import nn


class QloraParameters(LoraParameters):
    """What QLoRA takes: LoRA's parameters."""

    quant_type: Annotated[SkipJsonSchema[Literal["nf4", "fp4"]], Retired(PAPERS, "nf4")] = "nf4"
    double_quant: Annotated[SkipJsonSchema[bool], Retired(PAPERS, True)] = True


def quantization(parameters: QloraParameters) -> dict[str, Any]:
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": parameters.quant_type,
        "bnb_4bit_use_double_quant": parameters.double_quant,
    }


def build(model: nn.Module, parameters: QloraParameters, context: BuildContext) -> nn.Module:
    return attach(model, context, "LORA", parameters.projections, **lora_settings(parameters))


METHOD: Method = Method(
    name="qlora",
    title="QLoRA",
    reference="Dettmers et al. 2023, arXiv 2305.14314",
    parameters=QloraParameters,
    build=build,
    label=label,
    requires="cuda",
    packages=("bitsandbytes",),
    quantization=quantization,
    # Half a byte, and for each block of 64 a constant of one byte.
    base_bytes=0.5 + 1 / 64,
    cutting=PRODUCTS,
)

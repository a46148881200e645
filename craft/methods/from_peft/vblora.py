"""VB-LoRA: LoRA's matrices assembled from one bank of vectors that all modules share, by PEFT.

Every row of A and column of B is cut into pieces of `vector_length`; each piece is a mixture of the `topk` vectors of the bank
that its logits favour. Trained: the bank (h x b) and the logits, h for each of r (d_in + d_out) / b pieces a module.

`vector_length` b must divide d_in and d_out. The count is of trained numbers; the paper's table counts what must be kept after
training (the bank, and the topk weights and indices of each piece).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import AliasChoices, Field, model_validator

from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected, attach, letters

if TYPE_CHECKING:
    from torch import nn


class VbloraParameters(Projected):
    rank: int = Field(4, gt=0, validation_alias=AliasChoices("rank", "r"), description="Rank of the product B A.")
    num_vectors: int = Field(90, gt=0, description="Vectors in the shared bank.")
    vector_length: int = Field(128, gt=0, description="Length of a vector; it must divide the widths of every adapted module.")
    topk: int = Field(2, gt=0, description="Vectors of the bank that one piece mixes.")
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        validation_alias=AliasChoices("dropout", "vblora_dropout"),
        description="Dropout of the adapter's input, in training only.",
    )

    @model_validator(mode="after")
    def _topk_of_the_bank(self) -> VbloraParameters:
        if self.topk > self.num_vectors:
            raise ValueError(f"topk is at most num_vectors; got topk {self.topk} of {self.num_vectors} vectors")
        return self


def build(model: nn.Module, parameters: VbloraParameters, context: BuildContext) -> nn.Module:
    return attach(
        model,
        context,
        "VBLORA",
        parameters.projections,
        r=parameters.rank,
        num_vectors=parameters.num_vectors,
        vector_length=parameters.vector_length,
        topk=parameters.topk,
        vblora_dropout=parameters.dropout,
    )


def label(parameters: Any) -> str:
    return f"r{parameters.rank} {parameters.num_vectors}x{parameters.vector_length} {letters(parameters.projections)}"


METHOD: Method = Method(
    name="vblora",
    title="VB-LoRA",
    reference="Li et al. 2024, arXiv 2405.15179",
    parameters=VbloraParameters,
    build=build,
    label=label,
)

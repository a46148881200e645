"""VeRA: two trained vectors between frozen random matrices that all layers share, by PEFT.

    y = W x + diag(b) B diag(d) A x        A (r x d_in), B (d_out x r) frozen, from a seed;  b starts at 0

A module trains r + d_out numbers. The random matrices are made again from the seed when an adapter is loaded, so they are
not saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AliasChoices, Field
from pydantic.json_schema import SkipJsonSchema

from craft.methods.method import BuildContext, Method
from craft.methods.projected import Projected, attach
from craft.settings import IN_PEFT, Retired

if TYPE_CHECKING:
    from torch import nn


class VeraParameters(Projected):
    rank: int = Field(256, gt=0, validation_alias=AliasChoices("rank", "r"), description="Rank of the shared random matrices.")
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        validation_alias=AliasChoices("dropout", "vera_dropout"),
        description="Dropout of the adapter's input, in training only.",
    )
    d_initial: Annotated[SkipJsonSchema[float], Retired(IN_PEFT, 0.1)] = 0.1
    projection_prng_key: Annotated[SkipJsonSchema[int], Retired(IN_PEFT, 0)] = 0


def build(model: nn.Module, parameters: VeraParameters, context: BuildContext) -> nn.Module:
    return attach(
        model,
        context,
        "VERA",
        parameters.projections,
        r=parameters.rank,
        vera_dropout=parameters.dropout,
        d_initial=parameters.d_initial,
        projection_prng_key=parameters.projection_prng_key,
        save_projection=False,
    )


def label(parameters: Any) -> str:
    return f"r{parameters.rank}, {' '.join(parameters.projections)}"


METHOD: Method = Method(
    name="vera",
    title="VeRA",
    reference="Kopiczko et al. 2024, arXiv 2310.11454",
    parameters=VeraParameters,
    build=build,
    label=label,
)

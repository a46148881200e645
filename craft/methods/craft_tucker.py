"""CRAFT: small J matrices between frozen HOSVD factors of weights stacked across layers.

`craft_star` is the paper's CRAFT*: the same on the query, key, value and output projections.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator

from craft.methods.method import BuildContext, Method
from craft.methods.projected import letters
from craft.settings import Settings

if TYPE_CHECKING:
    from torch import nn

Rank = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1})] | Literal["all"]


class CraftParameters(Settings):
    """What CRAFT takes."""

    ranks: tuple[Rank, Rank, Rank] = Field(
        ("all", 64, 64), description="Ranks (r1, r2, r3) of layers, outputs and inputs; `all` is the full dimension."
    )
    projections: tuple[str, ...] = Field(
        ("q", "v"), min_length=1, description="Stacked projections: q, k, v, o, and the MLP's gate, up, down."
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of the entries of J, in training only.")
    scaling: float = Field(1.0, gt=0, description="Factor on the change of the weights.")
    init_epsilon: float = Field(1e-3, ge=0, description="J starts at I + epsilon N(0, 1); 0 starts at the pre-trained model.")
    dropout_mask: Literal["shared", "per_layer"] = Field(
        "shared", description="One dropout mask for a forward pass, or one for each layer."
    )

    @field_validator("ranks")
    @classmethod
    def _positive(cls, ranks: tuple[Rank, Rank, Rank]) -> tuple[Rank, Rank, Rank]:
        if any(rank != "all" and rank < 1 for rank in ranks):
            raise ValueError(f"ranks are whole numbers from 1, or 'all'; got {list(ranks)}")
        return ranks

    @field_validator("projections")
    @classmethod
    def _ordered_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            raise ValueError(f"each projection once; got {list(names)}")
        return names


class CraftStarParameters(CraftParameters):
    projections: tuple[str, ...] = Field(
        ("q", "k", "v", "o"), min_length=1, description=CraftParameters.model_fields["projections"].description
    )


def build(model: nn.Module, parameters: CraftParameters, context: BuildContext) -> nn.Module:
    from peft import get_peft_model

    from craft.tuners.craft.config import CraftConfig

    config = CraftConfig(task_type=context.task_type, init_seed=context.seed, **parameters.model_dump())
    return get_peft_model(model, config)


def resolve(model: nn.Module, parameters: CraftParameters) -> dict[str, Any]:
    """The parameters with the ranks of each stack as numbers: `all` is what it stands for on `model`."""
    from craft.factors.hosvd import resolve_ranks
    from craft.models.projections import find_projections

    stacks = find_projections(model, parameters.projections)
    ranks = {name: list(resolve_ranks(parameters.ranks, (len(stack), *stack[0].shape))) for name, stack in stacks.items()}
    return parameters.model_dump(mode="json") | {"ranks": ranks}


def label(parameters: Any) -> str:
    ranks = "·".join("L" if rank == "all" else str(rank) for rank in parameters.ranks)
    drop = f" p {parameters.dropout:g}" if parameters.dropout else ""
    return f"{ranks} {letters(parameters.projections)}{drop}"


def describe(model: nn.Module) -> dict[str, float]:
    """`energy_kept`: ‖G‖² over ‖W‖², summed over the projections."""
    stacks = model.base_model.craft_adapter("default").stacks.values()  # type: ignore[union-attr, operator]
    kept = sum(float(stack.factors.core.double().square().sum()) for stack in stacks)
    return {"energy_kept": kept / sum(stack.factors.squared_norm for stack in stacks)}


METHOD: Method = Method(
    name="craft",
    title="CRAFT",
    reference="CRAFT: Cross-layer Rank Adaptation via Frozen Tucker",
    parameters=CraftParameters,
    build=build,
    label=label,
    resolve=resolve,
    describe=describe,
)
METHODS: tuple[Method, ...] = (METHOD, replace(METHOD, name="craft_star", title="CRAFT*", parameters=CraftStarParameters))

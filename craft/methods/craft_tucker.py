"""CRAFT: small J matrices between frozen HOSVD factors of weights stacked across layers.

`craft_star` is the paper's CRAFT*: the same on the query, key, value and output projections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, ValidationInfo, field_validator, model_serializer, model_validator

from craft.methods.method import BuildContext, Method
from craft.methods.nested import (
    DEFAULT_RATE_SCALING,
    DEFAULT_WAY,
    REFERENCE_RANK,
    RateScaling,
    Triple,
    Way,
    checked_chain,
    checked_triple,
)
from craft.settings import RECORDED, Settings

if TYPE_CHECKING:
    import torch
    from torch import nn


class CraftParameters(Settings):
    """What CRAFT takes."""

    ranks: Triple = Field(
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
    rate_scaling: RateScaling = Field(
        DEFAULT_RATE_SCALING,
        description=f"`rank`: an entry of J2 or J3 learns at `learning_rate` x {REFERENCE_RANK} / its rank (of nested "
        "ranks, the smallest that holds it). `none`: the whole of J learns at `learning_rate`.",
    )
    nested: tuple[Triple, ...] | None = Field(
        None, description="All ranks that one training trains together as slices of one J; `ranks` is one of them."
    )
    nested_training: Way | None = Field(
        None,
        description="How nested ranks are trained. `cut`: the largest alone. `drawn`: each batch at the largest and at one "
        "smaller rank drawn a step. `all`: each batch at every rank. `shrink`: the largest, and then one smaller one "
        "after another, each cut from the one before, in half as many steps for all of them. "
        f"`{DEFAULT_WAY}` if absent.",
    )

    @model_validator(mode="before")
    @classmethod
    def _records_without_a_scaling_had_none(cls, given: Any, info: ValidationInfo) -> Any:
        if info.context == RECORDED and isinstance(given, Mapping):
            return {"rate_scaling": "none", **given}
        return given

    @field_validator("ranks")
    @classmethod
    def _positive(cls, ranks: Triple) -> Triple:
        return checked_triple(ranks)

    @field_validator("nested")
    @classmethod
    def _nest(cls, triples: tuple[Triple, ...] | None) -> tuple[Triple, ...] | None:
        return None if triples is None else checked_chain(triples)

    @model_validator(mode="after")
    def _one_of_them(self) -> CraftParameters:
        if self.nested is None:
            if self.nested_training is not None:
                raise ValueError("nested_training says how nested ranks are trained, and `nested` lists none")
            return self
        if self.ranks not in self.nested:
            raise ValueError(f"ranks {list(self.ranks)} are none of the nested ones: {[list(one) for one in self.nested]}")
        if self.nested_training is None:
            object.__setattr__(self, "nested_training", DEFAULT_WAY)
        return self

    @model_serializer(mode="wrap")
    def _as_earlier_versions_where_unused(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = plain(self)
        unused = {"nested", "nested_training"} if self.nested is None else set()
        if self.rate_scaling == DEFAULT_RATE_SCALING == "none":
            unused.add("rate_scaling")
        return {name: value for name, value in content.items() if name not in unused}

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

    settings = parameters.model_dump(exclude={"rate_scaling", "nested", "nested_training"})
    return get_peft_model(model, CraftConfig(task_type=context.task_type, init_seed=context.seed, **settings))


def optimizer(
    model: nn.Module, groups: list[dict[str, Any]], parameters: CraftParameters, context: BuildContext
) -> torch.optim.Optimizer:
    """AdamW; with `rate_scaling: rank` an entry's learning rate falls with its rank."""
    import torch

    from craft.factors.hosvd import Ranks, resolve_ranks
    from craft.tuners.craft.rates import scaled_adamw
    from craft.tuners.craft.stack import Stack

    if parameters.rate_scaling == "none":
        return torch.optim.AdamW(groups)

    def trained(stack: Stack) -> list[Ranks]:
        return [resolve_ranks(ranks, stack.shape) for ranks in parameters.nested or (parameters.ranks,)]

    adapter = model.base_model.craft_adapter("default")  # type: ignore[union-attr, operator]
    return scaled_adamw(groups, adapter, trained, REFERENCE_RANK)


def resolve(model: nn.Module, parameters: CraftParameters) -> dict[str, Any]:
    """The parameters with the ranks of each stack as numbers: `all` is what it stands for on `model`."""
    from craft.factors.hosvd import resolve_ranks
    from craft.models.projections import find_projections

    stacks = find_projections(model, parameters.projections)

    def resolved(triple: Triple) -> dict[str, list[int]]:
        return {name: list(resolve_ranks(triple, (len(stack), *stack[0].shape))) for name, stack in stacks.items()}

    others = {} if parameters.nested is None else {"nested": [resolved(one) for one in parameters.nested]}
    return parameters.model_dump(mode="json") | {"ranks": resolved(parameters.ranks)} | others


def label(parameters: Any) -> str:
    parts = [_short(parameters.ranks), " ".join(parameters.projections)]
    if parameters.nested:
        within = "" if parameters.ranks == parameters.nested[-1] else f" in {_short(parameters.nested[-1])}"
        way = "" if parameters.nested_training == DEFAULT_WAY else f" ({parameters.nested_training})"
        parts.append(f"nested{within}{way}")
    return ", ".join(parts)


def _short(ranks: Triple) -> str:
    """`64` for ranks (all, 64, 64), in full otherwise."""
    return str(ranks[1]) if ranks[0] == "all" and ranks[1] == ranks[2] else f"({','.join(map(str, ranks))})"


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
    optimizer=optimizer,
    resolve=resolve,
    decays_to_start=True,
    describe=describe,
)
METHODS: tuple[Method, ...] = (METHOD, replace(METHOD, name="craft_star", title="CRAFT*", parameters=CraftStarParameters))

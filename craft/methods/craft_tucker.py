"""CRAFT: small J matrices between frozen HOSVD factors of weights stacked across layers.

`craft_star` is the paper's CRAFT*: the same on the query, key, value and output projections.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator

from craft.methods.cutting import J_MINUS_I
from craft.methods.method import WIDTH, BuildContext, Method, Projected
from craft.ranks import check_ranks, resolve_ranks, show_ranks
from craft.settings import Projections

if TYPE_CHECKING:
    import torch
    from torch import nn

Rank = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1})] | Literal["all"]
Triple = tuple[Rank, Rank, Rank]

REFERENCE_RANK = 64
"""The rank at which `rate_scaling: rank` changes nothing."""


class CraftParameters(Projected):
    ranks: Triple = Field(("all", 64, 64), description="Ranks of layers, outputs and inputs; `all`: the full dimension.")
    projections: Projections = Field(
        ("q", "v"), min_length=1, description="Stacked projections. q, k, v, o, and the MLP's gate, up, down."
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of the entries of J.")
    scaling: float = Field(1.0, gt=0, description="Factor on the change of the weights.")
    init_epsilon: float = Field(1e-3, ge=0, description="J starts at I + epsilon N(0, 1).")
    rate_scaling: Literal["none", "rank"] = Field(
        "none",
        description=f"`rank`: J2 and J3 learn at `learning_rate` x {REFERENCE_RANK} / their rank. `none`: all of J learns at "
        "`learning_rate`.",
    )

    _check = field_validator("ranks")(check_ranks)


class CraftStarParameters(CraftParameters):
    projections: Projections = Field(
        ("q", "k", "v", "o"), min_length=1, description=CraftParameters.model_fields["projections"].description
    )


def build(model: nn.Module, parameters: CraftParameters, context: BuildContext) -> nn.Module:
    from peft import get_peft_model

    from craft.models.loading import head_names
    from craft.models.projections import find_projections
    from craft.tuners.craft.config import CraftConfig

    settings = parameters.model_dump(exclude={"rate_scaling", "layers"})
    if parameters.layers is not None:
        stacks, chosen = (find_projections(model, parameters.projections, layers=each) for each in (None, parameters.layers))
        places = {place for stack in chosen.values() for place in stack}
        settings["exclude_modules"] = [each.module_name for stack in stacks.values() for each in stack if each not in places]
    settings["modules_to_save"] = [*head_names(model)] or None
    settings["projection_map"] = getattr(model, "craft_projection_map", None) or None  # PEFT alone finds the modules again
    return get_peft_model(model, CraftConfig(task_type=context.task_type, init_seed=context.seed, **settings))


def optimizer(
    model: nn.Module, groups: list[dict[str, Any]], parameters: CraftParameters, context: BuildContext
) -> torch.optim.Optimizer:
    """Makes AdamW; with `rate_scaling: rank` J2 and J3 learn the slower the larger they are."""
    from craft.models.compute import adamw
    from craft.tuners.craft.model import scale_by_rank

    if parameters.rate_scaling == "rank":
        groups = scale_by_rank(groups, model, REFERENCE_RANK)
    return adamw(groups)


def resolve(model: nn.Module, parameters: CraftParameters) -> dict[str, Any]:
    """Returns the parameters with the ranks of each stack as numbers: `all` becomes the dimension on `model`."""
    from craft.models.projections import find_projections

    stacks = find_projections(model, parameters.projections, layers=parameters.layers)
    ranks = {name: list(resolve_ranks(parameters.ranks, (len(stack), *stack[0].shape))) for name, stack in stacks.items()}
    return parameters.model_dump(mode="json") | {"ranks": ranks}


def label(parameters: Any) -> str:
    return f"{show_ranks(parameters.ranks)}, {' '.join(parameters.projections)}"


def rate(parameters: CraftParameters) -> float:
    largest = max(rank if isinstance(rank, int) else WIDTH for rank in parameters.ranks[1:])
    return 2e-3 / parameters.scaling * (REFERENCE_RANK / largest if parameters.rate_scaling == "none" else 1)


def describe(model: nn.Module) -> dict[str, float]:
    """Computes `energy_kept`: ‖G‖² over ‖W‖², summed over the projections."""
    stacks = model.base_model.craft_adapter("default").stacks.values()  # type: ignore[union-attr, operator]
    energy = sum(float(stack.core.double().square().sum()) for stack in stacks)
    return {"energy_kept": energy / sum(stack.squared_norm for stack in stacks)}


METHOD: Method = Method(
    name="craft",
    title="CRAFT",
    reference="Dewage et al. 2026, arXiv 2602.17510",
    parameters=CraftParameters,
    build=build,
    label=label,
    optimizer=optimizer,
    resolve=resolve,
    decays_to_start=True,
    copies=(0, 0),
    describe=describe,
    cutting=J_MINUS_I,
    rank="ranks",
    rate=rate,
    one_rate={"rate_scaling": "rank"},
)
METHODS: tuple[Method, ...] = (METHOD, replace(METHOD, name="craft_star", title="CRAFT*", parameters=CraftStarParameters))

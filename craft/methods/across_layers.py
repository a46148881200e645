"""Changes of many weights as one tensor: LoTR (`craft.tuners.lotr`) and SuperLoRA (`craft.tuners.superlora`)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from craft.methods.method import Method
from craft.methods.projected import Projected, attaches, rank_field, rank_label

_SCALING: Any = Field(1.0, gt=0, description="Factor on the change of the weights.")


class LotrParameters(Projected):
    rank: int = rank_field(32, "Rank of the shared factors.")
    scaling: float = _SCALING


class SuperloraParameters(Projected):
    rank: int = rank_field(8, "Tucker rank of every group.")
    groups: int = Field(4, gt=0, description="Groups that the joined weights are divided into.")
    order: int = Field(3, ge=2, le=5, description="Dimensions of the tensor that a group is folded into.")
    scaling: float = _SCALING


METHODS: tuple[Method, ...] = (
    Method(
        name="lotr",
        title="LoTR",
        reference="Bershatsky et al. 2024, arXiv 2402.01376",
        parameters=LotrParameters,
        build=attaches("LOTR", r="rank", scaling="scaling"),
        label=rank_label,
    ),
    Method(
        name="superlora",
        title="SuperLoRA",
        reference="Chen et al. 2024, arXiv 2403.11887",
        parameters=SuperloraParameters,
        build=attaches("SUPERLORA", r="rank", groups="groups", order="order", scaling="scaling"),
        label=lambda each: f"r{each.rank} {each.groups}x{each.order}D, {' '.join(each.projections)}",
    ),
)

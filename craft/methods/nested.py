"""Nested ranks as data: which triples one training of CRAFT trains together, and how. No torch.

HOSVD factors nest, so the leading slices of J1, J2, J3 are themselves a CRAFT adapter of a smaller rank::

    nested [[all, 16, 16], [all, 32, 32]]      J of (all, 32, 32)  ->  J1, J2[:16, :16], J3[:16, :16]  is J of (all, 16, 16)

A `Way` says how J is trained so that every slice is good. Every slice is a configuration of its own; the run of the largest is
the training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

Rank = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 1})] | Literal["all"]
Triple = tuple[Rank, Rank, Rank]
RateScaling = Literal["none", "rank"]
Way = Literal["cut", "drawn", "all", "shrink"]

DEFAULT_WAY: Way = "shrink"
DEFAULT_RATE_SCALING: RateScaling = "none"
SHRINKING_SHARE = 1 / 2
"""How long `shrink` trains all smaller ranks, as a share of the largest's steps."""
REFERENCE_RANK = 64
"""The rank at which `rate_scaling: rank` changes nothing."""


def checked_triple(ranks: Triple) -> Triple:
    """`ranks` as they are. Raises ValueError for a rank below 1."""
    if any(rank != "all" and rank < 1 for rank in ranks):
        raise ValueError(f"ranks are whole numbers from 1, or 'all'; got {list(ranks)}")
    return ranks


def checked_chain(triples: Sequence[Triple]) -> tuple[Triple, ...]:
    """The triples in ascending order, each within the next one.

    Raises:
        ValueError: there are none, one stands there twice, or two do not nest.
    """
    ordered = tuple(sorted((checked_triple(one) for one in triples), key=_size))
    if not ordered:
        raise ValueError("nested ranks are one or more triples, such as [[all, 16, 16], [all, 32, 32]]; got none")
    for small, large in pairwise(ordered):
        if small == large:
            raise ValueError(f"nested ranks name each triple once; got {list(small)} twice")
        if any(one > other for one, other in zip(_size(small), _size(large), strict=True)):
            raise ValueError(
                f"nested ranks lie one within the other, and {list(small)} does not lie within {list(large)}: none of its "
                "three ranks may be larger ('all' is the largest)"
            )
    return ordered


def ranks_a_step(way: Way | None, triples: int) -> int:
    """At how many ranks one step trains its batch."""
    return {"drawn": min(2, triples), "all": triples}.get(way or "cut", 1)


def stages(parameters: Mapping[str, Any]) -> int:
    """How many ranks a run with these parameters of its method trains one after another."""
    return len(parameters["nested"]) if parameters.get("nested_training") == "shrink" else 1


def _size(triple: Triple) -> tuple[float, ...]:
    return tuple(float("inf") if rank == "all" else float(rank) for rank in triple)

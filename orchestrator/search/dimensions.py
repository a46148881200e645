"""Dimensions of a search space in numbers and texts: the place of a value in its range, a choice as texts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from craft.settings import content_hash
from orchestrator.sweepfile.space.dimensions import Block, Choice, Dimension, Range
from orchestrator.sweepfile.space.ordering import has_order, ordered


def title_of(block: Block) -> str:
    """Returns the name of a block among the others."""
    return f"{block.index} {block.method}"


def space_of(blocks: Sequence[Block]) -> str:
    """Returns 6 hexadecimal digits that are equal for equal spaces."""
    dimensions = [{name: repr(dimension) for name, dimension in block.dimensions.items()} for block in blocks]
    return content_hash([[title_of(block), ours] for block, ours in zip(blocks, dimensions, strict=True)], 6)


def at(dimension: Dimension, share: float) -> Any:
    """Returns the value of a dimension at a share from 0 to 1 of its length."""
    if isinstance(dimension, Choice):
        order = ordered(dimension.values) if has_order(dimension.values) else range(len(dimension.values))
        return dimension.values[order[min(int(share * len(order)), len(order) - 1)]]
    start, end, _, back = _scale(dimension)
    low, high = dimension.ends
    value = min(max(back(start + share * (end - start)), low), high)
    return min(max(round(value), int(low)), int(high)) if dimension.distribution.startswith("int_") else value


def _scale(dimension: Range) -> tuple[float, float, Callable[[float], float], Callable[[float], float]]:
    """Returns the ends on the scale on which all values are equally likely, and the functions to that scale and back."""
    low, high = dimension.ends
    room = 0.5 if dimension.distribution.startswith("int_") else 0.0
    into, back = (math.log, math.exp) if "log" in dimension.distribution else (float, float)
    return into(low - room), into(high + room), into, back


def texts_of(choice: Choice) -> list[str]:
    """Returns the values as texts, which Optuna's categories can be."""
    return [json.dumps(value) for value in choice.values]


def share_of(dimension: Dimension, value: Any) -> float:
    """Returns the share at which `at` gives the value of an ordered dimension."""
    if isinstance(dimension, Choice):
        return (ordered(dimension.values).index(dimension.values.index(value)) + 0.5) / len(dimension.values)
    start, end, into, _ = _scale(dimension)
    return min(max((into(value) - start) / (end - start), 0.0), 1.0)

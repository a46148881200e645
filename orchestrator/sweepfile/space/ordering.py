"""Choices whose values have an order, such as ranks that grow together: a searcher can treat them as numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from orchestrator.sweepfile.space.dimensions import Choice, Dimension


def is_fixed(dimension: Dimension) -> bool:
    """Returns whether the dimension has one value only."""
    return len(dimension.values) == 1 if isinstance(dimension, Choice) else dimension.low == dimension.high


def is_ordered(dimension: Dimension) -> bool:
    """Returns whether the dimension is a range, or a choice whose values have an order."""
    return not isinstance(dimension, Choice) or has_order(dimension.values)


def has_order(values: Sequence[Any]) -> bool:
    """Returns whether the values are numbers, or lists of equal length that differ only in numbers that grow together."""
    if len(values) < 2:
        return False
    if all(_is_number(value) for value in values):
        return len(set(values)) == len(values)
    if not all(isinstance(value, list | tuple) and len(value) == len(values[0]) for value in values):
        return False
    columns = list(zip(*values, strict=True))
    moving = [column for column in columns if any(value != column[0] for value in column)]
    if not moving or not all(_is_number(value) for column in moving for value in column):
        return False
    rows = sorted(zip(*moving, strict=True))
    return all(
        all(low <= high for low, high in zip(before, after, strict=True)) and before != after
        for before, after in itertools.pairwise(rows)
    )


def ordered(values: Sequence[Any]) -> list[int]:
    """Returns the indices of the values, from the smallest to the largest value."""
    if _is_number(values[0]):
        return sorted(range(len(values)), key=lambda place: values[place])
    return sorted(range(len(values)), key=lambda place: [value for value in values[place] if _is_number(value)])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

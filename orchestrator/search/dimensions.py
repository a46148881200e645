"""The search space in Optuna's words: method blocks as conditional parameters, as the study on disk keeps them.

A choice whose values have an order (numbers, or ranks that grow together) becomes a whole number, the place of the value in the
order, so that a searcher knows which values lie near each other; its name then ends in `.place`. Every other choice is
categorical. A choice of one value is no dimension.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from optuna.trial import BaseTrial

from craft.settings import content_hash
from orchestrator.sweepfile.space.dimensions import Block, Choice, Dimension, Point, point
from orchestrator.sweepfile.space.ordering import has_order, ordered

BLOCK = "block"


class Encoding:
    """Points of `blocks` as parameters of an Optuna trial, and back."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = {f"{block.index} {block.method}": block for block in blocks}

    @property
    def signature(self) -> list[Any]:
        """Equal for equal spaces. Its hash names the space's study in files of earlier sessions, so it must not change."""
        return [
            [title, {name: _identity(one) for name, one in block.dimensions.items()}] for title, block in self._blocks.items()
        ]

    def suggest(self, trial: BaseTrial) -> Point:
        """The point that the study suggests in `trial`: first a block, then the dimensions of that block."""
        titles = list(self._blocks)
        title = trial.suggest_categorical(BLOCK, titles) if len(titles) > 1 else titles[0]
        block = self._blocks[str(title)]
        return point(
            block, {name: _suggest(trial, self._name(title, name, one), one) for name, one in block.dimensions.items()}
        )

    def parameters(self, given: Point) -> dict[str, Any]:
        """The parameters by which a study would suggest `given`."""
        title = f"{given.block} {given.method}"
        values = given.values
        block = self._blocks[title]
        found: dict[str, Any] = {BLOCK: title} if len(self._blocks) > 1 else {}
        for name, one in block.dimensions.items():
            if not isinstance(one, Choice):
                found[self._name(title, name, one)] = values[name]
            elif len(one.values) > 1:
                place = one.values.index(values[name])
                found[self._name(title, name, one)] = (
                    ordered(one.values).index(place) if has_order(one.values) else words(one)[place]
                )
        return found

    def _name(self, title: str, name: str, dimension: Dimension) -> str:
        plain = f"{title}.{name}" if len(self._blocks) > 1 else name
        return f"{plain}.place" if isinstance(dimension, Choice) and has_order(dimension.values) else plain


def _identity(dimension: Dimension) -> str:
    # Written out, so that classes and fields may be renamed without losing the studies on disk.
    if isinstance(dimension, Choice):
        return f"Choice(values={dimension.values!r})"
    return f"Range(low={dimension.low!r}, high={dimension.high!r}, distribution={dimension.distribution!r})"


def _suggest(trial: BaseTrial, name: str, dimension: Dimension) -> Any:
    if not isinstance(dimension, Choice):
        low, high = dimension.ends
        log = "log" in dimension.distribution
        if dimension.distribution.startswith("int_"):
            return trial.suggest_int(name, int(low), int(high), log=log)
        return trial.suggest_float(name, low, high, log=log)
    values = dimension.values
    if len(values) == 1:
        return values[0]
    if has_order(values):
        return values[ordered(values)[trial.suggest_int(name, 0, len(values) - 1)]]
    texts = words(dimension)
    return values[texts.index(trial.suggest_categorical(name, texts))]


def title_of(block: Block) -> str:
    """Returns the name of a block among the others."""
    return f"{block.index} {block.method}"


def space_of(blocks: Sequence[Block]) -> str:
    """Returns 6 hexadecimal digits that are equal for equal spaces."""
    dimensions = [{name: repr(dimension) for name, dimension in block.dimensions.items()} for block in blocks]
    return content_hash([[title_of(block), ours] for block, ours in zip(blocks, dimensions, strict=True)], 6)


def at(dimension: Dimension, share: float) -> Any:
    """The value of a dimension at a share from 0 to 1 of its length."""
    if isinstance(dimension, Choice):
        order = ordered(dimension.values) if has_order(dimension.values) else range(len(dimension.values))
        return dimension.values[order[_place(share, len(dimension.values))]]
    low, high = dimension.ends
    whole = dimension.distribution.startswith("int_")
    room = 0.5 if whole else 0.0
    into: Callable[[float], float] = math.log if "log" in dimension.distribution else float
    back: Callable[[float], float] = math.exp if "log" in dimension.distribution else float
    start, end = into(low - room), into(high + room)
    value = min(max(back(start + share * (end - start)), low), high)
    return min(max(round(value), int(low)), int(high)) if whole else value


def _place(share: float, count: int) -> int:
    return min(int(share * count), count - 1)


def words(choice: Choice) -> list[str]:
    """The values as texts, which Optuna's categories can be."""
    return [json.dumps(value) for value in choice.values]


def share_of(dimension: Dimension, value: Any) -> float:
    """The share at which `at` gives the value of an ordered dimension."""
    if isinstance(dimension, Choice):
        return (ordered(dimension.values).index(dimension.values.index(value)) + 0.5) / len(dimension.values)
    low, high = dimension.ends
    room = 0.5 if dimension.distribution.startswith("int_") else 0.0
    into: Callable[[float], float] = math.log if "log" in dimension.distribution else float
    start, end = into(low - room), into(high + room)
    return min(max((into(value) - start) / (end - start), 0.0), 1.0)

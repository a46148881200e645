"""The search space: method blocks with dimensions of their own, enumerated or sampled.

A *dimension* is a choice of values or a range of numbers; a fixed value is a choice of one. A *block* is one method with its
dimensions. A *point* is one value for every dimension of one block. `blocks` reads blocks from a file. Values that have an
order, such as ranks that grow together, can be numbers for a searcher.
"""

from __future__ import annotations

import itertools
import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from craft.methods import METHODS
from orchestrator.sweepfile.mistakes import YamlPath, is_number

CONFIG = "config"
"""The parameter of a method that holds further ones. A dimension inside it is called `config.KEY`."""


@dataclass(frozen=True)
class Choice:
    """One of `values`; a fixed value is a choice of one."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        """All of its values: what a check of the space tries."""
        return self.values


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`, both included."""

    low: float
    high: float
    distribution: str

    @property
    def ends(self) -> tuple[float | int, float | int]:
        is_integer = self.distribution.startswith("int_")
        return (int(self.low), int(self.high)) if is_integer else (self.low, self.high)


Dimension = Choice | Range


@dataclass(frozen=True)
class Block:
    """One method block: `dimensions` by the canonical names of the method's parameters and of training settings.

    The other fields are the block's further keys (`orchestrator.sweepfile.space.blocks.OWN_KEYS`).
    """

    index: int
    method: str
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    task_training: dict[str, dict[str, Any]] = field(default_factory=dict)
    warm_start: bool = True
    resources: dict[str, Any] = field(default_factory=dict)
    tuned: bool = True
    sizes: list[int] | int | None = None

    @property
    def own(self) -> dict[str, Any]:
        """Those of the further keys that are part of a configuration, if they are not the defaults."""
        settings: dict[str, Any] = {"task_training": self.task_training} if self.task_training else {}
        return settings if self.warm_start else settings | {"warm_start": False}

    @property
    def path(self) -> YamlPath:
        return ("space", self.index)

    @property
    def ranges(self) -> list[str]:
        return [name for name, dimension in self.dimensions.items() if isinstance(dimension, Range)]

    @property
    def size(self) -> int:
        """Number of combinations of the block's choices, without its ranges."""
        return math.prod(len(choice.values) for choice in self.dimensions.values() if isinstance(choice, Choice))


@dataclass(frozen=True)
class Point:
    """One value for every dimension of the block with index `block`: `parameters` of the method, `training` settings."""

    block: int
    method: str
    parameters: dict[str, Any]
    training: dict[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        """The values by the names of their dimensions."""
        inside = {f"{CONFIG}.{name}": value for name, value in self.parameters.get(CONFIG, {}).items()}
        return {name: value for name, value in self.parameters.items() if name != CONFIG} | inside | self.training


def grid(blocks: tuple[Block, ...]) -> Iterator[Point]:
    """Yields every combination of every block, in the order of the file; the last dimension changes fastest."""
    for block in blocks:
        if block.ranges:
            raise ValueError(f"space.{block.index}: {', '.join(block.ranges)} cannot be enumerated; give values")
        names = list(block.dimensions)
        choices = [choice.values for choice in block.dimensions.values() if isinstance(choice, Choice)]
        for values in itertools.product(*choices):
            yield point(block, dict(zip(names, values, strict=True)))


def sample(blocks: tuple[Block, ...], seed: int) -> Iterator[Point]:
    """Yields random points without end: a block, all equally likely, then a value of each of its dimensions.

    The first n points do not depend on how many follow, so that a sweep can be extended.
    """
    generator = random.Random(seed)
    while True:
        block = generator.choice(blocks)
        yield point(block, {name: at(dimension, generator.random()) for name, dimension in block.dimensions.items()})


def neighbours(blocks: tuple[Block, ...], near: Point, seed: int) -> Iterator[Point]:
    """Yields points of the same block that differ from `near` in one dimension: every other value, or three from a range."""
    generator = random.Random(seed)
    block = next(block for block in blocks if block.index == near.block)
    values = near.values
    for name, dimension in block.dimensions.items():
        options = dimension.values if isinstance(dimension, Choice) else [at(dimension, generator.random()) for _ in range(3)]
        yield from (point(block, {**values, name: option}) for option in options if option != values[name])


def covering(blocks: tuple[Block, ...]) -> Iterator[Point]:
    """Yields a few points with every value of every choice and both ends of every range, to check a space."""
    for block in blocks:
        columns = {name: dimension.ends for name, dimension in block.dimensions.items()}
        for row in range(max((len(column) for column in columns.values()), default=1)):
            yield point(block, {name: column[row % len(column)] for name, column in columns.items()})


def point(block: Block, values: dict[str, Any]) -> Point:
    """Returns the point of `block` with `values`, divided into the method's parameters and training settings."""
    fields = METHODS[block.method].parameters.model_fields
    inside = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{CONFIG}.")}
    return Point(
        block.index,
        block.method,
        {name: value for name, value in values.items() if name in fields} | ({CONFIG: inside} if inside else {}),
        {name: value for name, value in values.items() if name.partition(".")[0] not in fields},
    )


def at(dimension: Dimension, share: float) -> Any:
    """Returns the value of a dimension at a share from 0 to 1 of its length."""
    if isinstance(dimension, Choice):
        order = ordered(dimension.values) if has_order(dimension.values) else range(len(dimension.values))
        return dimension.values[order[min(int(share * len(order)), len(order) - 1)]]
    start, end, _, back = scale(dimension)
    low, high = dimension.ends
    value = min(max(back(start + share * (end - start)), low), high)
    return min(max(round(value), int(low)), int(high)) if dimension.distribution.startswith("int_") else value


def scale(dimension: Range) -> tuple[float, float, Callable[[float], float], Callable[[float], float]]:
    """Returns the ends on the scale on which all values are equally likely, and the functions to that scale and back."""
    low, high = dimension.ends
    # Half a step on both sides gives the ends the weight of their neighbours.
    margin = 0.5 if dimension.distribution.startswith("int_") else 0.0
    into, back = (math.log, math.exp) if "log" in dimension.distribution else (float, float)
    return into(low - margin), into(high + margin), into, back


def is_fixed(dimension: Dimension) -> bool:
    return len(dimension.values) == 1 if isinstance(dimension, Choice) else dimension.low == dimension.high


def is_ordered(dimension: Dimension) -> bool:
    """Returns whether the dimension is a range, or a choice whose values have an order."""
    return not isinstance(dimension, Choice) or has_order(dimension.values)


def has_order(values: Sequence[Any]) -> bool:
    """Returns whether the values are numbers, or lists of equal length that differ only in numbers that grow together."""
    rows = [value if isinstance(value, list | tuple) else [value] for value in values]
    if len({*map(len, rows)}) != 1:
        return False
    moving = [column for column in zip(*rows, strict=True) if any(value != column[0] for value in column)]
    if not moving or not all(is_number(value) for column in moving for value in column):
        return False
    steps = itertools.pairwise(sorted(zip(*moving, strict=True)))
    return all(low != high and all(map(operator.le, low, high)) for low, high in steps)


def ordered(values: Sequence[Any]) -> list[int]:
    """Returns the indices of the values, from the smallest to the largest value."""

    def numbers(place: int) -> list[Any]:
        value = values[place]
        return [number for number in (value if isinstance(value, list | tuple) else [value]) if is_number(number)]

    return sorted(range(len(values)), key=numbers)

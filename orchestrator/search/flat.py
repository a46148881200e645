"""The search space without conditions, for samplers that cannot share what they learn between conditional blocks.

    method (category) · size (0 to 1) · every other dimension by name (0 to 1 of its own range in the block)

`size` is the logarithm of a cost that is known before training. A block's *size dimension* is the ordered dimension that
changes this cost most, such as a rank; it takes the value whose cost is nearest. So one size means about the same cost in every
block, and one learning rate means the same place in each method's own range. A dimension that a block does not have says
nothing there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from craft.settings import content_hash
from orchestrator.sweepfile.space.dimensions import (
    Block,
    Choice,
    Dimension,
    Point,
    at,
    covering,
    is_fixed,
    is_ordered,
    ordered,
    point,
    scale,
)


def title_of(block: Block) -> str:
    return f"{block.index} {block.method}"


def space_of(blocks: Sequence[Block]) -> str:
    """Returns 6 hexadecimal digits that are equal for equal spaces."""
    dimensions = [{name: repr(dimension) for name, dimension in block.dimensions.items()} for block in blocks]
    return content_hash([[title_of(block), ours] for block, ours in zip(blocks, dimensions, strict=True)], 6)


def texts_of(choice: Choice) -> list[str]:
    """Returns the values as texts, which Optuna's categories can be."""
    return [json.dumps(value) for value in choice.values]


BLOCK, SIZE = "block", "size"
HALVINGS = 12
"""A size within a range is found by halving the range this often."""

Cost = Callable[[Point], float | None]
"""Gives the cost of a point that is known before training; None if there is none, or the point cannot be built."""


class FlatSpace:
    """Points of `blocks` as parameters without conditions, and back."""

    def __init__(self, blocks: Sequence[Block], cost: Cost) -> None:
        self._blocks = {title_of(block): block for block in blocks}
        self._cost = cost
        self._log_costs: dict[str, float | None] = {}
        self._sized = {title: self._size_dimension(block) for title, block in self._blocks.items()}
        extremes = [self._log_cost(extreme) for block in blocks for extreme in self._extremes(block)]
        costs = [cost for cost in extremes if cost is not None]
        self._ends = (min(costs), max(costs)) if costs else (0.0, 0.0)
        self.distributions = self._distributions()

    def point(self, parameters: Mapping[str, Any]) -> Point:
        """Returns the point of `parameters`."""
        title = str(parameters.get(BLOCK, next(iter(self._blocks))))
        block, sized = self._blocks[title], self._sized[title]
        values: dict[str, Any] = {}
        for name, dimension in block.dimensions.items():
            if is_fixed(dimension):
                values[name] = at(dimension, 0.0)
            elif name != sized:
                values[name] = _decoded(dimension, parameters[_key(name, dimension)])
        if sized is not None:
            low, high = self._ends
            values[sized] = self._of_size(block, values, sized, low + parameters[SIZE] * (high - low))
        return point(block, {name: values[name] for name in block.dimensions})

    def parameters(self, place: Point) -> dict[str, Any]:
        """Returns the parameters of a point; the middle for a dimension that its block does not have."""
        block = next(block for block in self._blocks.values() if block.index == place.block)
        parameters = {key: _middle(distribution) for key, distribution in self.distributions.items()}
        if BLOCK in self.distributions:
            parameters[BLOCK] = title_of(block)
        for name, dimension in block.dimensions.items():
            if is_fixed(dimension):
                continue
            if name == self._sized[title_of(block)]:
                cost, (low, high) = self._log_cost(place), self._ends
                parameters[SIZE] = min(max((cost - low) / (high - low), 0.0), 1.0) if cost is not None else 0.5
            else:
                key = _key(name, dimension)
                parameters[key] = _encoded(dimension, place.values[name], self.distributions[key])
        return parameters

    def _distributions(self) -> dict[str, BaseDistribution]:
        distributions: dict[str, BaseDistribution] = {}
        if len(self._blocks) > 1:
            distributions[BLOCK] = CategoricalDistribution(list(self._blocks))
        if any(self._sized.values()):
            distributions[SIZE] = FloatDistribution(0.0, 1.0)
        searched: dict[str, list[Dimension]] = {}
        for title, block in self._blocks.items():
            for name, dimension in block.dimensions.items():
                if not is_fixed(dimension) and name != self._sized[title]:
                    searched.setdefault(_key(name, dimension), []).append(dimension)
        return distributions | {key: _distribution(dimensions) for key, dimensions in searched.items()}

    def _size_dimension(self, block: Block) -> str | None:
        start = {name: at(dimension, 0.0) for name, dimension in block.dimensions.items()}
        start_cost = self._log_cost(point(block, start))
        if start_cost is None:
            return None
        changes: dict[str, float] = {}
        for name, dimension in block.dimensions.items():
            if not is_fixed(dimension) and is_ordered(dimension):
                after = self._log_cost(point(block, start | {name: at(dimension, 1.0)}))
                changes[name] = abs(after - start_cost) if after is not None else 0.0
        largest = max(changes, key=changes.__getitem__, default=None)
        return largest if largest is not None and changes[largest] > 0 else None

    def _extremes(self, block: Block) -> Iterator[Point]:
        """Yields points that have every value of a choice with the smallest and with the largest size."""
        sized = self._sized[title_of(block)]
        for corner in covering((block,)):
            ends = [{sized: at(block.dimensions[sized], share)} for share in (0.0, 1.0)] if sized else [{}]
            yield from (point(block, corner.values | end) for end in ends)

    def _of_size(self, block: Block, values: dict[str, Any], name: str, target: float) -> Any:
        """Returns the value of the size dimension whose cost is nearest to `target`."""
        dimension = block.dimensions[name]

        def gap(value: Any) -> float:
            cost = self._log_cost(point(block, values | {name: value}))
            return math.inf if cost is None else cost - target

        if isinstance(dimension, Choice):
            return min(dimension.values, key=lambda value: abs(gap(value)))
        low, high = 0.0, 1.0
        grows = gap(at(dimension, high)) > gap(at(dimension, low))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if (gap(at(dimension, middle)) > 0) == grows else (middle, high)
        return min((at(dimension, low), at(dimension, high)), key=lambda value: abs(gap(value)))

    def _log_cost(self, place: Point) -> float | None:
        key = repr(place)
        if key not in self._log_costs:
            cost = self._cost(place)
            self._log_costs[key] = math.log(cost) if cost is not None and cost > 0 else None
        return self._log_costs[key]


def _key(name: str, dimension: Dimension) -> str:
    if isinstance(dimension, Choice) and not is_ordered(dimension):
        return f"{name} of {', '.join(texts_of(dimension))}"
    return name


def _distribution(dimensions: Sequence[Dimension]) -> BaseDistribution:
    """Returns the distribution for all blocks that have a dimension: places of a choice if they have as many values,
    otherwise shares."""
    first = dimensions[0]
    if isinstance(first, Choice) and not is_ordered(first):
        return CategoricalDistribution(texts_of(first))
    lengths = {len(dimension.values) if isinstance(dimension, Choice) else 0 for dimension in dimensions}
    return IntDistribution(0, lengths.pop() - 1) if len(lengths) == 1 and 0 not in lengths else FloatDistribution(0.0, 1.0)


def _middle(distribution: BaseDistribution) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[0]
    return distribution.high // 2 if isinstance(distribution, IntDistribution) else 0.5


def _decoded(dimension: Dimension, parameter: Any) -> Any:
    if isinstance(dimension, Choice) and isinstance(parameter, str):
        return dimension.values[texts_of(dimension).index(parameter)]
    if isinstance(dimension, Choice) and isinstance(parameter, int):
        return dimension.values[ordered(dimension.values)[parameter]]
    return at(dimension, parameter)


def _encoded(dimension: Dimension, value: Any, distribution: BaseDistribution) -> Any:
    """Returns the parameter from which `_decoded` makes the value."""
    if isinstance(dimension, Choice):
        place = dimension.values.index(value)
        if isinstance(distribution, CategoricalDistribution):
            return texts_of(dimension)[place]
        rank = ordered(dimension.values).index(place)
        return rank if isinstance(distribution, IntDistribution) else (rank + 0.5) / len(dimension.values)
    start, end, into, _ = scale(dimension)
    return min(max((into(value) - start) / (end - start), 0.0), 1.0)

"""The search space without conditions, for samplers that cannot share what they learn between conditional blocks.

    method (category) · size (0 to 1) · every other dimension by name (0 to 1 of its own range in the block)

`size` is the logarithm of a cost that is known before training. A block's *size dimension* is the ordered dimension that
changes this cost most, such as a rank; it takes the value whose cost is nearest. So one size means about the same cost in every
block, and one learning rate means the same place in each method's own range. A dimension that a block does not have says
nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from orchestrator.search.dimensions import at, share_of, words
from orchestrator.sweepfile.space.dimensions import Block, Choice, Dimension, Point, covering, point
from orchestrator.sweepfile.space.ordering import is_fixed, is_ordered, ordered

BLOCK, SIZE = "block", "size"
HALVINGS = 12
"""A size within a range is found by halving the range this often."""

Cost = Callable[[Point], float | None]
"""Gives the cost of a point that is known before training; None if there is none, or the point cannot be built."""


class FlatSpace:
    """Points of `blocks` as parameters without conditions, and back."""

    def __init__(self, blocks: Sequence[Block], cost: Cost) -> None:
        self._blocks = {f"{block.index} {block.method}": block for block in blocks}
        self._cost = cost
        self._known: dict[str, float | None] = {}
        self._sized = {title: self._size_dimension(block) for title, block in self._blocks.items()}
        costs = [self._log_cost(one) for block in blocks for one in self._extremes(block)]
        known = [one for one in costs if one is not None]
        self._ends = (min(known), max(known)) if known else (0.0, 0.0)
        self.distributions = self._distributions()

    def point(self, parameters: Mapping[str, Any]) -> Point:
        """The point that `parameters` stand for."""
        title = str(parameters.get(BLOCK, next(iter(self._blocks))))
        block, sized = self._blocks[title], self._sized[title]
        values: dict[str, Any] = {}
        for name, one in block.dimensions.items():
            if is_fixed(one):
                values[name] = at(one, 0.0)
            elif name != sized:
                values[name] = _decoded(one, parameters[_key(name, one)])
        if sized is not None:
            low, high = self._ends
            values[sized] = self._of_size(block, values, sized, low + parameters[SIZE] * (high - low))
        return point(block, {name: values[name] for name in block.dimensions})

    def parameters(self, given: Point) -> dict[str, Any]:
        """The parameters that stand for `given`; the middle for a dimension that its block does not have."""
        title = f"{given.block} {given.method}"
        block, values = self._blocks[title], given.values
        found: dict[str, Any] = {}
        for key, distribution in self.distributions.items():
            if isinstance(distribution, CategoricalDistribution):
                found[key] = distribution.choices[0]
            else:
                found[key] = distribution.high // 2 if isinstance(distribution, IntDistribution) else 0.5
        if BLOCK in self.distributions:
            found[BLOCK] = title
        for name, one in block.dimensions.items():
            if is_fixed(one):
                continue
            if name == self._sized[title]:
                cost, (low, high) = self._log_cost(given), self._ends
                found[SIZE] = min(max((cost - low) / (high - low), 0.0), 1.0) if cost is not None else 0.5
            else:
                key = _key(name, one)
                found[key] = _encoded(one, values[name], self.distributions[key])
        return found

    def _distributions(self) -> dict[str, BaseDistribution]:
        found: dict[str, BaseDistribution] = {}
        if len(self._blocks) > 1:
            found[BLOCK] = CategoricalDistribution(list(self._blocks))
        if any(self._sized.values()):
            found[SIZE] = FloatDistribution(0.0, 1.0)
        searched: dict[str, list[Dimension]] = {}
        for title, block in self._blocks.items():
            for name, one in block.dimensions.items():
                if not is_fixed(one) and name != self._sized[title]:
                    searched.setdefault(_key(name, one), []).append(one)
        return found | {key: _distribution(dimensions) for key, dimensions in searched.items()}

    def _size_dimension(self, block: Block) -> str | None:
        start = {name: at(one, 0.0) for name, one in block.dimensions.items()}
        before = self._log_cost(point(block, start))
        if before is None:
            return None
        found: dict[str, float] = {}
        for name, one in block.dimensions.items():
            if not is_fixed(one) and is_ordered(one):
                after = self._log_cost(point(block, start | {name: at(one, 1.0)}))
                found[name] = abs(after - before) if after is not None else 0.0
        largest = max(found, key=found.__getitem__, default=None)
        return largest if largest is not None and found[largest] > 0 else None

    def _extremes(self, block: Block) -> Iterator[Point]:
        """Points that have every value of a choice with the smallest and with the largest size."""
        sized = self._sized[f"{block.index} {block.method}"]
        for one in covering((block,)):
            ends = [{sized: at(block.dimensions[sized], share)} for share in (0.0, 1.0)] if sized else [{}]
            yield from (point(block, one.values | end) for end in ends)

    def _of_size(self, block: Block, values: dict[str, Any], name: str, target: float) -> Any:
        """The value of the size dimension whose cost is nearest to `target`."""
        one = block.dimensions[name]

        def gap(value: Any) -> float:
            cost = self._log_cost(point(block, values | {name: value}))
            return math.inf if cost is None else cost - target

        if isinstance(one, Choice):
            return min(one.values, key=lambda value: abs(gap(value)))
        low, high = 0.0, 1.0
        grows = gap(at(one, high)) > gap(at(one, low))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if (gap(at(one, middle)) > 0) == grows else (middle, high)
        return min((at(one, low), at(one, high)), key=lambda value: abs(gap(value)))

    def _log_cost(self, one: Point) -> float | None:
        key = repr(one)
        if key not in self._known:
            cost = self._cost(one)
            self._known[key] = math.log(cost) if cost is not None and cost > 0 else None
        return self._known[key]


def _key(name: str, one: Dimension) -> str:
    """The name of a dimension; blocks share a category if its values are the same."""
    return f"{name} of {', '.join(words(one))}" if isinstance(one, Choice) and not is_ordered(one) else name


def _distribution(dimensions: Sequence[Dimension]) -> BaseDistribution:
    """One for all blocks that have the dimension: places of a choice if they have as many values, otherwise shares."""
    first = dimensions[0]
    if isinstance(first, Choice) and not is_ordered(first):
        return CategoricalDistribution(words(first))
    lengths = {len(one.values) if isinstance(one, Choice) else 0 for one in dimensions}
    return IntDistribution(0, lengths.pop() - 1) if len(lengths) == 1 and 0 not in lengths else FloatDistribution(0.0, 1.0)


def _decoded(one: Dimension, given: Any) -> Any:
    if isinstance(one, Choice) and isinstance(given, str):
        return one.values[words(one).index(given)]
    if isinstance(one, Choice) and isinstance(given, int):
        return one.values[ordered(one.values)[given]]
    return at(one, given)


def _encoded(one: Dimension, value: Any, distribution: BaseDistribution) -> Any:
    if isinstance(one, Choice) and isinstance(distribution, CategoricalDistribution):
        return words(one)[one.values.index(value)]
    if isinstance(one, Choice) and isinstance(distribution, IntDistribution):
        return ordered(one.values).index(one.values.index(value))
    return share_of(one, value)

"""The space without conditions: every point is found again, and a size means the same cost in every block."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from orchestrator.search.flat import FlatSpace
from orchestrator.sweepfile.space.dimensions import Block, Choice, Dimension, Point, Range, sample

RATES = Range(1e-5, 1e-1, "log_uniform")
LORA = Block(0, "lora", {"rank": Range(1, 64, "int_log_uniform"), "learning_rate": Range(1e-4, 1e-2, "log_uniform")})
CRAFT: dict[str, Dimension] = {
    "ranks": Choice((["all", 64, 64], ["all", 8, 8], ["all", 32, 32])),
    "projections": Choice((["q"], ["q", "v"])),
    "learning_rate": Choice((1e-3, 1e-2)),
    "dropout": Choice((0.1,)),
}


def cost(point: Point) -> float:
    if point.method == "lora":
        return 768.0 * point.values["rank"]
    return 6.0 * point.values["ranks"][1] ** 2 * len(point.values["projections"])


@pytest.mark.parametrize(
    "blocks",
    [(LORA,), (Block(0, "craft", CRAFT),), (LORA, Block(1, "craft", CRAFT)), (Block(0, "craft", CRAFT | {"dropout": RATES}),)],
)
def test_a_point_is_found_again_by_its_parameters(blocks: tuple[Block, ...]) -> None:
    space = FlatSpace(blocks, cost)
    for point in islice(sample(blocks, 0), 60):
        parameters = space.parameters(point)
        assert parameters.keys() == space.distributions.keys()
        assert all(kind._contains(kind.to_internal_repr(parameters[name])) for name, kind in space.distributions.items())
        again = space.point(parameters)
        assert again.values.keys() == point.values.keys()
        for name, value in point.values.items():
            assert again.values[name] == (pytest.approx(value) if isinstance(value, float) else value)


def test_a_size_is_the_nearest_cost_that_each_block_has() -> None:
    space = FlatSpace((LORA, Block(1, "craft", CRAFT)), cost)
    assert set(space.distributions) >= {"block", "size", "learning_rate"}
    low, high = math.log(6 * 8**2), math.log(768 * 64)
    for size in (0.0, 0.3, 0.5, 0.8, 1.0):
        wanted = low + size * (high - low)
        for block, title in ((LORA, "0 lora"), (Block(1, "craft", CRAFT), "1 craft")):
            flat = space.parameters(next(sample((block,), 0))) | {"block": title, "size": size, "learning_rate": 0.5}
            chosen = space.point(flat)
            sized = "rank" if block is LORA else "ranks"
            sizes = range(1, 65) if block is LORA else CRAFT["ranks"].values  # type: ignore[union-attr]
            costs = [
                cost(Point(chosen.block, chosen.method, chosen.parameters | {sized: size}, chosen.training)) for size in sizes
            ]
            gap = abs(math.log(cost(chosen)) - wanted)
            assert gap == pytest.approx(min(abs(math.log(nearest) - wanted) for nearest in costs))


def test_a_rate_is_a_place_in_each_method_s_own_range() -> None:
    wide = Block(1, "bitfit", {"learning_rate": Range(1e-3, 1e-1, "log_uniform")})
    space = FlatSpace((LORA, wide), lambda point: None)
    assert "size" not in space.distributions, "no cost is known beforehand"
    for block, low in ((LORA, 1e-4), (wide, 1e-3)):
        flat = space.parameters(next(sample((block,), 0))) | {"learning_rate": 0.25}
        assert space.point(flat).values["learning_rate"] == pytest.approx(low * 10**0.5)

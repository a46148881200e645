"""The search space: enumeration and sampling of method blocks."""

from __future__ import annotations

import math
from itertools import islice, product

import pytest

from orchestrator.sweepfile.space.blocks import parse_block
from orchestrator.sweepfile.space.dimensions import Block, Choice, Point, Range, grid, sample


def block(content: dict, index: int = 0) -> Block:
    parsed, mistakes = parse_block(content, index)
    assert not mistakes
    assert parsed is not None
    return parsed


CRAFT = block(
    {"method": "craft", "ranks": {"values": [["all", 8, 8], ["all", 16, 16]]}, "learning_rate": {"values": [1e-3, 1e-2]}}
)
LORA = block({"method": "lora", "r": {"values": [1, 2, 4]}, "epochs": 2}, 1)


def test_grid_is_the_product_of_each_block_and_nothing_across_blocks() -> None:
    points = list(grid((CRAFT, LORA)))
    expected = [
        Point(0, "craft", {"ranks": ranks}, {"learning_rate": rate})
        for ranks, rate in product([["all", 8, 8], ["all", 16, 16]], [1e-3, 1e-2])
    ]
    expected += [Point(1, "lora", {"rank": rank}, {"epochs": 2.0}) for rank in (1, 2, 4)]
    assert points == expected
    assert len(points) == CRAFT.size + LORA.size


def test_grid_refuses_a_range() -> None:
    with pytest.raises(ValueError, match=r"space\.0: dropout cannot be enumerated"):
        list(grid((block({"method": "craft", "dropout": {"min": 0.0, "max": 0.1}}),)))


def test_samples_are_seeded_and_a_shorter_draw_is_the_beginning_of_a_longer() -> None:
    searched = block({"method": "craft", "dropout": {"min": 0.0, "max": 0.5}, "scaling": {"values": [1.0, 2.0]}})
    first = list(islice(sample((searched, LORA), 7), 20))
    again = list(islice(sample((searched, LORA), 7), 50))
    assert again[:20] == first
    assert list(islice(sample((searched, LORA), 8), 20)) != first
    assert {point.method for point in again} == {"craft", "lora"}


@pytest.mark.parametrize(
    ("content", "low", "high", "whole"),
    [
        ({"min": 1e-4, "max": 1e-1, "distribution": "log_uniform"}, 1e-4, 1e-1, False),
        ({"min": 0.2, "max": 0.4}, 0.2, 0.4, False),
    ],
)
def test_ranges_keep_to_their_ends(content: dict, low: float, high: float, whole: bool) -> None:
    searched = block({"method": "lora", "learning_rate": content})
    drawn = [point.training["learning_rate"] for point in islice(sample((searched,), 0), 2000)]
    assert low <= min(drawn)
    assert max(drawn) <= high
    middle = math.sqrt(low * high) if "distribution" in content else (low + high) / 2
    below = sum(value < middle for value in drawn)
    assert abs(below - 1000) < 4 * math.sqrt(2000 / 4)  # four standard deviations of a fair coin


@pytest.mark.parametrize("distribution", ["int_uniform", "int_log_uniform"])
def test_whole_numbers_reach_both_ends_and_stay_whole(distribution: str) -> None:
    searched = block({"method": "lora", "rank": {"min": 1, "max": 4, "distribution": distribution}})
    drawn = [point.parameters["rank"] for point in islice(sample((searched,), 0), 4000)]
    assert all(isinstance(value, int) for value in drawn)
    assert set(drawn) == {1, 2, 3, 4}
    counts = [drawn.count(value) for value in (1, 2, 3, 4)]
    if distribution == "int_log_uniform":
        total = math.log(4.5 / 0.5)
        expected = [4000 * math.log((value + 0.5) / (value - 0.5)) / total for value in (1, 2, 3, 4)]
    else:
        expected = [1000.0] * 4
    assert sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True)) < 16.3  # chi² at 0.1 %, 3 df


def test_two_whole_ends_mean_whole_numbers() -> None:
    assert block({"method": "lora", "rank": {"min": 1, "max": 64}}).dimensions["rank"] == Range(1.0, 64.0, "int_uniform")


def test_values_are_what_the_method_understands() -> None:
    assert LORA.dimensions == {"rank": Choice((1, 2, 4)), "epochs": Choice((2.0,))}


def test_a_default_that_no_record_holds_may_be_written() -> None:
    """The key of a run with it is the one it had before the setting was known, so its parameters leave it out."""
    written = block({"method": "craft", "rate_scaling": {"values": ["none", "rank"]}})
    assert written.dimensions["rate_scaling"] == Choice(("none", "rank"))

"""The picture of the front: it is drawn, and its numbers can be read."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.front import mark_front, pareto_front
from orchestrator.results.intervals import Interval
from orchestrator.review.front_picture import LABELS, draw
from orchestrator.review.front_tables import write_front
from tests.orchestrator.recorded import summarize
from tests.orchestrator.review.test_front import OBJECTIVES, sweep


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_picture_is_a_png_that_is_not_blank(seeds: int, tmp_path: Path) -> None:
    from matplotlib.image import imread

    trials, results = sweep({("craft", 8): (60.0, 300.0), ("craft", 64): (75.0, 16000.0), ("lora", 8): (74.0, 70000.0)}, seeds)
    picture = write_front(mark_front(summarize(trials, results), OBJECTIVES), OBJECTIVES, tmp_path, "front")[2]
    pixels = imread(picture)
    assert min(pixels.shape[:2]) > 400
    orange = abs(pixels[..., :3] - [0xD5 / 255, 0x5E / 255, 0.0]).max(axis=-1) < 0.02
    assert orange.sum() > 200, "CRAFT's colour, as on the page, is on the picture"


DEFAULT = ["head 0 53.2", *(f"craft {one}" for one in ("1932 81.5", "1940 81.6", "1948 74.8", "4016 89.2", "4016 81.4",
    "4016 88.0", "4108 89.3", "8136 91.9", "8136 90.9", "8132 83.4", "8228 96.9", "16456 92.1", "16456 91.3", "16388 98.2",
    "32912 98.7")), "lora 9216 92.3", "lora 18432 99.2", "lora 36864 99.2", "lora 73728 99.2"]  # fmt: skip
"""A recorded sweep: method, parameters and mean score. Members of its front lie on each other."""


def crowd(seed: int, count: int, a_decade: float) -> list[str]:
    draws = random.Random(seed)
    sizes = [int(10 ** draws.uniform(2, 6)) for _ in range(count)]
    means = [min(100, 40 + a_decade * math.log10(size) + draws.gauss(0, 5)) for size in sizes]
    return [f"{draws.choice(('craft', 'lora'))} {one} {mean}" for one, mean in zip(sizes, means, strict=True)]


def drawn(points: list[str], half: float | None = None, possible: str = "") -> tuple[Any, set[str]]:
    """The picture of such points with the ids of its front; those of the method `possible` may be on it."""
    trials, results = sweep({("craft", 8): (60.0, 300.0)})
    (any_one,) = summarize(trials, results)
    found = []
    for place, (method, size, mean) in enumerate(map(str.split, points)):
        ends = [float(mean) + way * (half or 0) for way in (-1, 1)]
        metrics = {"score": Interval(float(mean), *ends, 3 if half else 1)}
        named = {"configuration": str(place), "method": method, "label": method, "metric": "accuracy"}
        found.append(replace(any_one, metrics=metrics, counts={"trainable_parameters": float(size)}, **named))
    members = pareto_front([[one.value(name) for name in OBJECTIVES] for one in found], list(OBJECTIVES.values()))
    front = {one.configuration for one, member in zip(found, members, strict=True) if member}
    marked = [replace(one, on_front=one.configuration in front, may_be_on_front=one.method == possible) for one in found]
    return draw(marked, OBJECTIVES, "front"), front


def test_axes_reach_beyond_the_points_and_marks_are_explained() -> None:
    figure, _ = drawn(DEFAULT, possible="craft")
    (axes,) = figure.axes
    figure.canvas.draw()
    assert axes.get_xlim()[1] > 1.1 * 73_728, "the last mark is within the frame"
    assert [tick.get_text() for tick in axes.get_xticklabels() if tick.get_text()] == ["0", "2k", "5k", "10k", "20k", "50k"]
    assert axes.get_ylabel() == "accuracy, %"
    assert "may be on the front" in [entry.get_text() for entry in axes.get_legend().get_texts()]
    (plain,) = drawn(DEFAULT)[0].axes
    assert "may be on the front" not in [entry.get_text() for entry in plain.get_legend().get_texts()]


@pytest.mark.parametrize("half", [pytest.param(None, marks=pytest.mark.slow), 0.4, pytest.param(6.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "points",
    [DEFAULT, crowd(0, 30, 9), crowd(1, 200, 8), crowd(2, 60, 12), [f"lora {1000 + one} {50 + 3 * one}" for one in range(15)]],
    ids=["ranks", "few", "many", "at the top", "a wall"],
)
def test_numbers_of_the_picture_name_every_member_and_do_not_meet(points: list[str], half: float | None) -> None:
    figure, front = drawn(points, half)
    (axes,), renderer = figure.axes, figure.canvas.get_renderer()
    numbers = [text.get_window_extent(renderer) for text in axes.texts]
    assert not [one for place, one in enumerate(numbers) for other in numbers[:place] if other.overlaps(one)]
    ends = [[*map(int, text.get_text().split("–"))] for text in axes.texts]
    assert [place for one in ends for place in range(one[0], one[-1] + 1)] == [*range(1, min(LABELS, len(front)) + 1)]

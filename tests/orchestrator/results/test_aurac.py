"""AURAC against numbers worked out by hand, numpy.trapezoid, and a fine sum over the same broken line."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.results.aurac import Measured, area, areas, in_words, tracked


def curve(method: str, points: dict[int, float]) -> list[Measured]:
    return [Measured(method, size, score, score) for size, score in points.items()]


def test_an_area_worked_out_by_hand() -> None:
    # log2: 3, 4, 6. Trapezoids: (50 + 60) / 2 x 1 + (60 + 80) / 2 x 2 = 55 + 140 = 195, over a range of 3.
    assert area([8, 16, 64], [50, 60, 80]) == pytest.approx(195 / 3)
    # From 2^3.5 to 2^5 the line runs 55, 60 (at 4), 70: (55 + 60) / 2 x 0.5 + (60 + 70) / 2 x 1 = 93.75, over 1.5.
    assert area([8, 16, 64], [50, 60, 80], (2**3.5, 32)) == pytest.approx(93.75 / 1.5)
    assert math.isnan(area([8], [50]))


sizes = st.lists(st.integers(1, 10**7), min_size=2, max_size=8, unique=True).map(sorted)


@given(sizes, st.data())
def test_it_is_numpys_trapezoid_and_a_mean_score(found: list[int], data: st.DataObject) -> None:
    scores = data.draw(st.lists(st.floats(-100, 100), min_size=len(found), max_size=len(found)))
    at = np.log2(found)
    value = area(found, scores)
    assert value == pytest.approx(np.trapezoid(scores, at) / (at[-1] - at[0]))
    assert min(scores) - 1e-9 <= value <= max(scores) + 1e-9
    assert area(found, scores, (found[0], found[-1])) == pytest.approx(value, abs=1e-6)
    inner = np.linspace(at[0] + 0.2 * np.ptp(at), at[-1] - 0.1 * np.ptp(at), 20_001)
    fine = np.interp(inner, at, scores).mean()
    assert area(found, scores, (2 ** inner[0], 2 ** inner[-1])) == pytest.approx(fine, abs=0.1)


def test_a_size_counts_by_its_best_search_score() -> None:
    """The luckier reported score of a worse search score adds nothing."""
    points = [Measured("craft", 8, 70, 60), Measured("craft", 8, 65, 90), Measured("craft", 16, 80, 75)]
    (found,) = areas(points)
    assert found.value == pytest.approx((60 + 75) / 2)
    assert (found.low, found.high, found.sizes) == (8, 16, 2)
    (old,) = areas([Measured("craft", size, math.nan, score) for size, score in ((8, 60), (8, 62), (16, 70))])
    assert old.value == pytest.approx(66), "without search scores the reported one stands in"


def test_one_size_no_parameters_and_no_score_give_no_area() -> None:
    rest = [Measured("majority", 0, 50, 50), Measured("full", 10**6, 90, 90), Measured("full", 10**7, math.nan, math.nan)]
    assert areas(rest) == []
    assert in_words([]) == ""


def test_methods_are_compared_over_the_range_they_share() -> None:
    found = areas([*curve("lora", {32: 60, 128: 80}), *curve("craft", {8: 50, 32: 70, 64: 72})])
    assert [one.method for one in found] == ["craft", "lora"]
    # shared: 2^5 to 2^6. craft's line has 70 and 72 there, lora's 60 and 70.
    assert [one.shared for one in found] == pytest.approx([71, 65])
    assert tracked(found) == pytest.approx(
        {
            "aurac/craft": (2 * 60 + 71) / 3,
            "aurac_from/craft": 8,
            "aurac_to/craft": 64,
            "aurac_shared/craft": 71,
            "aurac/lora": 70,
            "aurac_from/lora": 32,
            "aurac_to/lora": 128,
            "aurac_shared/lora": 65,
        }
    )
    assert in_words(found) == (
        "area under score against log2 parameters (AURAC): craft 63.67 (8 to 64, 3 sizes), lora 70.00 (32 to 128, 2 sizes); "
        "over the range that all share (32 to 64), to compare: craft 71.00, lora 65.00"
    )


def test_ranges_that_do_not_meet_are_not_compared() -> None:
    found = areas([*curve("lora", {64: 60, 128: 80}), *curve("craft", {8: 50, 64: 70})])
    assert [one.shared for one in found] == [None, None]
    assert "aurac_shared/craft" not in tracked(found)
    assert in_words(found).endswith("the methods share no range, so their areas cannot be compared")

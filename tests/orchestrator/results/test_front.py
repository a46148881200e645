"""The one rule for a sweep's front: what `judge` decides from values alone, and how recorded objectives are read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.results.front import axes, judge
from orchestrator.sweepfile.settings import Objectives

MEMORY: Objectives = {"score": "maximize", "peak_memory_bytes": "minimize"}
rows = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 4), st.sampled_from([0.0, 0.04, 0.5, math.nan])), min_size=1, max_size=12
)


@given(rows, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(found: list[tuple[int, int, float]], random: object) -> None:
    table = [(f"c{index:02}", score, cost, chance) for index, (score, cost, chance) in enumerate(found)]
    shuffled = list(table)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    def decide(some: list[tuple[str, int, int, float]]) -> object:
        mean = np.array([[score, cost] for _, score, cost, _ in some], dtype=float)
        return judge([name for name, *_ in some], mean, MEMORY, [chance for *_, chance in some])

    assert decide(table) == decide(shuffled)


def test_a_configuration_without_a_value_takes_no_part() -> None:
    mean = np.array([[80.0, 1e9], [90.0, math.nan], [70.0, 2e9]])
    verdict = judge(["a", "b", "c"], mean, MEMORY, [0.01, 0.9, 0.04])
    assert (verdict.on_front, verdict.may_be_on_front, verdict.knee) == ({"a"}, {"a"}, "a")


@pytest.mark.parametrize("names", [("score",), ("score", "seconds", "peak_memory_bytes")])
def test_a_knee_needs_two_objectives(names: tuple[str, ...]) -> None:
    mean = np.arange(3.0 * len(names)).reshape(3, len(names)) + 1
    verdict = judge(["a", "b", "c"], mean, dict.fromkeys(names, "minimize"))
    assert (verdict.on_front, verdict.knee) == ({"a"}, None)


def test_the_axes_are_the_last_objective_and_the_first() -> None:
    assert axes({"seconds": "minimize", "score": "maximize"}) == ("score", "seconds")
    assert axes({"score": "maximize"}) == ("trainable_parameters", "score")

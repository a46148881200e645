"""The front's geometry against brute force and pymoo, the statistics against scipy.stats."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting
from scipy import stats

from orchestrator.results.front import log_axes
from orchestrator.results.front import pareto_front as front
from orchestrator.results.front import pareto_knee as knee
from orchestrator.results.intervals import interval, suite_interval

WAYS = ["maximize", "minimize"]
# A coarse grid of values, so that ties and duplicates are common; NaN and infinities among them.
unfit = st.sampled_from([math.nan, math.inf, -math.inf])
coarse = st.integers(0, 6).map(float)
pairs_with_unfit = arrays(float, st.tuples(st.integers(0, 16), st.just(2)), elements=st.one_of(coarse, coarse, coarse, unfit))
triples = arrays(float, st.tuples(st.integers(1, 12), st.just(3)), elements=coarse)


def brute_front(points: np.ndarray, ways: list[str]) -> list[bool]:
    """By the definition, pair by pair."""
    better = [(lambda a, b: a > b) if way == "maximize" else (lambda a, b: a < b) for way in ways]

    def dominates(a: np.ndarray, b: np.ndarray) -> bool:
        worse = any(is_better(b[i], a[i]) for i, is_better in enumerate(better))
        return not worse and any(is_better(a[i], b[i]) for i, is_better in enumerate(better))

    fit = [bool(np.isfinite(row).all()) for row in points]
    return [
        fit[i] and not any(fit[j] and dominates(points[j], points[i]) for j in range(len(points))) for i in range(len(points))
    ]


@given(pairs_with_unfit)
def test_front_is_the_definition(points: np.ndarray) -> None:
    assert front(points, WAYS).tolist() == brute_front(points, WAYS)


@given(triples)
def test_front_is_pymoos_first_rank(points: np.ndarray) -> None:
    first = NonDominatedSorting().do(points, only_non_dominated_front=True)
    assert np.flatnonzero(front(points, ["minimize"] * 3)).tolist() == sorted(first.tolist())


def knee_by_distance(points: np.ndarray) -> float:
    """The largest distance to the chord by the cross product, over the brute-force front, on scaled axes."""
    members = points[brute_front(points, WAYS)] * np.array([-1, 1])
    spread = np.ptp(members, axis=0)
    if (spread == 0).any():
        return 0.0
    unit = (members - members.min(axis=0)) / spread
    a, b = unit[unit[:, 0].argmin()], unit[unit[:, 1].argmin()]
    chord = b - a
    return max(0.0, max(-float(np.cross(np.append(chord, 0), np.append(p - a, 0))[2]) for p in unit) / float(np.hypot(*chord)))


@given(pairs_with_unfit)
def test_knee_is_farthest_beyond_the_chord(points: np.ndarray) -> None:
    chosen = knee(points, WAYS)
    if not np.isfinite(points).all(axis=1).any():
        assert chosen is None
        return
    assert chosen is not None
    assert front(points, WAYS)[chosen]
    members = points[front(points, WAYS)] * np.array([-1, 1])
    spread = np.ptp(members, axis=0)
    if (spread > 0).all():
        scaled = (points[chosen] * np.array([-1, 1]) - members.min(axis=0)) / spread
        assert max(0.0, (1 - scaled.sum()) / math.sqrt(2)) == pytest.approx(knee_by_distance(points), abs=1e-9)


def test_knee_of_a_front_with_a_plain_bend() -> None:
    sizes, scores = [1e3, 1e4, 1e5, 1e6], [50.0, 78.0, 80.0, 81.0]
    points = log_axes(np.column_stack([scores, sizes]), [False, True])
    assert knee(points, WAYS) == 1
    assert knee([[math.nan, 1.0]], WAYS) is None
    assert knee([[3.0, 1.0]], WAYS) == 0
    assert knee([[1.0, 1.0], [2.0, 2.0]], WAYS) == 1, "two points: the better score"


def test_log_axes_makes_what_is_not_positive_unfit() -> None:
    points = log_axes([[1.0, 100.0], [1.0, 0.0], [1.0, -5.0]], [False, True])
    assert points[0].tolist() == [1.0, 2.0]
    assert np.isnan(points[1:, 1]).all()


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8).filter(lambda sample: np.std(sample) > 1e-6))
def test_interval_is_scipys_t_interval(sample: list[float]) -> None:
    given_interval = interval(sample)
    low, high = stats.t.interval(0.95, len(sample) - 1, loc=np.mean(sample), scale=stats.sem(sample))
    assert given_interval.mean == pytest.approx(np.mean(sample), abs=1e-9)
    assert (given_interval.low, given_interval.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    one, none = interval([80.0]), interval([])
    assert one.mean == 80.0
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert (one.n, none.n) == (1, 0)
    assert math.isnan(none.mean)


def test_suite_value_is_the_mean_over_tasks_with_the_interval_over_seeds() -> None:
    scores = {("cola", 0): 50.0, ("cola", 1): 54.0, ("cola", 2): 52.0, ("rte", 0): 70.0, ("rte", 1): 72.0, ("rte", 2): 68.0}
    value = suite_interval(scores, ["cola", "rte"])
    low, high = stats.t.interval(0.95, 2, loc=61.0, scale=stats.sem([60.0, 63.0, 60.0]))
    assert (value.mean, value.n) == (61.0, 3)
    assert (value.low, value.high) == (pytest.approx(low), pytest.approx(high))


def test_a_seed_that_lacks_a_task_takes_no_part() -> None:
    scores = {("cola", 0): 50.0, ("cola", 1): 99.0, ("rte", 0): 70.0, ("rte", 1): math.nan}
    assert (suite_interval(scores, ["cola", "rte"]).mean, suite_interval(scores, ["cola", "rte"]).n) == (60.0, 1)
    assert suite_interval({("cola", 0): 50.0}, ["cola", "rte"]).n == 0


def test_five_thousand_points_are_one_front() -> None:
    x = np.arange(5000.0)
    assert front(np.column_stack([x, x]), WAYS).all()

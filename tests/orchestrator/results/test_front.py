"""The front: its geometry against brute force, its statistics against scipy, and what it decides from values."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from orchestrator.record.state import Entry
from orchestrator.results.front import above_guessing, log_axes, mark_front
from orchestrator.results.front import knee as marked_knee
from orchestrator.results.front import pareto_front as front
from orchestrator.results.front import pareto_knee as knee
from orchestrator.results.intervals import interval, suite_interval
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES, Objectives
from tests.orchestrator.recorded import entry

WAYS = ["maximize", "minimize"]
# A coarse grid of values, so that ties and duplicates are common; NaN and infinities among them.
coarse = st.integers(0, 6).map(float)


def points_of(objectives: int) -> st.SearchStrategy[np.ndarray]:
    values = st.one_of(coarse, coarse, coarse, st.sampled_from([math.nan, math.inf, -math.inf]))
    return arrays(float, st.tuples(st.integers(0, 16), st.just(objectives)), elements=values)


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


@given(points_of(3))
def test_front_is_the_definition(points: np.ndarray) -> None:
    ways = [*WAYS, "minimize"]
    assert front(points, ways).tolist() == brute_front(points, ways)


@given(points_of(2))
def test_knee_is_farthest_beyond_the_chord(points: np.ndarray) -> None:
    chosen = knee(points, WAYS)
    if not np.isfinite(points).all(axis=1).any():
        assert chosen is None
        return
    assert chosen is not None
    assert front(points, WAYS)[chosen]
    members = points[brute_front(points, WAYS)] * np.array([-1, 1])
    spread = np.ptp(members, axis=0)
    if (spread > 0).all():  # the chord goes from (0, 1) to (1, 0)
        scaled = (np.vstack([points[chosen] * np.array([-1, 1]), members]) - members.min(axis=0)) / spread
        beyond = 1 - scaled.sum(axis=1)
        assert beyond[0] == pytest.approx(beyond.max(), abs=1e-9)


def test_knee_of_a_front_with_a_plain_bend() -> None:
    sizes, scores = [1e3, 1e4, 1e5, 1e6], [50.0, 78.0, 80.0, 81.0]
    points = log_axes(np.column_stack([scores, sizes]), [False, True])
    assert knee(points, WAYS) == 1
    assert knee([[math.nan, 1.0]], WAYS) is None
    assert knee([[3.0, 1.0]], WAYS) == 0
    assert knee([[1.0, 1.0], [2.0, 2.0]], WAYS) == 1, "two points: the better score"


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8).filter(lambda sample: np.std(sample) > 1e-6))
def test_interval_is_scipys_t_interval(sample: list[float]) -> None:
    given_interval = interval(sample)
    low, high = stats.t.interval(0.95, len(sample) - 1, loc=np.mean(sample), scale=stats.sem(sample))
    assert given_interval.mean == pytest.approx(np.mean(sample), abs=1e-9)
    assert (given_interval.low, given_interval.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_the_value_of_a_suite_is_its_mean_over_tasks_by_the_seeds_that_have_all() -> None:
    scores = {("cola", 0): 50.0, ("cola", 1): 54.0, ("cola", 2): 52.0, ("rte", 0): 70.0, ("rte", 1): 72.0, ("rte", 2): 68.0}
    value = suite_interval(scores | {("cola", 3): 99.0, ("cola", 4): 99.0, ("rte", 4): math.nan}, ["cola", "rte"])
    low, high = stats.t.interval(0.95, 2, loc=61.0, scale=stats.sem([60.0, 63.0, 60.0]))
    assert (value.mean, value.n) == (61.0, 3)
    assert (value.low, value.high) == (pytest.approx(low), pytest.approx(high))


MEMORY: Objectives = {"score": "maximize", "peak_memory_bytes": "minimize"}
rows = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=12)


@given(rows, st.randoms(use_true_random=False))
def test_the_knee_is_that_of_two_objectives_in_any_order_of_the_rows(found: list[tuple[int, int]], random: Any) -> None:
    marked: list[Any] = [
        SimpleNamespace(
            configuration=f"c{index:02}",
            on_front=True,
            value=dict(zip(MEMORY, row, strict=True)).__getitem__,
            complete=True,
            counts={},
        )
        for index, row in enumerate(found)
    ]
    assert marked_knee(marked, MEMORY) is marked_knee(random.sample(marked, len(marked)), MEMORY)
    assert marked_knee(marked, MEMORY | {"seconds": "minimize"}) is None


MOST_SEEDS = 5


def sweep_of(right: np.ndarray, rows: int, seeds: int) -> list[Summary]:
    """A sweep of so many seeds, from the right answers `(configurations, seeds)`; half of the rows are of each class."""
    facts = {"metric": "accuracy", "reported_examples": rows, "random_guessing": 50.0}
    return summarize_entries(
        entry(
            str(number), {"score": 100 * many / rows}, seed=seed, counts={"trainable_parameters": 1e3 * 2**number}, facts=facts
        )
        for number, of_one in enumerate(right.tolist())
        for seed, many in enumerate(of_one[:seeds])
    )


def shown(right: np.ndarray, rows: int) -> list[bool]:
    """Whether anything is above random guessing by the first seed, by the first two, ..."""
    return [above_guessing(sweep_of(right, rows, seeds + 1)) for seeds in range(right.shape[1])]


@pytest.mark.parametrize(("rows", "many", "spread"), [(200, 1, 3.0), (200, 6, 0.8), (500, 2, 3.0), (500, 6, 0.8)])
def test_more_seeds_never_say_less(rows: int, many: int, spread: float) -> None:
    """Sweeps that gain 5 points. Of 200 rows one seed often does not show that; three show it at least as often, and every
    sweep that is above by its first seeds stays so."""
    random, sweeps = np.random.default_rng(7), []
    for _ in range(60):
        true = 55 + random.laplace(0, 0.5, (many, 1)) + random.normal(0, spread, (many, MOST_SEEDS))
        sweeps.append(shown(random.binomial(rows, true / 100), rows))
    assert all(said == sorted(said) for said in sweeps)
    one, _, three, _, five = np.mean(sweeps, axis=0)
    assert one < three <= five


def test_the_order_in_which_seeds_came_counts_and_not_their_numbers() -> None:
    facts = {"metric": "accuracy", "reported_examples": 200, "random_guessing": 50.0}
    for seeds in ((42, 0, 1), (0, 1, 2)):
        entries = [entry("a", {"score": 58.0 - 8 * (place > 0)}, seed=seed, facts=facts) for place, seed in enumerate(seeds)]
        assert above_guessing(summarize_entries(entries)), "what the first seed shows no further one takes back"


@pytest.mark.parametrize("many", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_sweeps_without_skill_are_seldom_above(many: int) -> None:
    """Five seeds of answers that were drawn blindly: 2.5 % of sweeps by the first seed, less than twice as many by all."""
    random = np.random.default_rng(8)
    sweeps = [shown(random.binomial(300, 0.5, (many, MOST_SEEDS)), 300) for _ in range(200)]
    one, *_, five = np.mean(sweeps, axis=0)
    assert one <= 0.025 + 2 * (0.025 * 0.975 / 200) ** 0.5
    assert five <= 0.05 + 2 * (0.05 * 0.95 / 200) ** 0.5


@pytest.mark.parametrize("many", [99, 110, 113, 114, 115, 125, 0])
def test_one_seed_is_above_if_wilsons_interval_is(many: int) -> None:
    low = stats.binomtest(many, 200).proportion_ci(method="wilson").low
    assert shown(np.array([[many]]), 200) == [low > 0.5]


def test_where_random_guessing_is_not_known_nothing_is_denied() -> None:
    assert above_guessing(summarize_entries([entry("a", {"score": 10.0}, counts={"trainable_parameters": 10.0})]))
    assert not above_guessing(sweep_of(np.array([[100, 101]]), 200, 2))


FIRST = {"head": 60.0, "lora": 80.0, "full": 90.0}


def trial_on(task: str, method: str, score: float | None, seed: int = 0, wave: int = 1) -> Entry:
    """A trial that has ended; without a score it failed."""
    metrics = None if score is None else {"score": score, "search_score": score}
    return entry(method, metrics, task=task, seed=seed, method=method, counts={"trainable_parameters": len(method)}, wave=wave)


@pytest.mark.parametrize("fails", FIRST)
def test_a_task_added_later_counts_with_its_failures(fails: str) -> None:
    """Who fails on a hard task is no rival of those that have its score."""
    easy, hard = (
        [
            trial_on(task, method, None if (task, method, seed) == ("hard", fails, 0) else score - less + seed, seed, wave)
            for method, score in FIRST.items()
            for seed in range(3)
        ]
        for task, less, wave in (("easy", 0, 1), ("hard", 40, 2))
    )
    before, after = (mark_front(summarize_entries(rows), DEFAULT_OBJECTIVES) for rows in (easy, [*easy, *hard]))
    assert all(row.complete for row in before)
    found = {row.method: (row.complete, [*row.tasks]) for row in after}
    assert found == {method: (method != fails, ["easy", "hard"]) for method in FIRST}
    lost = [trial_on(task, "lora", None if task == "hard" else 80.0, 3, 3) for task in ("easy", "hard")]
    added = [replace(one, result=trial_on("hard", one.trial.method, 40.0).result) for one in hard]
    seeded = {row.method: row for row in summarize_entries([*easy, *added, *lost])}
    assert (seeded["lora"].complete, seeded["lora"].lost) == (True, (3,)), "a seed added after the task"


def test_a_configuration_with_a_task_more_has_its_normalized_mean_on_the_tasks_of_all() -> None:
    """It was added with the task, on which the others have not ended."""
    entries = [trial_on("easy", method, FIRST[method] + seed, seed) for method in ("head", "full") for seed in (0, 1)]
    entries += [trial_on(task, "lora", 75.0 + seed, seed, 2) for task in ("easy", "hard") for seed in (0, 1)]
    entries += [replace(trial_on("hard", "head", None, wave=2), result=None, phase="waiting")]
    (lora,) = (row for row in mark_front(summarize_entries(entries), DEFAULT_OBJECTIVES) if row.method == "lora")
    assert (lora.value("normalized"), lora.value("score"), [*lora.tasks]) == (pytest.approx(50), 75.5, ["easy"])

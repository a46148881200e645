"""Moderated variances and the chance of the front, against limma's numbers, an attainment function and simulated truths."""

from __future__ import annotations

import math

import numpy as np
import pytest

from orchestrator.results.chances import draw_scores, moderate, shares, with_chances
from orchestrator.results.intervals import compare, examples_interval, interval, sampling_variance
from orchestrator.results.summary import Summary
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES

VARIANCES = [0.12, 0.45, 0.30, 2.10, 0.08, 0.77, 0.25, 1.40, 0.05, 0.60]


@pytest.mark.parametrize(
    ("freedom", "expected", "degrees"),
    [
        # limma's squeezeVar, in the port to Python of inmoose 0.9.1: var_post, and df_prior + freedom
        (
            4,
            [
                0.2097911,
                0.39165407,
                0.30898909,
                1.30096893,
                0.18774711,
                0.56800605,
                0.28143409,
                0.91519899,
                0.17121411,
                0.47431906,
            ],
            7.258211995109607,
        ),
        (2, [0.612] * 10, 20),  # no more spread than chance gives: df_prior is infinite there, and all of it here
    ],
)
def test_variances_are_moderated_as_limma_does(freedom: float, expected: list[float], degrees: float) -> None:
    found, sure = moderate(VARIANCES, freedom)
    assert found == pytest.approx(expected, abs=1e-6)
    assert sure == pytest.approx(degrees, abs=1e-6)


def test_two_variances_stay_as_they_are() -> None:
    assert [moderate([1.0, 9.0], 2)[0].tolist(), moderate([1.0, 9.0], 2)[1]] == [[1.0, 9.0], 2]


def test_shares_count_what_nothing_beats() -> None:
    random = np.random.default_rng(1)
    scores, costs = random.normal(size=(60, 7)), random.integers(1, 4, size=(7, 2)).astype(float)
    for chosen in (costs, costs[:, :1]):
        for within in (0.0, 0.5):
            expected = [
                np.mean(
                    [not any((chosen[j] <= chosen[i]).all() and row[j] > row[i] + within for j in range(7)) for row in scores]
                )
                for i in range(7)
            ]
            assert shares(scores, chosen, within) == pytest.approx(expected)


def test_shares_agree_with_the_attainment_function() -> None:
    moocore = pytest.importorskip("moocore")
    random = np.random.default_rng(2)
    costs = np.array([1.0, 2.0, 4.0, 8.0])
    scores = 80 + random.normal(size=(40, 4))
    points = np.vstack([np.column_stack([costs, -row]) for row in scores])
    sets = np.repeat(np.arange(1, 41), 4)
    # At the median the surface of what is attained by half of the sets is, at each cost, the median of the best so far.
    surface = moocore.eaf(points, sets, percentiles=[50])
    best = np.median(np.maximum.accumulate(scores, axis=1), axis=0)
    at = {cost: value for cost, value, _ in surface.tolist()}
    lower = np.sort(np.maximum.accumulate(scores, axis=1), axis=0)[20]
    assert -at[1.0] == pytest.approx(lower[0])
    assert abs(-at[1.0] - best[0]) < 0.5


def test_chances_are_right_where_true_differences_are_two_points() -> None:
    """Sixteen configurations, three seeds, noise of two points: of those with a chance, this share is on the true front."""
    random = np.random.default_rng(0)
    predicted: list[tuple[float, bool]] = []
    for _ in range(150):
        size = np.exp(np.sort(random.uniform(math.log(1e3), math.log(1e6), 16)))
        true = 80 + 8 * (1 - np.exp(-2 * np.log(size / 1e3) / math.log(1e3))) + random.normal(0, 2, 16)
        seen = true + random.normal(0, 2, (3, 16))
        variances, freedom = moderate(seen.var(axis=0, ddof=1), 2)
        chance = shares(draw_scores(seen.mean(axis=0), variances / 3, freedom, size, 400), size[:, None])
        predicted += zip(chance, shares(true[None], size[:, None]) > 0, strict=True)
    chance, truth = np.array(predicted).T
    for low in (0.2, 0.4, 0.6, 0.8):
        inside = (chance >= low) & (chance < low + 0.2 + (low == 0.8))
        assert chance[inside].mean() == pytest.approx(truth[inside].mean(), abs=0.1), "its own error here is 0.03"


def made(name: str, scores: dict[tuple[str, int], float], parameters: float, examples: float = 0.0) -> Summary:
    metrics = {"score": interval(scores.values())}
    sampling = sampling_variance({"score": metrics["score"].mean}, examples)
    tasks = {task: metrics["score"] for task, _ in scores}
    counts = {"trainable_parameters": parameters}
    return Summary(name, name, "lora", {}, metrics, tasks, counts, scores, len(scores), len(scores), 0, 0, len(scores),
                   sampling=sampling)  # fmt: skip


def test_few_examples_widen_an_interval_that_seeds_leave_at_zero() -> None:
    right = 100 * 36 / 39
    (found,) = with_chances([made("a", {("toy", 0): right, ("toy", 1): right}, 10, examples=39)], DEFAULT_OBJECTIVES)
    # 38 of 43 after Agresti and Coull, over 39 examples: 1.96 times 5.1 points, cut at 100
    assert found.score.low == pytest.approx(right - 1.96 * 100 * math.sqrt(38 / 43 * 5 / 43 / 39))
    assert found.score.high == 100


def test_one_seed_has_neither_interval_nor_chance() -> None:
    several = [made(name, {("toy", 0): score}, size) for name, score, size in (("a", 80.0, 1), ("b", 90.0, 2))]
    assert all(math.isnan(one.score.half) and "p_front" not in one.counts for one in with_chances(several, DEFAULT_OBJECTIVES))


def test_what_a_seed_does_to_all_alike_changes_no_chance() -> None:
    random = np.random.default_rng(5)
    noise = random.normal(0, 1, (5, 3))

    def found(luck: float) -> list[Summary]:
        return with_chances(
            [
                made(f"c{i}", {("toy", seed): 70 + i + noise[i, seed] + luck * (seed - 1) for seed in range(3)}, 10.0 * 2**i)
                for i in range(5)
            ],
            DEFAULT_OBJECTIVES,
        )

    calm, shaken = found(0), found(10)
    assert [one.counts["p_front"] for one in calm] == pytest.approx([one.counts["p_front"] for one in shaken])
    assert all(b.score.half > 5 * a.score.half for a, b in zip(calm, shaken, strict=True))
    assert all(one.counts["p_within_1"] >= one.counts["p_front"] for one in calm)


def test_a_correlation_and_a_share_have_their_sampling_errors() -> None:
    assert sampling_variance({"score": 80.0, "pearson": 80.0}, 101) == pytest.approx(1e4 * 0.36**2 / 100)
    assert sampling_variance({"score": 100.0}, 39) > 0
    assert sampling_variance({"score": 50.0}, 0) == 0


def test_a_seeds_luck_on_all_tasks_is_no_verdict() -> None:
    """False verdicts are 5 % where eight tasks share the luck of three seeds; pairs of task and seed give 40 %."""
    random = np.random.default_rng(0)
    false = 0
    for _ in range(400):
        luck = random.normal(0, 2, (2, 3))
        first, second = (
            {(f"t{task}", seed): 80 + luck[side, seed] + random.normal(0, 1) for task in range(8) for seed in range(3)}
            for side in (0, 1)
        )
        found = compare(first, second).difference
        false += found.low > 0 or found.high < 0
    assert false / 400 < 0.08


def test_accuracies_on_the_same_examples_differ_by_mcnemars_interval() -> None:
    """Of 100 examples the first alone has 15 right and the second alone 5: Wald's interval of paired shares."""
    first, second = (
        [True] * 60 + [True] * 15 + [False] * 5 + [False] * 20,
        [True] * 60 + [False] * 15 + [True] * 5 + [False] * 20,
    )
    gap = examples_interval({("a", 0): (first, second)})
    half = 1.96 * math.sqrt(15 + 5 - (15 - 5) ** 2 / 100)
    assert (gap.mean, gap.low, gap.high, gap.n) == pytest.approx((10, 10 - half, 10 + half, 100))
    # A second task on which they agree halves the mean and its error; seeds that answer alike change neither.
    two = examples_interval({("a", 0): (first, second), ("a", 1): (first, second), ("b", 0): (first, first)})
    assert (two.mean, two.low, two.n) == pytest.approx((5, 5 - half / 2, 200))

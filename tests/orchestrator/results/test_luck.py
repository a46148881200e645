"""The luck of the examples that no seed shows: against McNemar's interval, and simulated parts that are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtrit

from craft.scoring.predictions import CREDITS, credits_of, read_credits
from craft.tasks.metrics import METRICS
from orchestrator.results.intervals import compare
from orchestrator.results.luck import by_seed, difference, limit, luck, shared_variance
from orchestrator.results.probabilities import EXPECTED, LUCK, P_ENOUGH, with_probabilities
from orchestrator.results.summary import Summary, summarize_entries
from orchestrator.review.front_tables import legend
from orchestrator.sweepfile.settings import DEFAULT_OBJECTIVES
from tests.benchmarks.compared import found
from tests.orchestrator.recorded import entry, made


def right(*runs: tuple[int, bool]) -> np.ndarray:
    return np.concatenate([np.full(many, answer) for many, answer in runs])


def test_accuracies_on_the_same_examples_differ_by_mcnemars_interval() -> None:
    """Of 100 examples the first alone has 15 right and the second alone 5: the interval of paired shares with half a row more
    for each side (Agresti and Min 2005)."""
    first = right((60, True), (15, True), (5, False), (20, False))
    second = right((60, True), (15, False), (5, True), (20, False))
    stored = [credits_of(lambda rows, one=one: 100 * one[rows].mean(), len(one))[CREDITS] for one in (first, second)]  # type: ignore[misc]
    credits = [{("a", 0): read_credits(text)} for text in stored]
    reach = difference(*credits, {"a": 100})
    half = 1.96 * math.sqrt(15.5 + 5.5 - (15 - 5) ** 2 / 101)
    assert sum(reach) / 2 == pytest.approx(half, rel=0.04)
    comparison = compare({("a", 0): 75.0}, {("a", 0): 65.0}, reach)
    gap = comparison.difference
    assert gap.low > 0
    assert comparison.higher is None
    assert "A is ahead on these rows, against B: +10.00 points" in comparison.sentence("A", "B")
    assert (gap.low, gap.high) == (10 - reach[0], 10 + reach[1])
    # A second task whose values agree halves the mean and its error; a second seed with equal answers changes neither.
    credits = [
        credit | {("a", 1): credit["a", 0], ("b", 0): credit["a", 0] * 0, ("b", 1): credit["a", 0] * 0} for credit in credits
    ]
    again = difference(*credits, {"a": 100})
    assert sum(again) / 2 == pytest.approx(half / 2, rel=0.04)


@pytest.mark.parametrize(("rows", "sure"), [(20, False), (2000, True)])
def test_equal_answers_on_few_rows_do_not_show_that_two_are_equal(rows: int, sure: bool) -> None:
    credits = credits_of(lambda left: 100 * np.ones(rows)[left].mean(), rows)
    facts = {"metric": "accuracy", "reported_examples": rows, **credits}
    entries = [
        entry(name, {"score": 100.0}, seed=seed, counts={"trainable_parameters": size}, facts=facts)
        for name, size in (("a", 1.0), ("b", 2.0), ("c", 3.0))
        for seed in range(3)
    ]
    smallest, *_ = with_probabilities(summarize_entries(entries), DEFAULT_OBJECTIVES)
    assert (smallest.counts[P_ENOUGH] > 0.9) == sure


def test_a_rare_class_has_the_interval_of_its_few_rows() -> None:
    """By Wilson's interval of all rows it would be a third as wide."""
    random, rows, compute = np.random.default_rng(0), 1000, METRICS["macro_f1"].compute
    positive = np.arange(rows) < 50
    answers = np.where(positive, random.random(rows) < 0.6, random.random(rows) < 0.02)
    random.shuffle(order := np.arange(rows))
    labels, answers = positive[order].astype(int), answers[order].astype(int)
    credits = credits_of(lambda left: 100 * compute(answers[left], labels[left]), rows)
    draws = (random.integers(0, rows, rows) for _ in range(200))
    spread = np.std([100 * compute(answers[again], labels[again]) for again in draws])
    facts = {"metric": "macro_f1", "reported_examples": rows, **credits}
    (summary,) = summarize_entries([entry("lora", {"score": 100 * compute(answers, labels)}, facts=facts)])
    assert summary.sampling == pytest.approx((1.96 * spread,) * 2, rel=0.2)


SLOW = [pytest.param(metric, marks=pytest.mark.slow) for metric in ("matthews", "f1", "macro_f1", "spearman")]


@pytest.mark.parametrize("metric", ["accuracy", "pearson", *SLOW])
def test_credits_have_the_bootstraps_error_of_every_metric(metric: str) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 400)
    answers = np.where(random.random(400) < 0.8, labels, 1 - labels)
    if metric in ("pearson", "spearman"):
        labels, answers = (x := random.normal(size=400)), x + random.normal(size=400)
    score = METRICS[metric].compute
    credits = read_credits(credits_of(lambda rows: 100 * score(answers[rows], labels[rows]), 400)[CREDITS])
    drawn = [100 * score(answers[rows], labels[rows]) for rows in random.integers(0, 400, (300, 400))]
    assert math.sqrt(credits.var(ddof=1) / len(credits)) == pytest.approx(np.std(drawn), rel=0.2)
    assert abs(credits.mean()) < 0.01 * np.abs(credits).max()
    assert (credits_of(lambda rows: 50.0, 9), len(credits_of(lambda rows: 50.0, 10))) == ({}, 1), "few rows have none"


def test_the_shared_part_is_told_from_that_of_each_seed() -> None:
    """An error of 0.8 points shared by three seeds, and one of 1.2 that each draws again."""
    random = np.random.default_rng(1)
    found = []
    for _ in range(200):
        shared, each = random.normal(0, 0.8 * 200**0.5, 200), random.normal(0, 1.2 * 200**0.5, (3, 200))
        found.append(shared_variance(shared + each))
    assert np.mean(found) == pytest.approx(0.64, rel=0.1)
    assert np.mean([shared_variance(random.normal(0, 1.2 * 200**0.5, (1, 200))) for _ in range(200)]) == pytest.approx(
        1.44, rel=0.1
    )


def sweep(stored: bool, spreads: Sequence[float] = (20,) * 6) -> list[Summary]:
    random = np.random.default_rng(2)
    hard, found = random.normal(0, 30, 200), []
    for number, spread in enumerate(spreads):
        own = random.normal(0, spread, 200)
        one = made(f"c{number}", 1000.0 * 2**number, [80 + number / 2 + seed / 10 for seed in range(3)])
        credits = {key: hard + own + random.normal(0, 5, 200) for key in one.scores} if stored else {}
        found.append(replace(one, credits=credits))
    return found


def test_probabilities_are_about_new_examples_where_credits_are_stored() -> None:
    new, these = (with_probabilities(sweep(stored), DEFAULT_OBJECTIVES) for stored in (True, False))
    assert [summary.counts[LUCK] for summary in new] == pytest.approx([20 / 200**0.5] * 6, rel=0.25), (
        "without what is hard for all"
    )
    assert all(LUCK not in summary.counts for summary in these)
    assert these[-1].counts[P_ENOUGH] > 0.98 > new[-1].counts[P_ENOUGH]
    assert new[0].counts[P_ENOUGH] > these[0].counts[P_ENOUGH]
    assert "better on new examples" in legend(new, DEFAULT_OBJECTIVES, 1)
    assert "better on these examples" in legend(these, DEFAULT_OBJECTIVES, 1)
    (missing, *others) = sweep(True)
    part = with_probabilities([replace(missing, credits={}), *others], DEFAULT_OBJECTIVES)
    assert "better on these examples" in legend(part, DEFAULT_OBJECTIVES, 1), "one configuration has none"
    assert luck([missing, replace(others[0], credits={key: value[:50] for key, value in others[0].credits.items()})]) is None
    assert by_seed(missing.credits, "toy/sentiment").shape == (3, 200)


@pytest.mark.parametrize("spreads", [(60, 20, 20), (60, *(20,) * 5), (*(20,) * 4, 60)])
def test_what_answers_otherwise_has_its_own_luck_and_leaves_that_of_the_rest(spreads: Sequence[float]) -> None:
    """The head alone is in most sweeps, and answers other rows rightly than adapters do."""
    for every in (True, False):
        variances = luck(sweep(True, spreads), by_all=every)
        assert variances is not None
        assert np.sqrt(variances * 200) == pytest.approx(spreads, rel=0.3)


def test_few_configurations_whose_seeds_scatter_have_the_luck_that_these_share() -> None:
    """Four configurations with an error of 20 a block, of which each of three seeds draws 60 again, part of it for all."""
    random, found = np.random.default_rng(4), []
    for _ in range(100):
        shared = random.normal(0, 40, (3, 200))
        rows = [made(f"c{number}", 1000.0 * 2**number, [80.0, 80.1, 80.2]) for number in range(4)]
        tables = [random.normal(0, 20, 200) + shared + random.normal(0, 45, (3, 200)) for _ in rows]
        variances = luck([replace(row, credits=dict(zip(row.scores, table, strict=True)))
                          for row, table in zip(rows, tables, strict=True)])  # fmt: skip
        assert variances is not None
        found.append(float(variances.mean() * 200))
    assert np.mean(found) == pytest.approx(400, rel=0.15)


@pytest.mark.parametrize(("reach", "larger"), [(4.0, "examples"), (0.2, "seeds"), (0.0, "")])
def test_the_larger_part_of_the_intervals(reach: float, larger: str) -> None:
    """Seeds with a spread of a point have an interval of 2.5 points."""
    rows = [made(name, 1000, [80.0, 81.0, 82.0]) for name in "ab"]
    assert limit([replace(row, sampling=(reach, reach)) for row in rows]) == larger


def test_no_score_is_expected_above_the_metrics_range() -> None:
    seeds = {2192: (80, 80, 71), 4168: (88, 95, 88), 9216: (99, 96, 96), 18432: (100, 100, 88), 73728: (100, 100, 99.6)}
    rising = [made(f"c{size}", float(size), scores) for size, scores in seeds.items()]
    assert max(summary.counts[EXPECTED] for summary in with_probabilities(rising, DEFAULT_OBJECTIVES)) <= 100


@pytest.mark.slow
def test_a_comparison_knows_how_seeds_spread_from_all_configurations_of_both_sweeps() -> None:
    """Of 100 true differences of two points more are shown than by three differences alone, and fewer of equal ones."""
    (false_before, false), (before, now) = found("t seeds", 100)
    assert now > before
    assert false < min(false_before, 0.07)


@pytest.mark.parametrize(
    ("seeds", "step", "reach", "said", "half"),
    [
        (3, 0.1, None, "3 shared seeds of 1 task, on these examples", 4.303 * 0.1 / math.sqrt(3)),
        (3, 0.1, 3.92, "3 shared seeds of 1 task, on new examples", 1.96 * math.hypot(0.1 / math.sqrt(3), 2)),
        # Student's t for all of the error would be 4.3 times it; the seeds have a third of its variance (Satterthwaite 1946).
        (3, 1.0, 1.96 * math.sqrt(2 / 3), "3 shared seeds of 1 task, on new examples", float(stdtrit(2 * 9, 0.975))),
        (1, 0.1, 3.92, "over examples alone, as if every seed had this score", 1.96 * 2),
        (1, 0.1, None, "one seed has no interval", math.nan),
    ],
)
def test_a_comparison_says_what_its_interval_is_over(
    seeds: int, step: float, reach: float | None, said: str, half: float
) -> None:
    first, luck = {("toy", seed): 81.0 + step * seed for seed in range(seeds)}, None if reach is None else (reach, reach)
    gap, tuned = (compare(first, dict.fromkeys(first, 80.0), luck, choice) for choice in (0.0, 1.0))
    assert said in gap.sentence("A", "B")
    assert gap.difference.half == pytest.approx(half, rel=0.001, nan_ok=True)
    assert bool(gap.over) == (", tuning included" in tuned.over) == math.isfinite(half)
    assert gap.sentence("A", "B").startswith("No difference") == (reach is not None)

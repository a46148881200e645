"""Probabilities from the seeds of all configurations together: intervals with moderated variances, and how probably each is on
the front.

    interval of a score   mean ± sqrt((t s)² / n + e²), inside the metric's range
    P(front)              the probability that no configuration that costs no more has a better true score
    P(enough)             the probability that no configuration at all is better by more than `enough.within` points (1)

Two or three seeds say little about one configuration's spread s. Its variance is therefore moderated by those of all
configurations with the same tasks: empirical Bayes, Smyth 2004 (Statistical Applications in Genetics and Molecular Biology
3(1), 3), as limma has it. What a seed does to all configurations cancels between them; it widens the intervals and leaves the
probabilities alone. `e` is the reach of the interval over the scored examples: what examples do to all configurations cancels
between them too. The part of it that a configuration has for itself is in the probabilities where credits are stored
(`orchestrator.results.luck`): then they are about new examples, without about these. The interval of one seed is `e` alone.
Where all have one seed there are no probabilities, because what another seed would change is 2 to 50 times as much as examples
tell in some sweeps. Beside configurations with more seeds, one seed has their common variance.

`expected` is the mean of the same posterior. A score that was chosen for being high is too high on average (the winner's
curse); the posterior's mean is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from orchestrator.results.intervals import Interval, by_seed
from orchestrator.results.luck import luck
from orchestrator.results.metrics import EXPECTED, LUCK, P_ENOUGH, P_FRONT, SIZE
from orchestrator.results.posterior import Evidence, Numbers, shares
from orchestrator.results.summary import Summary, complete_among
from orchestrator.sweepfile.settings import Enough, Objectives

UNSHARED = 4
"""So many pairs that share nothing are added to the pairs of a family, of which two or three seeds show little."""
MOST_PRIOR = 5.0
"""The most degrees of freedom of the prior of variances, the likeliest over all records: variances of two or
three seeds often look more equal than they are."""
FAR = 4.0
"""The standard deviations by which a seed that fell is below the others of its configuration."""


def moderate(variances: ArrayLike, freedom: Any) -> tuple[Numbers, Any]:
    """Returns sample variances `(n,)`, each moved towards their common value (Smyth 2004, equation 3 and section 6.2; by no
    more than MOST_PRIOR), and the degrees of freedom after that, at most those of all. Fewer than three stay as they are;
    `freedom` is of all or `(n,)`."""
    from scipy.optimize import newton
    from scipy.special import digamma, polygamma

    sample = np.asarray(variances, dtype=float)
    if len(sample) < 3 or not (sample > 0).any():
        return sample, freedom
    positive = np.maximum(sample, 1e-5 * (np.median(sample) or sample.max()))  # as limma: a variance of 0 has no logarithm
    logs = np.log(positive) - digamma(freedom / 2) + np.log(freedom / 2)
    excess, total = float(logs.var(ddof=1) - np.mean(polygamma(1, freedom / 2))), np.sum(np.zeros(len(sample)) + freedom)
    if excess <= 0:
        prior, common = MOST_PRIOR, float((positive * freedom).sum() / total)
    else:
        # 1 / trigamma is nearly linear (Smyth 2004, appendix).
        prior = 2 * float(newton(lambda x: 1 / polygamma(1, x) - 1 / excess, 0.5 + 1 / excess, rtol=1e-9, disp=False))
        common = math.exp(float(logs.mean()) + float(digamma(prior / 2)) - math.log(prior / 2))
        prior = min(prior, MOST_PRIOR)
    return (freedom * sample + prior * common) / (freedom + prior), np.minimum(freedom + prior, total)


def with_probabilities(summaries: Sequence[Summary], objectives: Objectives, rule: Enough | None = None) -> list[Summary]:
    """Returns the summaries with intervals added to the complete ones. If some of these have two seeds or more, and every
    objective but the score is exact, all also get `p_front`, `p_enough`, the posterior mean `expected` and, if credits are
    stored, the luck of the examples in it, `example_luck`."""
    complete = complete_among(summaries)
    intervals = _moderated(complete)[0]
    alone = len(complete) == 1 and any(row.finished + row.failed + row.stopped < row.planned for row in summaries)
    counts = {} if alone else _probabilities(complete, objectives, (rule or Enough()).within)
    return [
        replace(
            summary,
            metrics=summary.metrics | ({"score": intervals[name]} if (name := summary.configuration) in intervals else {}),
            counts=summary.counts | counts.get(summary.configuration, {}),
        )
        for summary in summaries
    ]


def _moderated(complete: Sequence[Summary]) -> tuple[dict[str, Interval], dict[str, tuple[float, float, float]]]:
    """Returns, by configuration, the interval of its score and, where others with its tasks have two seeds or more, its mean
    without the effects of its seeds, the variance of that and the degrees of freedom.

    One seed has the variance that is common to the others; its interval is over the examples alone.
    """
    groups: dict[frozenset[str], list[tuple[Summary, dict[int, float]]]] = {}
    for summary in complete:
        groups.setdefault(frozenset(summary.tasks), []).append((summary, by_seed(summary.scores, summary.tasks)))
    single = [summary for summary in complete if summary.score.n == 1 and any(summary.sampling)]
    intervals = {summary.configuration: _interval(summary, 0.0, 1.0, 0.0) for summary in single}
    errors: dict[str, tuple[float, float, float]] = {}
    for group in groups.values():
        trained = [row for row in group if not _is_base(row[0])] or group
        several = [row for row in trained if len(row[1]) > 1]
        if not several:
            continue
        variances, freedom, shared = _variances([scores for _, scores in several])
        # Scores that were rounded may be equal by chance: their spread is at least that of the rounding.
        variances = np.maximum(variances, [summary.rounding**2 / 12 for summary, _ in several])
        spread = {summary.configuration: place for place, (summary, _) in enumerate(several)}
        common, least = float(variances.mean()), max(1.0, float((freedom - [len(row[1]) - 1 for row in several]).max()))
        means, imbalances = _without_effects([scores for _, scores in trained], shared, common)
        for summary in (summary for summary, _ in group if _is_base(summary)):
            # No seed changes it, so it says nothing of their spread, and what a seed does to all others does not cancel.
            intervals[summary.configuration] = _interval(summary, 0.0, 1.0, 0.0)
            fewest = min(len(scores) for _, scores in several)
            errors[summary.configuration] = summary.score.mean, shared / fewest, fewest - 1.0
        for (summary, scores), mean, imbalance in zip(trained, means.tolist(), imbalances.tolist(), strict=True):
            variance, degrees = common, least
            if (place := spread.get(summary.configuration)) is not None:
                variance, degrees = float(variances[place]), float(freedom[place])
                intervals[summary.configuration] = _interval(summary, variance, degrees, shared)
            errors[summary.configuration] = mean, variance / len(scores) + imbalance, degrees
    return intervals, errors


def _without_effects(scores: Sequence[dict[int, float]], shared: float, variance: float) -> tuple[Numbers, Numbers]:
    """Returns the means of configurations without what their seeds do to all, as far as this is known, and the variance that
    this leaves between configurations with different seeds: the posterior of effects of variance `shared`."""
    seeds = sorted({seed for by in scores for seed in by})
    table = np.array([[by.get(seed, math.nan) for seed in seeds] for by in scores])
    weights = ~np.isnan(table) / (~np.isnan(table)).sum(axis=1, keepdims=True)
    means = np.nanmean(table, axis=1)
    if not shared or not variance:
        return means, np.zeros(len(means))
    present = (~np.isnan(table)).astype(float)
    information = np.diag(present.sum(axis=0)) - present.T @ weights + np.eye(len(seeds)) * max(variance / shared, 1e-6)
    effects = np.linalg.solve(information, np.nansum(table - means[:, None], axis=0))
    lopsided = weights - weights.mean(axis=0)
    left = variance * np.einsum("ij,jk,ik->i", lopsided, np.linalg.inv(information), lopsided)
    return means - weights @ effects, left


def _probabilities(complete: Sequence[Summary], objectives: Objectives, within: float) -> dict[str, dict[str, float]]:
    """Returns the counts that `with_probabilities` adds, by configuration; empty without evidence. P(front) only with costs."""
    observed = evidence(complete, objectives, within)
    if observed is None:
        return {}
    exact = [name for name in objectives if name != "score"]
    costs = np.array([[summary.value(name) for name in exact] for summary in complete], dtype=float).reshape(
        len(complete), len(exact)
    )
    costs *= [-1.0 if objectives[name] == "maximize" else 1.0 for name in exact]
    scores = observed.draw()
    bounds = [max(summary.range[1], summary.score.mean) for summary in complete]  # which the model does not have
    expected = np.minimum(scores.mean(axis=0), bounds)
    priced, front = np.isfinite(costs).all(axis=1), np.full(len(complete), math.nan)  # what is cut has no seconds of its own
    front[priced] = shares(scores[:, priced], costs[priced])
    columns = {
        P_FRONT: front,
        P_ENOUGH: shares(scores, np.zeros((len(complete), 1)), within),
        EXPECTED: expected,
    }
    if (shared := luck(complete)) is not None:
        columns[LUCK] = np.sqrt(shared)
    return {
        summary.configuration: {name: float(values[row]) for name, values in columns.items() if math.isfinite(values[row])}
        for row, summary in enumerate(complete)
    }


def find_falls(complete: Sequence[Summary], least: float) -> tuple[dict[str, list[float]], int]:
    """Returns, by configuration, by how many points a seed is far behind the mean of the configuration's other seeds, where
    that is more than `least`; and how many seeds have others."""
    falls = list[tuple[str, float]]()
    for summary in (row for row in complete if row.score.n > 1 and not _is_base(row)):
        seeds = [*by_seed(summary.scores, summary.tasks).values()]
        falls += [(summary.configuration, (sum(seeds) - score) / (len(seeds) - 1) - score) for score in seeds]
    usual = median([abs(fall) for _, fall in falls] or [0.0]) / 0.67  # a standard deviation, whatever a few seeds did
    far = dict[str, list[float]]()
    for name, fall in falls:
        if fall > max(FAR * usual, least):
            far.setdefault(name, []).append(fall)
    return far, len(falls)


def evidence(complete: Sequence[Summary], objectives: Objectives, within: float = 1.0) -> Evidence | None:
    """Returns what complete configurations show; None where one has no error over seeds, or another objective is not exact."""
    errors = _moderated(complete)[1]
    uncertain = any(name in summary.metrics for summary in complete for name in objectives if name != "score")
    if "score" not in objectives or uncertain or not complete or len(errors) < len(complete):
        return None
    means, variances, degrees = np.array([errors[summary.configuration] for summary in complete]).T
    seeds = np.array([summary.score.n for summary in complete])
    places: dict[str, list[int]] = {}
    for place, summary in enumerate(complete):
        places.setdefault(summary.trained, []).append(place)
    families = [tuple(family) for family in places.values() if len(family) > 1]
    return Evidence(
        means,
        variances,
        degrees,
        seeds,
        np.nan_to_num([summary.value(SIZE) for summary in complete]),
        np.array([summary.tuning.luck for summary in complete]) + (0.0 if (shared := luck(complete)) is None else shared),
        within,
        tuple((family, min(complete[place].tuning.luck for place in family)) for family in families),
        _together(complete, families, variances * seeds),
    )


def _together(complete: Sequence[Summary], families: Sequence[Sequence[int]], variances: Numbers) -> float:
    """Returns the correlation of the luck that one training brings to its adapter and its cuts, the mean over all families."""
    tables = [by_seed(summary.scores, summary.tasks) for summary in complete]
    seeds = sorted(set(tables[0]).intersection(*tables))
    if not families or len(seeds) < 2:
        return 0.0
    table = np.array([[scores[seed] for seed in seeds] for scores in tables])
    residuals = table - table.mean(axis=1, keepdims=True)
    residuals -= residuals.mean(axis=0)
    residuals /= np.sqrt(np.maximum(variances, 1e-12))[:, None]
    products = residuals @ residuals.T / (len(seeds) - 1)
    shares = [products[pair] for family in families for pair in combinations(family, 2)]
    return min(0.95, max(0.0, float(np.sum(shares)) / (len(shares) + UNSHARED)))


def _variances(scores: Sequence[dict[int, float]]) -> tuple[Numbers, Numbers, float]:
    """Returns the moderated variances between the seeds of configurations, without the effect that a seed has on all of them,
    where three or more show it; their degrees of freedom; and the variance of this common effect, 0 if it is not known."""
    seeds = sorted({seed for by in scores for seed in by})
    table = np.array([[by.get(seed, math.nan) for seed in seeds] for by in scores])
    known_scores, counts = ~np.isnan(table), (~np.isnan(table)).sum(axis=1)
    residuals = table - np.nanmean(table, axis=1, keepdims=True)
    rows, columns = np.nonzero(known_scores)
    effects = (columns[:, None] == np.flatnonzero(known_scores.sum(axis=0) >= 3)).astype(float)
    effects -= (
        (np.stack([np.bincount(rows, column) for column in effects.T]).T / counts[:, None])[rows] if effects.size else 0.0
    )
    basis, lengths, _ = np.linalg.svd(effects, full_matrices=False)
    basis = basis[:, lengths > 1e-9]
    unexplained = residuals[known_scores] - basis @ (basis.T @ residuals[known_scores])
    freedom = np.bincount(rows, 1 - 1 / counts[rows] - (basis**2).sum(axis=1))
    # The effects of seeds explain all of a configuration that alone has seeds of two groups: it has the variance of the others.
    own = freedom > 1e-9
    moderated, sure = moderate(np.bincount(rows, unexplained**2)[own] / freedom[own], freedom[own])
    variances, degrees = np.full(len(table), moderated.mean()), np.full(len(table), max(1.0, (sure - freedom[own]).max()))
    variances[own], degrees[own] = moderated, sure
    every = table[:, known_scores.all(axis=0)]
    if len(table) < 3 or every.shape[1] < 2:
        return variances, degrees, 0.0
    effect = (every - every.mean(axis=1, keepdims=True)).mean(axis=0)
    common = float((effect**2).sum()) / (len(effect) - 1) - float(variances.mean()) / len(table)
    return variances, degrees, max(0.0, common)


def spreads(summaries: Sequence[Summary], tasks: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Returns, by configuration, the moderated variance of one seed's mean over `tasks`, without what a seed does to all, and
    its degrees of freedom; of the complete ones that were trained with two seeds or more."""
    seeds = {row.configuration: by_seed(row.scores, tasks) for row in complete_among(summaries) if not _is_base(row)}
    seeds = {name: scores for name, scores in seeds.items() if len(scores) > 1}
    if len(seeds) < 3:
        return {}
    variances, degrees, _ = _variances([*seeds.values()])
    return dict(zip(seeds, zip(variances.tolist(), degrees.tolist(), strict=True), strict=True))


def spread_between(
    first: tuple[float, float] | None, second: tuple[float, float] | None, one_sweep: bool
) -> tuple[float, float] | None:
    """Returns the variance of the difference of two configurations with one seed each, and its degrees of freedom; None if one
    of their `spreads` is not known. Those of one sweep are moderated by the same seeds."""
    if not (first and second):
        return None
    variance = first[0] + second[0]
    apart = variance**2 / ((first[0] ** 2 / first[1] + second[0] ** 2 / second[1]) or 1.0)
    return variance, min(first[1], second[1]) if one_sweep else apart


def _interval(summary: Summary, variance: float, freedom: float, shared: float) -> Interval:
    """Returns the score's interval; the degrees of freedom of both variances together are Satterthwaite's."""
    from scipy.special import stdtrit

    seeds, total = summary.score.n, variance + shared
    degrees = total**2 / (variance**2 / freedom + shared**2 / (seeds - 1)) if total else freedom
    half, mean = float(stdtrit(degrees, 0.975)) * math.sqrt(total / seeds), summary.score.mean
    half = max(math.hypot(half, 1.96 * math.sqrt(summary.tuning.luck)), summary.rounding / 2)
    low, high = mean - math.hypot(half, summary.sampling[0]), mean + math.hypot(half, summary.sampling[1])
    least, most = summary.range
    return Interval(mean, max(low, min(least, mean)), min(high, max(most, mean)), seeds)


def _is_base(summary: Summary) -> bool:
    """Returns whether nothing was trained: a language model as it is."""
    weights = summary.counts.get(SIZE), summary.counts.get("head_parameters")
    return weights == (0, 0) and len({*by_seed(summary.scores, summary.tasks).values()}) == 1

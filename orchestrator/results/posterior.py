"""The posterior of the true scores of configurations, from which the chances come.

The chances come from a hierarchical model: true scores scatter around a trend in the logarithm of the parameters, and the
spread around it is integrated over. Draws around each mean alone would give too small a chance to each of several that lie
close together. Where true differences are far below the noise no model can tell who is ahead by a hair: P(enough)
still can, and the rule of what is enough (`orchestrator.results.front.enough_of`) goes by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.float64]
DRAWS = 2000
UNTRIED = 1e6
"""The variance of a configuration without a trial, of which the trend alone tells."""
LEAST = 4
"""The fewest configurations that have a trend."""
SPREADS = 24
"""Values of the spread around the trend over which the model is integrated."""


@dataclass(frozen=True)
class Evidence:
    """What the trials of n configurations show of their true scores; all arrays `(n,)`, as `draw_scores` takes them.

    Attributes:
        seeds: numbers of seeds; 0 for a configuration that has not been tried, whose error is UNTRIED.
        sign: 1.0 where more is better, else -1.0.
    """

    means: Numbers
    errors: Numbers
    freedom: Numbers
    seeds: NDArray[np.int_]
    size: Numbers
    luck: Numbers
    sign: float = 1.0

    @property
    def has_trend(self) -> bool:
        """Whether the sizes tell of one that nobody tried."""
        inside = (self.size > 0) & (self.errors < UNTRIED)
        return bool(inside.sum() >= LEAST and (self.errors + self.luck)[inside].any())

    def draw(self, most: int = DRAWS) -> Numbers:
        """Returns draws `(draws, n)` of the true scores; more is better."""
        draws = max(200, min(most, 10**7 // len(self.size)))
        return draw_scores(self.means, self.errors, self.freedom, self.size, draws, self.luck) * self.sign


def draw_scores(
    means: ArrayLike, errors: ArrayLike, freedom: ArrayLike, parameters: ArrayLike, draws: int = DRAWS, luck: ArrayLike = 0.0
) -> Numbers:
    """Draws `(draws, n)` from the posterior of n true scores; the same for the same input.

    Args:
        means, errors: `(n,)` mean scores and the variances of these means over seeds.
        freedom: `(n,)` or one number: the degrees of freedom of the variances.
        parameters: `(n,)`. A configuration without parameters is outside the trend. Fewer than four have none.
        luck: `(n,)`, variances of the means by the luck of the examples that no seed shows (`orchestrator.results.luck`).
    """
    random = np.random.default_rng(0)
    mean, error = np.asarray(means, dtype=float), np.asarray(errors, dtype=float)
    size, many = np.asarray(parameters, dtype=float), len(mean)
    degrees = np.broadcast_to(np.asarray(freedom, dtype=float), mean.shape)
    drawn = error * degrees / random.chisquare(degrees, size=(draws, many)) + np.asarray(luck)
    error = error + np.asarray(luck)
    noise = random.standard_normal((draws, many))
    inside = size > 0
    seen = inside & (error < UNTRIED)
    if seen.sum() < LEAST or not (error[seen] > 0).any():
        return mean + np.sqrt(drawn) * noise
    logs, level = np.log(size[seen]), mean[seen]
    terms = 1 if np.ptp(logs) == 0 or len(logs) < 5 else 2 if len(logs) < 8 else 3
    center, width = logs.mean(), logs.std() or 1.0
    every = np.stack([((np.log(size[inside]) - center) / width) ** power for power in range(terms)], axis=1)
    design = every[seen[inside]]
    rest = level - design @ np.linalg.lstsq(design, level, rcond=None)[0]
    typical = math.sqrt(float(error[seen].mean()))
    # A uniform prior of the spread, on a geometric grid; the trend's own terms are integrated over exactly.
    spread = np.geomspace(typical / 8, 4 * max(typical, math.sqrt(float(rest @ rest) / max(len(rest) - terms, 1))), SPREADS)
    weight = 1 / (error[seen] + spread[:, None] ** 2)
    inner = np.einsum("gk,ki,kj->gij", weight, design, design)
    outer = np.einsum("gk,ki,k->gi", weight, design, level)
    trend = np.linalg.solve(inner, outer[..., None])[..., 0]
    likely = 0.5 * np.log(weight).sum(axis=1) - 0.5 * np.linalg.slogdet(inner)[1] + np.log(spread)
    likely -= 0.5 * ((weight * level**2).sum(axis=1) - (outer * trend).sum(axis=1))
    chance = np.exp(likely - likely.max())
    chosen = random.choice(SPREADS, size=draws, p=chance / chance.sum())
    root = np.linalg.cholesky(np.linalg.inv(inner))
    expected = np.tile(mean, (draws, 1))
    wobble = np.einsum("sij,sj->si", root[chosen], random.standard_normal((draws, terms)))
    expected[:, inside] = (trend[chosen] + wobble) @ every.T
    wide = (spread[chosen] ** 2)[:, None]
    shrinkage = np.where(inside, wide / (wide + drawn), 1.0)
    return expected + shrinkage * (mean - expected) + np.sqrt(shrinkage * drawn) * noise


def shares(scores: Numbers, costs: Numbers, within: float = 0.0) -> Numbers:
    """Returns for each configuration the share of draws in which none of at most its cost is better by more than `within`
    points.

    Args:
        scores: `(draws, n)`, more is better.
        costs: `(n, m)`, less is better in every column.
    """
    chances = np.empty(scores.shape[1])
    if costs.shape[1] == 1:
        order = np.argsort(costs[:, 0], kind="stable")
        best = np.maximum.accumulate(scores[:, order], axis=1)
        last = np.searchsorted(costs[order, 0], costs[order, 0], side="right") - 1
        chances[order] = (scores[:, order] >= best[:, last] - within).mean(axis=0)
        return chances
    for place in range(len(chances)):
        rivals = (costs <= costs[place]).all(axis=1)
        chances[place] = (scores[:, place] >= scores[:, rivals].max(axis=1) - within).mean()
    return chances

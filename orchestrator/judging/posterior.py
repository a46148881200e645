"""The posterior of the true scores of configurations, from which the probabilities come.

The probabilities come from a hierarchical model: true scores scatter around a trend in the logarithm of the parameters, and the
spread around it is integrated over. Draws around each mean alone would give too small a probability to each of several that lie
close together. Where true differences are far below the noise no model can tell who is ahead by a hair: P(enough)
still can, and the rule of what is enough (`orchestrator.judging.front.enough_of`) goes by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
DRAWS = 2000
UNTRIED = 1e6
"""The variance of a configuration without a trial."""
LEVELLING = 0.7
"""The part of the last step of a curve that the next step of equal length still gains."""
CLEAR = 4.0
"""The standard errors by which a configuration must be behind the best to be no contender."""
LEAST = 4
"""The fewest configurations that have a trend."""
SPREADS = 24
"""Values of the spread around the trend over which the model is integrated."""


@dataclass(frozen=True)
class Evidence:
    """What the trials of n configurations show of their true scores; all arrays `(n,)`.

    Attributes:
        means, errors: mean scores, and the variances of these means over seeds; UNTRIED without a trial.
        freedom: the degrees of freedom of the variances.
        seeds: numbers of seeds.
        size: numbers of parameters. A configuration without parameters is outside the trend.
        luck: variances of the means that no seed shows: by the examples (`orchestrator.judging.luck`) and by tuning.
        sign: 1.0 where more is better, else -1.0.
        within: the points behind the best that are enough. The trend is then that of the contenders, which may be so near to
            the best: a method that learned nothing would bend it. None if all have one trend.
        beyond: for each untried size, which come last, the places of the configuration that it continues and of the next one of
            the same method on the other side (None if there is none).
    """

    means: Numbers
    errors: Numbers
    freedom: Numbers
    seeds: NDArray[np.int_]
    size: Numbers
    luck: Numbers
    sign: float = 1.0
    within: float | None = None
    beyond: tuple[tuple[int, int | None], ...] = ()

    @property
    def has_trend(self) -> bool:
        """Whether there are enough sizes for a trend."""
        return bool((self.size > 0).sum() >= LEAST and (self.errors + self.luck).any())

    def draw(self, most: int = DRAWS) -> Numbers:
        """Returns draws `(draws, n)` of the true scores, more is better; the same for the same evidence."""
        sized = (self.errors < UNTRIED) & (self.size > 0)
        scores, spread = self._draw(sized & self._contends(), max(200, min(most, 10**7 // len(self.size))))
        scores *= self.sign
        for place, (base, next_one) in enumerate(self.beyond, len(self.size) - len(self.beyond)):
            if self.errors[place] >= UNTRIED:
                scores[:, place] = self._continue(scores, spread, place, base, next_one)
        return scores

    def _contends(self) -> NDArray[np.bool_]:
        level, error = np.where(self.errors < UNTRIED, self.means * self.sign, -np.inf), self.errors + self.luck
        best, within = int(level.argmax()), np.inf if self.within is None else self.within
        return level >= level[best] - within - CLEAR * np.sqrt(error + error[best])

    def _draw(self, trend: NDArray[np.bool_], draws: int) -> tuple[Numbers, Numbers]:
        """Returns draws of the scores, and `(draws,)` of the spread around the trend of the configurations in `trend`."""
        random, mean, error = np.random.default_rng(0), self.means, self.errors + self.luck
        drawn = self.errors * self.freedom / random.chisquare(self.freedom, size=(draws, len(mean))) + self.luck
        scores = mean + np.sqrt(drawn) * random.standard_normal((draws, len(mean)))
        typical = math.sqrt(float(error[trend].mean())) if trend.any() else 0.0
        if trend.sum() < LEAST or not typical:
            return scores, np.full(draws, typical)
        logs, level = np.log(self.size[trend]), mean[trend]
        most = min(len(np.unique(np.round(logs, 6))), 1 if len(logs) < 5 else 2 if len(logs) < 8 else 3)
        design = np.stack([((logs - logs.mean()) / (logs.std() or 1.0)) ** power for power in range(most)], axis=1)
        residuals = level - design @ np.linalg.lstsq(design, level, rcond=None)[0]
        # A uniform prior of the spread's logarithm; the trend's terms are integrated over exactly. That of contenders may be
        # level or straight: a prior that knows as much as one of them weighs this (Kass and Wasserman 1995).
        widest = max(typical, math.sqrt(float(residuals @ residuals) / max(len(residuals) - most, 1)))
        spread = np.geomspace(typical / 8, 4 * widest, SPREADS)
        weight = 1 / (error[trend] + spread[:, None] ** 2)
        inner = np.einsum("gk,ki,kj->gij", weight, design, design)
        outer = np.einsum("gk,ki,k->gi", weight, design, level)
        likely, noise = np.full((most, SPREADS), -np.inf), np.log(weight).sum(axis=1) - (weight * level**2).sum(axis=1)
        center, root = np.zeros((most, SPREADS, most)), np.zeros((most, SPREADS, most, most))
        prior = design.T @ design / (typical**2 * len(level))
        for last in range(most - 1 if self.within is None else 0, most):
            part, terms = inner[:, : last + 1, : last + 1], slice(last + 1)
            center[last, :, terms] = np.linalg.solve(part, outer[:, terms, None])[..., 0]
            root[last, :, terms, terms] = np.linalg.cholesky(np.linalg.inv(part))
            informed = np.linalg.slogdet(prior[terms, terms])[1] - np.linalg.slogdet(part)[1]
            likely[last] = 0.5 * (noise + (outer * center[last]).sum(axis=1) + informed)
        probability = np.exp(likely - likely.max()).ravel()
        chosen = np.unravel_index(random.choice(len(probability), size=draws, p=probability / probability.sum()), likely.shape)
        wobble = np.einsum("sij,sj->si", root[chosen], random.standard_normal((draws, most)))
        expected = (center[chosen] + wobble) @ design.T
        spread = spread[chosen[1]]
        shrinkage = spread[:, None] ** 2 / (spread[:, None] ** 2 + drawn[:, trend])
        scores[:, trend] = expected + shrinkage * (level - expected) + np.sqrt(shrinkage) * (scores[:, trend] - level)
        return scores, spread

    def _continue(self, scores: Numbers, spread: Numbers, place: int, base: int, next_one: int | None) -> Numbers:
        """Returns draws of an untried size's score. Curves level off: a step up gains LEVELLING of the last one or of the
        linear trend over all sizes, whichever is smaller, and never less than nothing. A step down loses the larger of both."""
        sized = (self.errors < UNTRIED) & (self.size > 0)
        step, logs, level = math.log(self.size[place] / self.size[base]), np.log(self.size[sized]), self.means[sized]
        runs, rises = np.subtract.outer(logs, logs), self.sign * np.subtract.outer(level, level)
        slopes = rises[runs > 0] / runs[runs > 0]  # their median is no method's that learned nothing (Theil, Sen)
        gain = np.full(len(scores), step * float(np.median(slopes)) if len(slopes) else 0.0)
        if next_one is not None:
            last = (scores[:, base] - scores[:, next_one]) / math.log(self.size[base] / self.size[next_one])
            gain = np.minimum(gain, step * last)
        noise = np.random.default_rng(place).standard_normal(len(scores)) * spread
        if step < 0:
            return scores[:, base] + np.minimum(gain, 0) + noise
        return scores[:, base] + np.maximum(LEVELLING * gain, 0) - spread / 2 + noise


def shares(scores: Numbers, costs: Numbers, within: float = 0.0) -> Numbers:
    """Returns for each configuration the share of draws in which none of at most its cost is better by more than `within`
    points.

    Args:
        scores: `(draws, n)`, more is better.
        costs: `(n, m)`, less is better in every column.
    """
    probabilities = np.empty(scores.shape[1])
    if costs.shape[1] == 1:
        order = np.argsort(costs[:, 0], kind="stable")
        best = np.maximum.accumulate(scores[:, order], axis=1)
        last = np.searchsorted(costs[order, 0], costs[order, 0], side="right") - 1
        probabilities[order] = (scores[:, order] >= best[:, last] - within).mean(axis=0)
        return probabilities
    for place in range(len(probabilities)):
        rivals = (costs <= costs[place]).all(axis=1)
        probabilities[place] = (scores[:, place] >= scores[:, rivals].max(axis=1) - within).mean()
    return probabilities

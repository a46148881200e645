"""The posterior of the true scores of configurations, from which the probabilities come.

    score of configuration c over its seeds  =  true score(c) + luck common to its family + luck of its own
    true score(c)  ~  Normal(center, spread(c))     of the contenders; center and spread are integrated over, uniformly

Who contends does not depend on its own noise, and the spread grows with the noise of its mean (UNEQUAL). Otherwise noise alone
would bring a score near the center: 80.7 with noisy seeds was on the front with 0.86, 81.0 of the same size with 0.13.

A family is an adapter and its cuts: they share the choice of settings and a part of each training's luck. Draws around each
mean alone would give too small a probability to each of several near each other. There is no trend over sizes: that of all
methods gave 9,216 parameters of LoRA 0.08 and 65,608 of CRAFT 0.91 at a difference of 0.13 points. A prior that is uniform in
the spread's logarithm said 95 % of answers of which 92 % were right.
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
LEAST = 3
"""The fewest contenders that show how true scores spread."""
LEAST_SIZES = 4
"""The fewest sizes from which an untried one is continued."""
SPREADS = 24
"""Values of the spread over which the model is integrated."""
UNEQUAL = 0.5
"""The power of a mean's variance with which that of its true score grows: with 0, 10 points too sure where seeds scatter
unequally (docs/measurements/trust.md), with 1 a larger loss."""


@dataclass(frozen=True)
class Evidence:
    """What the trials of n configurations show of their true scores; all arrays `(n,)`.

    Attributes:
        means, errors: mean scores, and the variances of these means over seeds; UNTRIED without a trial.
        freedom: the degrees of freedom of the variances.
        size: numbers of parameters. A configuration without any is not one of the contenders, which have some.
        luck: variances of the means that no seed shows: by the examples (`orchestrator.results.luck`) and by tuning.
        within: the points behind the best that are enough. Contenders may be so near to the best: a method that learned nothing
            says nothing of their spread.
        families: the places of an adapter and its cuts, and the variance by the luck of their one choice, a part of `luck`.
        together: the part of `errors` that the members of a family share.
        beyond: for each untried size, which come last, the places of the configuration that it continues and of the next one of
            the same method on the other side (None if there is none).
    """

    means: Numbers
    errors: Numbers
    freedom: Numbers
    seeds: NDArray[np.int_]
    size: Numbers
    luck: Numbers
    within: float = 1.0
    families: tuple[tuple[tuple[int, ...], float], ...] = ()
    together: float = 0.0
    beyond: tuple[tuple[int, int | None], ...] = ()

    def draw(self, most: int = DRAWS) -> Numbers:
        """Returns draws `(draws, n)` of the true scores, more is better; the same for the same evidence."""
        scores, spread = self._draw(max(200, min(most, 10**7 // len(self.size))))
        for place, (base, next_one) in enumerate(self.beyond, len(self.size) - len(self.beyond)):
            if self.errors[place] >= UNTRIED:
                spread = np.where(np.isinf(spread), math.sqrt(float(np.median(self.errors + self.luck))), spread)
                scores[:, place] = self._continue(scores, spread, place, base, next_one)
        return scores

    def _contends(self) -> NDArray[np.bool_]:
        tried, error = self.errors < UNTRIED, self.errors + self.luck
        level = np.where(tried, self.means, -np.inf)
        best, sized = int(level.argmax()), self.size > 0
        able = tried & sized if sized.any() else tried
        return able & (level >= level[best] - self.within - CLEAR * np.sqrt(np.median(error[able]) + error[best]))

    def _draw(self, draws: int) -> tuple[Numbers, Numbers]:
        """Returns draws of the scores, and `(draws,)` of the spread of the contenders; infinite where these are too few."""
        contends = self._contends()
        # The best has the first random numbers, so neither the order of configurations nor one far behind changes its draws.
        order = np.lexsort((self.size, -self.means))
        place = np.argsort(order)
        families = sorted(self.families, key=lambda family: min(place[list(family[0])]))
        member, common, luck = np.zeros((len(order), len(families))), np.zeros(len(families)), self.luck.copy()
        for column, (places, shared) in enumerate(families):
            member[list(places), column] = 1
            common[column] = shared + self.together * float(self.errors[list(places)].mean())
            luck[list(places)] -= shared
        errors = self.errors * (1 - self.together * member.sum(axis=1))
        degrees = np.random.default_rng(1).chisquare(self.freedom[order, None], (len(order), draws))[place].T
        own = errors * self.freedom / degrees + luck
        wide = np.maximum(errors + luck, 1e-12) ** UNEQUAL
        wide /= wide[contends].mean() if contends.any() else 1
        center, spread = self._population(errors + luck, wide, member * contends[:, None], common, contends, draws)
        # What is common to a family is drawn first, by what its members differ from the center; then each member's own score.
        precision = contends / (own + spread[:, None] ** 2 * wide)
        width = 1 / (1 / np.maximum(common, 1e-12) + precision @ member)
        offset = width * ((precision * (self.means - center[:, None])) @ member)
        level = self.means - (offset + np.sqrt(width) * _normal(2, len(families), draws)) @ member.T
        pull = own * precision
        noise = np.sqrt((1 - pull) * own) * _normal(3, len(order), draws)[:, place]
        return level + pull * (center[:, None] - level) + noise, spread

    def _population(
        self, variance: Numbers, wide: Numbers, member: Numbers, common: Numbers, contends: NDArray[np.bool_], draws: int
    ) -> tuple[Numbers, Numbers]:
        """Returns draws of the mean and of the typical spread of the contenders' true scores, `(draws,)` each; `wide` times
        its square is the variance of a contender's."""
        level, variances = self.means[contends], variance[contends] + (member @ common)[contends]
        typical = math.sqrt(float(variances.sum()) / max(len(variances), 1))
        if len(level) < LEAST or not typical:
            return np.zeros(draws), np.full(draws, np.inf)
        spread = np.geomspace(typical / 8, 4 * max(typical, float(level.std(ddof=1))), SPREADS)
        weight = 1 / (variance[contends] + spread[:, None] ** 2 * wide[contends])
        weights, weighted = weight @ member[contends], (weight * level) @ member[contends]
        shared = common / (1 + common * weights)  # of the inverse of the covariance (Sherman and Morrison 1950)
        precision = weight.sum(axis=1) - (shared * weights**2).sum(axis=1)
        total = (weight * level).sum(axis=1) - (shared * weights * weighted).sum(axis=1)
        squares = (weight * level**2).sum(axis=1) - (shared * weighted**2).sum(axis=1) - total**2 / precision
        determinant = np.log1p(common * weights).sum(axis=1) - np.log(weight).sum(axis=1) + np.log(precision)
        likely = np.log(spread) - 0.5 * (determinant + squares)
        probability, random = np.exp(likely - likely.max()), np.random.default_rng(0)
        chosen = random.choice(SPREADS, size=draws, p=probability / probability.sum())
        center = (total / precision)[chosen] + random.standard_normal(draws) / np.sqrt(precision[chosen])
        return center, spread[chosen]

    def _continue(self, scores: Numbers, spread: Numbers, place: int, base: int, next_one: int | None) -> Numbers:
        """Returns draws of an untried size's score. Curves level off: a step up gains LEVELLING of the last one or of the
        linear trend over all sizes, whichever is smaller, and never less than nothing. A step down loses the larger of both."""
        sized = (self.errors < UNTRIED) & (self.size > 0)
        step, logs, level = math.log(self.size[place] / self.size[base]), np.log(self.size[sized]), self.means[sized]
        runs, rises = np.subtract.outer(logs, logs), np.subtract.outer(level, level)
        slopes = rises[runs > 0] / runs[runs > 0]  # their median is no method's that learned nothing (Theil, Sen)
        gain = np.full(len(scores), step * float(np.median(slopes)) if len(slopes) else 0.0)
        if next_one is not None:
            last = (scores[:, base] - scores[:, next_one]) / math.log(self.size[base] / self.size[next_one])
            gain = np.minimum(gain, step * last)
        spread = spread / 2  # the other half is how methods and sizes differ
        noise = np.random.default_rng(place).standard_normal(len(scores)) * spread
        if step < 0:
            return scores[:, base] + np.minimum(gain, 0) + noise
        return scores[:, base] + np.maximum(LEVELLING * gain, 0) - spread / 2 + noise


def _normal(seed: int, many: int, draws: int) -> Numbers:
    """Returns standard normal numbers `(draws, many)`; the first columns do not depend on how many there are."""
    return np.random.default_rng(seed).standard_normal((many, draws)).T


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

"""Intervals over the seeds of a configuration: means with 95 % intervals, and two configurations compared in pairs.

One rule turns a configuration's scores into its value, everywhere in the project: the mean over tasks of the mean over seeds.
The tasks are fixed and not a sample, so the interval is over the seeds' averages over the tasks: Student's t here, moderated
over all configurations where a sweep is judged (`probabilities`). One seed has no interval over seeds: its ends are NaN, never
of zero width. Where a sweep is judged it has that of the scored examples (`sampling_reach`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from craft.tasks.metrics import METRICS
from craft.words import plural

Scores = Mapping[tuple[str, int], float]
CONTRADICTED = 0.975
"""So often the variance of a few differences is below what a pooled variance allows, if that is right."""


@dataclass(frozen=True)
class Interval:
    """A mean over `n` values with the ends of its interval. The ends are NaN for one value; all three are NaN for none."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Comparison:
    """Two configurations over what both ran: `difference` is the first minus the second, with its interval.

    `luck` is how far the interval reaches below and above by what examples do and seeds do not show, None if it is not known
    and so not in it. `choice` is the variance by the choices of tuned settings. `p` is the two-sided p-value of a t test over
    the seeds; `tasks` names the tasks shared.
    """

    difference: Interval
    p: float
    tasks: tuple[str, ...]
    luck: tuple[float, float] | None = None
    choice: float = 0.0

    @property
    def higher(self) -> Literal["first", "second"] | None:
        """The side that is shown to be higher; None where the interval includes zero, and with one seed."""
        if self.difference.n < 2 or not (self.difference.low > 0 or self.difference.high < 0):
            return None
        return "first" if self.difference.low > 0 else "second"

    @property
    def over(self) -> str:
        chosen = ", tuning included" if self.choice else ""
        if self.difference.n == 1:
            return "" if self.luck is None else f"over examples alone{chosen}, as if every seed had this score"
        return f"on {'these' if self.luck is None else 'new'} examples{chosen}"

    def sentence(self, first: str, second: str, unit: str = "points") -> str:
        """Returns the comparison in plain words, with `no difference is shown` if the interval includes zero.

        Of another unit than points it is not said which side is better: a loss is better if it is lower.
        """
        beats = "beats" if unit == "points" else "is higher than"
        beats = beats if self.difference.n > 1 else "is ahead on these rows, against"
        if not self.difference.n:
            return f"{first} and {second} share no seed that finished the same tasks: nothing to compare."
        seeds = self.difference.n
        shared = f"{seeds} shared {plural(seeds, 'seed')} of {len(self.tasks)} {plural(len(self.tasks), 'task')}"
        gap = f"{self.difference.mean:+.2f} {unit}"
        if math.isnan(self.difference.half):
            return f"{first} against {second}: {gap} over {shared}; one seed has no interval."
        ends = f"95 % interval {self.difference.low:+.2f} to {self.difference.high:+.2f}, {shared}, {self.over}"
        if self.difference.low > 0:
            return f"{first} {beats} {second}: {gap} ({ends})."
        if self.difference.high < 0:
            return f"{second} {beats} {first}: {-self.difference.mean:+.2f} {unit} ({first} minus {second}: {ends})."
        return f"No difference between {first} and {second} is shown: {gap} ({ends})."


def interval(values: Iterable[float]) -> Interval:
    """Computes mean and Student's 95 % interval of independent values. A NaN among them makes all of the result NaN."""
    from scipy.special import stdtrit

    sample = np.asarray(list(values), dtype=float)
    if not sample.size:
        return Interval(math.nan, math.nan, math.nan, 0)
    mean = float(sample.mean())
    if sample.size == 1:
        return Interval(mean, math.nan, math.nan, 1)
    half = float(stdtrit(sample.size - 1, 0.975)) * float(sample.std(ddof=1)) / math.sqrt(sample.size)
    return Interval(mean, mean - half, mean + half, int(sample.size))


def spread(interval: Interval, digits: int = 2) -> str:
    """Writes an interval behind its mean: ` ± 4.46`; ` (97.3 to 100)` where it ends at a bound of the metric; empty if none."""
    if not math.isfinite(interval.half):
        return ""
    if abs(interval.high + interval.low - 2 * interval.mean) > 0.01:
        low, high = (f"{end:.1f}".removesuffix(".0") for end in (interval.low, interval.high))
        return f" ({low} to {high})"
    return f" ± {interval.half:.{digits}f}"


def suite_interval(scores: Scores, tasks: Iterable[str]) -> Interval:
    """Computes the value of a configuration on `tasks`: mean over tasks of mean over seeds, interval over the seeds' averages.

    Only seeds with a score on every task take part, so that no average is silently one over fewer tasks; `n` says how many.
    """
    return interval(by_seed(scores, tasks).values())


def by_seed(scores: Scores, tasks: Iterable[str]) -> dict[int, float]:
    """Returns the mean over `tasks` of every seed, ascending, that has a score on each of them."""
    names, means = [*dict.fromkeys(tasks)], dict[int, float]()
    for seed in sorted({seed for _, seed in scores}):
        row = [scores.get((task, seed), math.nan) for task in names]
        if row and all(map(math.isfinite, row)):
            means[seed] = float(np.mean(row))
    return means


def compare(
    first: Scores,
    second: Scores,
    luck: tuple[float, float] | None = None,
    choice: float = 0.0,
    rounding: float = 0.0,
    pooled: tuple[float, float] | None = None,
) -> Comparison:
    """Compares the scores of the (task, seed) pairs that both have: mean difference, interval over the seeds (and examples),
    p-value over the seeds.

    A seed draws the order of the data on every task, so its scores on several tasks share its luck. The unit is therefore the
    seed, with its mean difference over the tasks; a seed that lacks one of them takes no part.

    Args:
        luck: how far the luck of the examples reaches that no seed shows (`luck.difference`), if known. Of one seed it is all
            of the interval.
        choice: the variance of the difference by the choices of tuned settings (`luck.luck_of_both`).
        rounding: the step of scores that were rounded: differences that it made equal spread as it does.
        pooled: the variance of the difference of one seed by all seeds of both sweeps, with its degrees of freedom
            (`probabilities.spread_between`). Differences that spread more than it allows have their own variance.
    """
    from scipy.special import fdtri, stdtr, stdtrit

    shared = sorted(key for key in first.keys() & second.keys() if math.isfinite(first[key]) and math.isfinite(second[key]))
    tasks = tuple(dict.fromkeys(task for task, _ in shared))
    differences = list(by_seed({key: first[key] - second[key] for key in shared}, tasks).values())
    gap, p, error, freedom = interval(differences), math.nan, 0.0, 1.0
    if gap.n > 1:
        variance, freedom = max(float(np.var(differences, ddof=1)), rounding**2 / 6), gap.n - 1.0
        if pooled is not None and variance <= pooled[0] * float(fdtri(freedom, pooled[1], CONTRADICTED)):
            variance, freedom = max(pooled[0], rounding**2 / 6), pooled[1]
        error = math.sqrt(variance / gap.n)
        p = float(2 * stdtr(freedom, -abs(gap.mean) / error)) if error else float(gap.mean == 0)
    if gap.n > 1 or (luck is not None and gap.n):
        fixed = [math.hypot(reach / 1.96, math.sqrt(choice)) for reach in luck or (0.0, 0.0)]  # by no seed
        total = error**2 + float(np.mean(np.square(fixed)))
        quantile = float(stdtrit(freedom * (total / error**2) ** 2, 0.975)) if error else 1.96  # Satterthwaite
        below, above = (max(quantile * math.hypot(error, part), rounding * (gap.n > 1)) for part in fixed)
        gap = Interval(gap.mean, gap.mean - below, gap.mean + above, gap.n)
    return Comparison(gap, p, tasks, luck, choice)


def sampling_reach(metrics: Mapping[str, float], examples: float, metric: str = "") -> tuple[float, float]:
    """Returns how far, in points, the 95 % interval over so many scored examples reaches below and above a score.

    A correlation of values has Fisher's interval; a score of classes Wilson's (1927) over the range of its metric, so that 39
    of 39 is not without error. A metric whose error is in `metrics`, such as a likelihood, has that.

    Args:
        metric: the name of the score in `craft.tasks.metrics.METRICS`, whose row says of what kind it is; a share if empty.
    """
    score, row = metrics["score"] / 100, METRICS.get(metric)
    if not examples >= (2 if row is not None and row.kind == "regression" else 1):
        return 0.0, 0.0
    if (error := metrics.get(f"{metric}_error")) is not None:
        return (1.96 * error,) * 2
    if row is not None and row.kind == "regression":
        most = min(0.999999, 1 - 6 / (examples * (examples**2 - 1)))  # so few rows show no correlation nearer to 1
        z, half = math.atanh(max(-most, min(most, score))), 1.96 / math.sqrt(max(1.0, examples - 3))
        ends = math.tanh(z - half), math.tanh(z + half)
    else:
        least = -1.0 if row is not None and row.signed else 0.0
        share, extra = max(0.0, min(1.0, (score - least) / (1 - least))), 1.96**2 / examples
        center, half = share + extra / 2, math.sqrt(extra * share * (1 - share) + extra**2 / 4)
        low, high = ((center + side * half) / (1 + extra) for side in (-1, 1))
        ends = least + (1 - least) * low, least + (1 - least) * high
    return 100 * max(0.0, score - ends[0]), 100 * max(0.0, ends[1] - score)

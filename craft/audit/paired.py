"""Two models' answers to the same rows: the difference of their scores, and the probability that it is small on new rows.

What is hard about a row cancels, so one training each is enough. New rows' luck is drawn by `craft.scoring.credits.draw_luck`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from craft.scoring.credits import block_credits, draw_luck
from craft.tasks.metrics import METRICS

SHARES = ("accuracy", "exact_match", "cloze")
"""Metrics that are the share of right rows, so that each row is a block."""
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """A model's answers to n rows: what its metric reads, each (n,)."""

    metric: str
    sides: tuple[NDArray[Any], ...]

    def __len__(self) -> int:
        return len(self.sides[0])

    def score(self, rows: NDArray[Any] | None = None) -> float:
        """Returns the score of all rows or of some, in points."""
        return 100 * METRICS[self.metric].compute(*(side if rows is None else side[rows] for side in self.sides))

    @cached_property
    def credits(self) -> Numbers:
        """What each block of rows contributed to the score (`craft.scoring.credits`)."""
        return block_credits(self.score, len(self))


@dataclass(frozen=True)
class Difference:
    """The score of the second less that of the first, in points, with its 95 % interval over rows.

    Attributes:
        error: standard deviation of what new rows would change.
        draws: of the difference on new rows, (k,).
    """

    mean: float
    low: float
    high: float
    error: float
    rows: int
    draws: Numbers

    def probability(self, within: float) -> float:
        """Returns the probability that the second loses at most so many points."""
        return float((self.draws >= -within).mean())

    def rows_to_decide(self, within: float, sure: float) -> int | None:
        """Returns how many rows would show that at most `within` points are lost, with the probability `sure` and the mean and
        scatter of these; None if no number would."""
        from scipy.special import ndtri

        room = within + self.mean
        if room <= 0:
            return None
        return math.ceil(self.rows * (float(ndtri(sure)) * self.error / room) ** 2)


def compare_answers(first: Answers, second: Answers) -> Difference:
    """Compares the answers of two models to the same rows."""
    mean, graded = second.score() - first.score(), len(first) if METRICS[first.metric].graded else math.inf
    if first.metric in SHARES:
        right = [answers.sides[0] == answers.sides[1] for answers in (first, second)]
        gaps, counts = np.unique(100.0 * right[1] - 100.0 * right[0], return_counts=True)
        draws = mean + draw_luck(gaps, graded, counts.tolist())
    else:
        draws = mean + draw_luck(second.credits - first.credits, graded)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Difference(mean, float(low), float(high), float(draws.std()), len(first), draws)

"""Two models' answers to the same rows: the difference of their scores, and the chance that it is small on new rows.

Both read the same rows, so what is hard about a row cancels, and one training each is enough. Where the score is a share of
right answers, the posterior of the shares better, worse and same is Dirichlet's, with half a row each before the data;
elsewhere the rows are drawn again (bootstrap).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from craft.tasks.metrics import METRICS

DRAWS, AGAIN = 20_000, 1_000
SHARES = ("accuracy", "exact_match")
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

    def chance(self, within: float) -> float:
        """Returns the chance that the second loses at most so many points."""
        return float((self.draws >= -within).mean())

    def rows_to_decide(self, within: float, sure: float) -> int | None:
        """Returns how many rows would most likely show with that chance that at most so many points are lost; None if none
        would."""
        from scipy.special import ndtri

        room = within + self.mean
        if room <= 0:
            return None
        return math.ceil(self.rows * (float(ndtri(sure)) * self.error / room) ** 2)


def compare_answers(first: Answers, second: Answers) -> Difference:
    """Compares the answers of two models to the same rows."""
    random = np.random.default_rng(0)
    mean, rows = second.score() - first.score(), len(first)
    if first.metric in SHARES:
        right = [answers.sides[0] == answers.sides[1] for answers in (first, second)]
        better, worse = int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum())
        shares = random.dirichlet([better + 0.5, worse + 0.5, rows - better - worse + 0.5], DRAWS)
        draws = 100 * (shares[:, 0] - shares[:, 1])
    else:
        drawn: Sequence[NDArray[Any]] = [random.integers(rows, size=rows) for _ in range(AGAIN)]
        draws = np.array([second.score(some) - first.score(some) for some in drawn])
    low, high = np.quantile(draws, [0.025, 0.975])
    return Difference(mean, float(low), float(high), float(draws.std()), rows, draws)

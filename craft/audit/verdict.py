"""`Answers` of two models to the same rows, their `Difference`; and `Audit`: what came of an audit, and what it says.

Both models read the same rows, so what is hard about a row cancels, and one training each is enough. What new rows would change
is drawn as where two configurations of sweeps are compared (`craft.scoring.predictions.draw_luck`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from craft.audit.changes import share_layers
from craft.audit.folder import Folder
from craft.scoring.predictions import Numbers, block_credits, draw_luck
from craft.tasks.metrics import METRICS, accuracy
from craft.words import list_some, points


@dataclass(frozen=True)
class Answers:
    """A model's answers to n rows: what its metric reads, each (n,)."""

    metric: str
    sides: tuple[NDArray[Any], ...]

    def __len__(self) -> int:
        return len(self.sides[0])

    def score(self, rows: NDArray[Any] | None = None) -> float:
        return 100 * METRICS[self.metric].compute(*(side if rows is None else side[rows] for side in self.sides))

    @cached_property
    def credits(self) -> Numbers:
        """What each block of rows contributed to the score (`craft.scoring.predictions`)."""
        return block_credits(self.score, len(self))


@dataclass(frozen=True)
class Difference:
    """The score of the second less that of the first, in points, with its 95 % interval over rows.

    `draws` (k,) are of the difference on new rows, and `error` is their standard deviation.
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
    mean, metric = second.score() - first.score(), METRICS[first.metric]
    graded = len(first) if metric.graded else math.inf
    if metric.compute is accuracy:  # the share of right rows, so that each row is a block
        right = [answers.sides[0] == answers.sides[1] for answers in (first, second)]
        gaps, counts = np.unique(100.0 * right[1] - 100.0 * right[0], return_counts=True)
        draws = mean + draw_luck(gaps, graded, counts.tolist())
    else:
        draws = mean + draw_luck(second.credits - first.credits, graded)
    low, high = np.quantile(draws, [0.025, 0.975])
    return Difference(mean, float(low), float(high), float(draws.std()), len(first), draws)


SERVED = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's --max-lora-rank."""


def served_rank(rank: int) -> int:
    return next((served for served in SERVED if served >= rank), rank)


@dataclass(frozen=True)
class Size:
    """The adapter at one size. `parameters` are those of the LoRA without a task head; `ranks` by module."""

    parameters: int
    ranks: Mapping[str, int]
    score: float
    difference: Difference
    folder: Path | None = None


@dataclass(frozen=True)
class Audit:
    """What came of an audit.

    Attributes:
        score, without: with the adapter, and without its change of weights (the base; its head as it was trained).
        sizes: from large to small. `enough` is the smallest whose `probability` is at least `sure`, if the adapter `helps`.
        shares: each module's share of the change.
        form: in which form pairs are read, if the audit chose it.
        seen: the rows whose texts the adapter was trained on.
        helps: whether the rows show that the whole adapter's change helps by more than `within`; without it no size is enough.
    """

    folder: Folder
    metric: str
    rows: int
    parameters: int
    score: float
    without: float
    sizes: tuple[Size, ...]
    within: float
    sure: float
    trained: bool
    shares: Mapping[str, float]
    warnings: tuple[str, ...]
    form: str | None = None
    helps: bool = True
    seen: int = 0

    def probability(self, size: Size) -> float:
        """Returns the least probability that neither this size nor a larger one loses more than `within` points (Bonferroni).

        The smallest of several sizes that pass is a chosen one: its own probability alone would call it enough too often.
        """
        larger = [tried.difference for tried in self.sizes if tried.parameters >= size.parameters]
        return max(0.0, 1 - sum(1 - difference.probability(self.within) for difference in larger))

    @property
    def enough(self) -> Size | None:
        good = [size for size in self.sizes if self.helps and self.probability(size) >= self.sure]
        return min(good, key=lambda size: size.parameters, default=None)

    @property
    def verdict(self) -> str:
        many = f"{self.seen:,} of these {self.rows:,} rows {'was' if self.seen == 1 else 'were'} in its training"
        return self._answer + (f" In doubt: {many}, and may be learnt by heart." if self.seen else "")

    @property
    def _answer(self) -> str:
        if not self.helps:
            lost = points(float(f"{self.within:.3g}"))
            return (
                f"No verdict: these {self.rows:,} rows do not show that the adapter's change helps by more than the "
                f"{lost} that may be lost (score {self.score:.1f}, without its change {self.without:.1f}): "
                "any size would seem enough. Give more held-out rows, or train the adapter longer."
            )
        size = self.enough
        if size is not None:
            gap = size.difference
            ranks = sorted(rank for rank in size.ranks.values() if rank)
            method = "CRAFT" if self.folder.peft_type == "CRAFT" else "a LoRA"
            form = f"{method} of rank {ranks[0]}" if ranks[0] == ranks[-1] else f"{method} of ranks {ranks[0]} to {ranks[-1]}"
            if unchanged := [name for name, rank in size.ranks.items() if not rank]:
                form += f", and of rank 0 in {list_some(unchanged, 3)}"
            return (
                f"{size.parameters:,} of its {self.parameters:,} parameters are enough: {gap.mean:+.1f} points "
                f"({gap.low:+.1f} to {gap.high:+.1f}), P(within {self.within:.3g}) {self.probability(size):.2f}; {form}."
            )
        if not self.sizes:
            return f"Half of its {self.parameters:,} parameters are too few for rank 1. Keep the adapter as it is."
        largest = self.sizes[0]  # a smaller one is enough only if this one is
        gap, count = largest.difference, largest.difference.rows_to_decide(self.within, self.sure)
        if count is None:
            advice = "" if self.trained else ", or give --train: cuts that are trained on lose less"
            loss = f"{largest.parameters:,} parameters lose {-gap.mean:.1f} points on these rows, more than {self.within:.3g}"
            return f"No size is enough: {loss}. Keep the adapter as it is{advice}."
        need = max(count, self.rows + 1)
        return (
            f"Not decided: with {largest.parameters:,} of its {self.parameters:,} parameters the score changes by "
            f"{gap.mean:+.1f} points ({gap.low:+.1f} to {gap.high:+.1f}). About {need:,} held-out rows may show whether "
            f"more than {self.within:.3g} would be lost; there are {self.rows:,}."
        )

    def picture(self, rows: int) -> Iterator[str]:
        """Yields a line for each of the layers with the largest shares of the change, with a bar."""
        for layer, share in sorted(share_layers(self.shares).items(), key=lambda item: -item[1])[:rows]:
            yield f"  {layer:<10} {100 * share:3.0f} % of the change  {'#' * round(40 * share)}"

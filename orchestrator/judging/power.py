"""Power: the probability that a sweep will settle a difference between two sizes, before it runs.

    e² = 2 ((residual + drawn / R) / n + shared / R)    variance of a difference: two means over n seeds, scored on R rows

A difference is settled if the sweep's own probability that the better size is better reaches `enough.sure`. That is Student's t
of difference / e. As e is estimated from the seeds, the noncentral t says how often it is reached. Calling two equal sizes
equally good within some points is as hard as distinguishing two sizes that differ by so many.

The trend over sizes, to which a sweep moves its scores, is left out: it helps where larger sizes are better. So is the luck of
tuning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.judging.chances import evidence
from orchestrator.judging.luck import luck
from orchestrator.results.summary import Summary
from orchestrator.sweepfile.objectives import Objectives

ROW, DRAWN, SHARED = 43.0, 0.25, 0.17
"""The standard deviation of a row that is right or wrong, in points, where three of four are right; the shares of its variance
that are drawn again with each seed, and that all seeds of a configuration share (docs/measurements/statistics.md)."""
REST = 0.6
"""The standard deviation between seeds on infinitely many rows."""


@dataclass(frozen=True)
class Spread:
    """The variances of a configuration's score with one seed, in squared points, without what all configurations share.

    Attributes:
        residual: what another seed changes on infinitely many rows.
        drawn: what one scored row changes that is drawn again with each seed.
        shared: what one scored row changes for all seeds.
        source: where this is known from.
    """

    residual: float
    drawn: float
    shared: float
    source: str


@dataclass(frozen=True)
class Size:
    """The size of a sweep: seeds, scored rows as `effective_rows` counts them, configurations."""

    seeds: int
    rows: float
    configurations: int


def assume_spread(tasks: int = 1) -> Spread:
    """Returns the spread where nothing is known: that of the trainings recorded in docs/measurements/records."""
    return Spread(
        REST**2 / tasks, DRAWN * ROW**2, SHARED * ROW**2, "assumed: seeds and rows spread as on GLUE at scores near 75"
    )


def measure_spread(complete: Sequence[Summary], objectives: Objectives, rows: float, source: str) -> Spread | None:
    """Returns the mean spread of the complete configurations of a sweep; None where no seed differs.

    Args:
        rows: those on which each was scored.
    """
    observed = evidence(complete, objectives)
    if observed is None or not observed.errors.any():
        return None
    shared, every = luck(complete) or 0.0, luck(complete, by_all=True) or 0.0
    of_seed = float((observed.errors * observed.seeds).mean())
    drawn = min(of_seed, max(0.0, every - shared) * float(observed.seeds.mean()))
    return Spread(of_seed - drawn, drawn * rows, float(observed.luck.mean()) * rows, source)


def effective_rows(counts: Sequence[float]) -> float:
    """Returns the rows of one task that leave as much error as the mean over tasks with so many rows each."""
    each = sum(1 / count for count in counts)
    return len(counts) ** 2 / each if each else math.inf


def settles(difference: float, spread: Spread, size: Size, sure: float) -> float:
    """Returns the probability that a true difference between two sizes of a sweep is settled with the chance `sure`."""
    from scipy.special import nctdtr, stdtrit

    of_seeds = (spread.residual + spread.drawn / size.rows) / size.seeds
    variance = of_seeds + spread.shared / size.rows
    # Variances are moderated over all configurations. What a seed does to three or more of them is known, too.
    freedom = max(2, size.configurations - 1) * (size.seeds - 1) * (variance / max(of_seeds, variance / 10)) ** 2
    return 1 - float(nctdtr(freedom, difference / math.sqrt(2 * variance), stdtrit(freedom, sure)))

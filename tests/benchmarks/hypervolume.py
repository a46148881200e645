"""Hypervolume, the measure of the benchmarks of search, by pymoo."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from pymoo.indicators.hv import HV

from orchestrator.results.pareto import Points


def hypervolume(points: ArrayLike, directions: Sequence[str], reference: ArrayLike) -> float:
    """The volume that `points` (n, m) dominate, bounded by `reference` (m,), both in the objectives' own units."""
    signs = _signs(directions)
    costs = np.asarray(points, dtype=float).reshape(-1, len(directions)) * signs
    costs = costs[np.isfinite(costs).all(axis=1)]
    return float(HV(ref_point=np.asarray(reference, dtype=float) * signs)(costs)) if len(costs) else 0.0


def reference_point(points: ArrayLike, directions: Sequence[str]) -> Points:
    """The worst value of each objective, moved a tenth of the range further, so that extreme points count too."""
    signs = _signs(directions)
    costs = np.asarray(points, dtype=float) * signs
    costs = costs[np.isfinite(costs).all(axis=1)]
    spread = np.ptp(costs, axis=0)
    return signs * (costs.max(axis=0) + 0.1 * np.where(spread > 0, spread, 1.0))


def _signs(directions: Sequence[str]) -> Points:
    return np.array([-1.0 if direction == "maximize" else 1.0 for direction in directions])

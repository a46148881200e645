"""The geometry of several objectives: dominance, the front, the knee. numpy only, no knowledge of runs.

Points are rows of an `(n, m)` array with one column for each objective; `directions` says for each column whether it is
maximized or minimized. A point with NaN or an infinity in any objective takes no part: it neither dominates nor lies on the
front. Equal points do not dominate each other, so duplicates on the front are all on it.
Pass parameters through `log_axes` to see them on a logarithmic axis: that changes the knee, but not dominance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.sweepfile.settings import Direction

Points = NDArray[np.float64]
Mask = NDArray[np.bool_]


def front(points: ArrayLike, directions: Sequence[Direction]) -> Mask:
    """Returns which points no other point dominates.

    A point dominates another when it is no worse in every objective and better in one.

    Raises:
        ValueError: the shapes do not agree, or a direction is unknown.
    """
    costs = _costs(points, directions)
    mask = np.zeros(len(costs), dtype=bool)
    finite = np.flatnonzero(np.isfinite(costs).all(axis=1))
    if not finite.size:
        return mask
    unique, where = np.unique(costs[finite], axis=0, return_inverse=True)
    mask[finite] = _sorted_front(unique)[where.reshape(-1)]
    return mask


def _sorted_front(costs: Points) -> Mask:
    """Returns the front of different rows in lexicographic order, in which only an earlier row can dominate a later one."""
    if costs.shape[1] == 2:
        # The first costs ascend, so a row is on the front when its second cost is below all earlier ones: one pass over all.
        below = np.minimum.accumulate(costs[:, 1])
        return np.append(True, costs[1:, 1] < below[:-1])
    mask = np.zeros(len(costs), dtype=bool)
    for row, candidate in enumerate(costs):
        mask[row] = not (costs[:row][mask[:row]] <= candidate).all(axis=1).any()
    return mask


def knee(points: ArrayLike, directions: Sequence[Direction]) -> int | None:
    """Returns the index of the knee: the front point that is farthest beyond the straight line between the front's two ends.

    Both objectives are scaled so that the front spans 0 to 1 (pass parameters through `log_axes` first); the line joins the
    front's best point in one objective to its best in the other. With fewer than three distinct points on the front, or none
    beyond the line, the answer is the end that is best in the first objective. Ties go to the lower index.

    Returns:
        An index into `points`, or None where no point is finite.
    """
    costs = _costs(points, directions)
    if costs.shape[1] != 2:
        raise ValueError(f"the knee is defined for two objectives, got {costs.shape[1]}")
    members = np.flatnonzero(front(points, directions))
    if not members.size:
        return None
    members = members[np.argsort(costs[members, 0], kind="stable")]
    spans = costs[members]
    spread = np.ptp(spans, axis=0)
    if (spread == 0).any():
        return int(members[0])
    unit = (spans - spans.min(axis=0)) / spread
    # The ends lie at (0, 1) and (1, 0): beyond the line between them is where the scaled costs add up to less than 1.
    gain = 1.0 - unit.sum(axis=1)
    return int(members[np.argmax(gain)]) if gain.max() > 1e-12 else int(members[0])


def log_axes(points: ArrayLike, log: Sequence[bool]) -> Points:
    """Returns `points` with log10 of the columns marked in `log`; a value there that is not positive becomes NaN."""
    values = np.array(points, dtype=float, ndmin=2)
    for column in np.flatnonzero(log):
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log10(values[:, column])
        values[:, column] = np.where(np.isfinite(logs), logs, np.nan)
    return values


def _costs(points: ArrayLike, directions: Sequence[Direction]) -> Points:
    values = np.asarray(points, dtype=float)
    if values.size == 0:
        values = values.reshape(0, len(directions))
    if values.ndim != 2 or values.shape[1] != len(directions):
        raise ValueError(f"points have shape {values.shape}; {len(directions)} directions need (n, {len(directions)})")
    unknown = [direction for direction in directions if direction not in ("maximize", "minimize")]
    if unknown:
        raise ValueError(f"unknown direction {unknown[0]!r}; an objective is to be 'maximize' or 'minimize'")
    return values * [-1.0 if direction == "maximize" else 1.0 for direction in directions]

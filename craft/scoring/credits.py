"""Credits: what each block of scored rows contributed to a score, in points. They tell how far a score is luck with the rows.

    credit of block b = B s - (B - 1) s(without b)          pseudo-values of the jackknife (Tukey 1958); their mean is about s

Block b holds rows b, b + B, b + 2 B, ...: the same rows in all trials of a sweep, so that two adapters' credits are paired. A
record has them in one fact of some 300 letters, whatever the metric and the number of rows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

CREDITS = "credits"
"""The name of the fact."""
BLOCKS = 200


def credits_of(score: Callable[[NDArray[np.bool_]], float], rows: int) -> dict[str, str]:
    """Computes the fact CREDITS; returns nothing for fewer than ten rows.

    Args:
        score: the score, in points, of the rows that a mask `(rows,)` leaves.
    """
    blocks = min(rows, BLOCKS)
    if rows < 10:
        return {}
    block = np.arange(rows) % blocks
    left_out = np.array([score(block != number) for number in range(blocks)])
    values = (blocks - 1) * (left_out.mean() - left_out)
    scale = float(np.abs(values).max()) / 127 or 1.0
    return {CREDITS: f"{scale:.6g} {base64.b64encode(np.round(values / scale).astype(np.int8).tobytes()).decode()}"}


def read_credits(fact: str) -> NDArray[np.float64]:
    """Reads the fact: each block's credit less their mean, `(blocks,)`."""
    scale, _, letters = fact.partition(" ")
    return float(scale) * np.frombuffer(base64.b64decode(letters), dtype=np.int8).astype(float)

"""Credits: what each block of scored rows contributed to a score, in points. They tell how far a score is luck with the rows.

    credit of block b = B s - (B - 1) s(without b)          pseudo-values of the jackknife (Tukey 1958); their mean is about s

`draw_luck` says what new rows would change about the difference of two models: of an audit and of `compare`.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
CREDITS, SEARCH_CREDITS = "credits", "search_credits"
"""The names of the facts: of the reported rows, and of the search split's."""
BLOCKS, DRAWS = 200, 10_000


def credits_of(score: Callable[[NDArray[np.bool_]], float], rows: int, name: str = CREDITS) -> dict[str, str]:
    """Computes the fact `name` from the score, in points, of the rows that a mask leaves; nothing for fewer than ten rows."""
    if rows < 10:
        return {}
    values = block_credits(score, rows)
    scale = float(np.abs(values).max()) / 127 or 1.0
    return {name: f"{scale:.6g} {base64.b64encode(np.round(values / scale).astype(np.int8).tobytes()).decode()}"}


def block_credits(score: Callable[[NDArray[np.bool_]], float], rows: int) -> Numbers:
    """Computes each block's credit less their mean, `(blocks,)`, from the score of the rows that a mask leaves."""
    blocks = min(rows, BLOCKS)
    block = np.arange(rows) % blocks
    left_out = np.array([score(block != number) for number in range(blocks)])
    return (blocks - 1) * (left_out.mean() - left_out)


def read_credits(fact: str) -> Numbers:
    """Reads the fact: each block's credit less their mean, `(blocks,)`."""
    scale, _, letters = fact.partition(" ")
    return float(scale) * np.frombuffer(base64.b64decode(letters), dtype=np.int8).astype(float)


def draw_luck(gaps: Numbers, graded: float, counts: Sequence[int] = ()) -> Numbers:
    """Returns draws of what new rows would change about the difference of two models, in points, `(DRAWS,)`: the blocks are
    drawn again with weights (the Bayesian bootstrap, Rubin 1981).

    Before the data one row differs, half of it for each side. So equal answers to n rows do not show that no row differs.

    Args:
        gaps: the credits of one model less those of the other, `(blocks,)`; `counts` of each, or one.
        graded: the number of rows, each of which is right or wrong; infinite where rows have values.
    """
    blocks = tuple(counts) or (1,) * len(gaps)
    row = 100 * sum(blocks) / graded
    drawn: Numbers = _weights(blocks) @ np.array([*(gaps - np.average(gaps, weights=blocks)), row, -row])
    return drawn


@functools.lru_cache(maxsize=4)
def _weights(counts: tuple[int, ...]) -> Numbers:
    return np.random.default_rng(0).dirichlet([*counts, 0.5, 0.5], DRAWS)

"""How much of a stack the ranks keep, and how far initialization and dropout move it: the numbers to choose ranks by.

A share of energy is a share of squared norm, ||R||^2 / ||W||^2. The factors are orthonormal, so ||R|| = ||G||, and one core
gives the share of every rank triple. The report compares it with the share that the same ranks keep of Gaussian noise of the
same shape, which has no structure. All formulas are exact in expectation unless they say otherwise.

`python -m craft.tucker report MODEL` prints them (`craft.tucker`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from craft.factors.hosvd import Ranks, TuckerFactors, hosvd

LEVELS = (0.5, 0.9, 0.99)
_NOISE_ENTRIES = 2**20


@dataclass(frozen=True)
class RankEnergy:
    """One rank triple of one stack.

    Attributes:
        ranks: (r1, r2, r3).
        parameters: r1^2 + r2^2 + r3^2, what CRAFT trains for this stack.
        kept: share of ||W||^2 that R holds.
        noise: the same share for Gaussian noise, see `noise_share`.
        bound: Theorem 1's bound on ||W - R||^2, as a share of ||W||^2; from 1 on it says nothing.
        initial: expected ||T - R|| at initialization, as a share of ||R||.
        initial_bound: Theorem 3's bound on the same.
        dropout: expected ||T - R|| at initialization under dropout on J, as a share of ||R||.
    """

    ranks: Ranks
    parameters: int
    kept: float
    noise: float
    bound: float
    initial: float
    initial_bound: float
    dropout: float


@dataclass(frozen=True)
class ModeDecay:
    """How fast one mode's spectrum falls: `needed[i]` columns hold `LEVELS[i]` of the energy; of Gaussian noise, `noise[i]` do.

    `cumulated` is the share that the first 1, 2, ... columns hold, `cumulated_noise` the same for noise.
    """

    mode: int
    size: int
    cumulated: tuple[float, ...]
    cumulated_noise: tuple[float, ...]

    @property
    def needed(self) -> tuple[int, ...]:
        return tuple(_first_at(self.cumulated, level) for level in LEVELS)

    @property
    def noise(self) -> tuple[int, ...]:
        return tuple(_first_at(self.cumulated_noise, level) for level in LEVELS)


@dataclass(frozen=True)
class StackEnergy:
    """One projection's report: `shape` is (L, d_out, d_in), `norm` is ||W||."""

    name: str
    shape: tuple[int, int, int]
    norm: float
    rows: tuple[RankEnergy, ...]
    modes: tuple[ModeDecay, ModeDecay, ModeDecay]


def stack_energy(
    name: str, factors: TuckerFactors, triples: Sequence[Ranks], *, epsilon: float = 1e-3, dropout: float = 0.005
) -> StackEnergy:
    """The report of one stack from its decomposition at the largest of `triples` or above.

    Raises:
        ValueError: a triple exceeds the ranks of `factors`.
    """
    total = factors.squared_norm
    rows = []
    for ranks in triples:
        cut = factors.slice(ranks)
        rows.append(
            RankEnergy(
                ranks=cut.ranks,
                parameters=sum(rank * rank for rank in cut.ranks),
                kept=float(cut.core.double().square().sum()) / total if total else 1.0,
                noise=noise_share(factors.shape, cut.ranks),
                bound=cut.error_bound() / total if total else 0.0,
                initial=perturbation(cut.ranks, epsilon=epsilon),
                initial_bound=initialization_bound(cut.ranks, epsilon=epsilon),
                dropout=perturbation(cut.ranks, epsilon=epsilon, dropout=dropout),
            )
        )
    modes = [_decay(mode, factors) for mode in range(3)]
    return StackEnergy(name, factors.shape, math.sqrt(total), tuple(rows), (modes[0], modes[1], modes[2]))


def perturbation(ranks: Sequence[int], *, epsilon: float = 1e-3, dropout: float = 0.0) -> float:
    """sqrt(E ||T - R||^2) / ||R|| at initialization: J = I + epsilon E, E_ij ~ N(0, 1), under inverted dropout on J.

    E[J~^T J~] = (1 + epsilon^2 r_n) I / (1 - p) and E[J~] = I, independently for the three modes, hence exactly
    E ||T - R||^2 / ||R||^2 = prod_n (1 + epsilon^2 r_n) / (1 - p) - 1, whatever the core.
    """
    return math.sqrt(math.prod((1 + epsilon**2 * rank) / (1 - dropout) for rank in ranks) - 1)


def initialization_bound(ranks: Sequence[int], *, epsilon: float = 1e-3, delta: float = 1e-3) -> float:
    """Theorem 3's C in ||T_init - R|| <= C ||R||, with probability at least 1 - 8 delta (paper, appendix).

    The paper gives 0.18 at r = 128 and 0.29 at r = 360. Inf where the theorem's condition fails.
    """
    step = epsilon * (2 * math.sqrt(max(ranks)) + math.sqrt(2 * math.log(1 / delta)))
    return 7 * step if step < 1 else math.inf


def noise_share(shape: Sequence[int], ranks: Sequence[int]) -> float:
    """Share of squared norm that HOSVD at `ranks` keeps of a Gaussian tensor of `shape`, from one seeded draw.

    For a large shape the draw has the same number of layers and fewer features, and the ranks shrink in the same proportion
    (linear interpolation between whole ranks). As features grow, shares depend on the proportions alone; at a hundred
    features they are already right to a few thousandths.
    """
    layers, outputs, inputs = shape
    table = _noise_table(layers, outputs, inputs)
    across = (ranks[1] * (table.shape[1] - 1) / outputs, ranks[2] * (table.shape[2] - 1) / inputs)
    plane = table[ranks[0]]
    rows = [np.interp(across[1], np.arange(table.shape[2]), plane[row]) for row in _around(across[0])]
    return float(rows[0] + (across[0] % 1) * (rows[1] - rows[0]))


@lru_cache(maxsize=8)
def _noise_table(layers: int, outputs: int, inputs: int) -> np.ndarray:
    """Shares that ranks 0, 1, ... of the three modes keep of a seeded Gaussian tensor, its features shrunk to a cheap size."""
    shrink = min(1.0, math.sqrt(_NOISE_ENTRIES / (layers * outputs * inputs)))
    small = (layers, max(1, round(outputs * shrink)), max(1, round(inputs * shrink)))
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal(small))
    core = hosvd(noise, small, dtype=torch.float64).core.numpy()
    table = np.zeros([size + 1 for size in small])
    table[1:, 1:, 1:] = np.square(core, out=core).cumsum(0).cumsum(1).cumsum(2)
    return table / table[-1, -1, -1]


def _around(position: float) -> tuple[int, int]:
    return math.floor(position), math.ceil(position)


def _noise_cumulated(shape: Sequence[int], mode: int) -> np.ndarray:
    """Share of energy in the leading 1, 2, ... columns of one mode of a Gaussian tensor, (shape[mode],).

    By the Marchenko-Pastur law, exact as features grow. With aspect c, eigenvalues 1 + c + 2 sqrt(c) cos(t) have density
    2 sin(t)^2 / (pi lambda) in t, so that the energy above angle t is (t - sin t cos t) / pi, and only the count of columns
    above it is summed numerically.
    """
    size, others = shape[mode], math.prod(shape) // shape[mode]
    nonzero = min(size, others)
    aspect = nonzero / max(size, others)
    angles = np.linspace(0, np.pi, 20001)
    eigenvalues = np.maximum(1 + aspect + 2 * math.sqrt(aspect) * np.cos(angles), np.finfo(float).tiny)
    density = 2 * np.sin(angles) ** 2 / (np.pi * eigenvalues)
    count = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    energy = (angles - np.sin(angles) * np.cos(angles)) / np.pi
    columns = np.minimum(np.arange(1, size + 1) / nonzero, 1.0)
    return np.interp(columns, count / count[-1], energy)


def _decay(mode: int, factors: TuckerFactors) -> ModeDecay:
    squares = factors.singular_values[mode].square().numpy()
    total = squares.sum()
    cumulated = np.cumsum(squares) / total if total else np.ones_like(squares)
    noise = _noise_cumulated(factors.shape, mode)
    return ModeDecay(mode + 1, factors.shape[mode], tuple(cumulated.tolist()), tuple(noise.tolist()))


def _first_at(cumulated: Sequence[float], level: float) -> int:
    return min(int(np.searchsorted(cumulated, level - 1e-12)) + 1, len(cumulated))

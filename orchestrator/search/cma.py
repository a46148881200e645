"""CMA-ES as an Optuna sampler without state: each suggestion rebuilds the strategy from the results in the study.

    results of the study, in order --tell, a generation at a time--> strategy --ask, by the suggestion's own seed--> point

Optuna's own sampler for CMA-ES pickles its optimizer into the study's file, so anyone who can write that file could run code
here. This sampler reads nothing but the study's JSON, and a resumed study makes the suggestions that it would have made. A
generation is told to the strategy when all of its results are known; no suggestion waits for one that is incomplete. There is
one objective, and every dimension is a range or a choice whose values have an order.

Source: Hansen, The CMA Evolution Strategy: A Tutorial (arXiv 1604.00772); the `cmaes` package.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

STEP = 1 / 6
"""The first step, as a share of every dimension: six steps span it."""


class CmaSampler(BaseSampler):
    """Suggests by CMA-ES in the unit cube of a study's numeric dimensions; at random while the study knows no dimension."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        space = IntersectionSearchSpace().calculate(study)
        return {name: one for name, one in space.items() if not one.single() and _is_number(one)}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        if not search_space:
            return {}
        from cmaes import CMA

        names = sorted(search_space)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            strategy = CMA(np.full(len(names), 0.5), STEP, np.tile([0.0, 1.0], (len(names), 1)), seed=self._seed)
            told = _told(study, names, search_space)
            for start in range(0, len(told) - strategy.population_size + 1, strategy.population_size):
                strategy.tell(told[start : start + strategy.population_size])
            found = strategy.ask()
        return {name: from_unit(search_space[name], share) for name, share in zip(names, found, strict=True)}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def _told(study: Study, names: Sequence[str], space: Mapping[str, BaseDistribution]) -> list[tuple[np.ndarray, float]]:
    """Points with the value to minimize, in the study's order; points that break a constraint are worse than all others."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    sign = 1.0 if study.direction == StudyDirection.MINIMIZE else -1.0
    rows = []
    for trial in done:
        if all(name in trial.params for name in names):
            excess = sum(max(0.0, one) for one in trial.constraints.values())
            point = np.array([to_unit(space[name], trial.params[name]) for name in names])
            rows.append((point, sign * float(trial.values[0]), excess))
    worst = max((value for _, value, excess in rows if not excess), default=0.0)
    return [(point, value if not excess else worst + 1.0 + excess) for point, value, excess in rows]


def to_unit(distribution: BaseDistribution, value: float) -> float:
    """Where a value lies in its dimension, from 0 to 1."""
    low, high, log = _ends(distribution)
    return (_log(value, log) - low) / (high - low)


def from_unit(distribution: BaseDistribution, share: float) -> float | int:
    """The value at a share of its dimension."""
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high, log = _ends(distribution)
    moved = low + min(max(float(share), 0.0), 1.0) * (high - low)
    value = math.exp(moved) if log else moved
    if isinstance(distribution, IntDistribution):
        return min(max(round(value), distribution.low), distribution.high)
    return min(max(value, distribution.low), distribution.high)


def _ends(distribution: BaseDistribution) -> tuple[float, float, bool]:
    # Whole numbers get half a step of room on both sides, so that both ends are as likely as the numbers between.
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    room = 0.5 if isinstance(distribution, IntDistribution) else 0.0
    log = distribution.log
    return _log(distribution.low - room, log), _log(distribution.high + room, log), log


def _log(value: float, log: bool) -> float:
    return math.log(value) if log else float(value)


def _is_number(distribution: BaseDistribution) -> bool:
    return isinstance(distribution, FloatDistribution | IntDistribution)

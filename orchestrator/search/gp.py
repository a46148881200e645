"""Gaussian processes over method blocks: the next configuration is the one whose expected gain for the front is largest.

    results --a process for each objective--> mean and deviation of every candidate --expected hypervolume gained--> the best

A process sees all blocks at once: the block, and the dimensions by name, so that the results of one method also say something
about the learning rate of another. Numbers whose candidates span a decade are seen on a log axis; so are objectives such as
parameter counts.

Candidates are all points of a small space. In a large space they are random points, and the points of the front changed in one
dimension. A point that the study has asked for is no candidate. Objectives known before training (counts) are counted for the
points of a small space, and the planner remembers them; in a large space a process predicts them like the score. A running
point has its expected value until its result is known. Constraints have processes of their own: a candidate's gain is
multiplied by its chance to meet them, and results that break a constraint are used for nothing else. The first suggestions are
spread evenly (Sobol).

Sources: Rasmussen and Williams 2006, Gaussian Processes for Machine Learning (the processes are scikit-learn's); Emmerich,
Giannakoglou and Naujoks 2006 (expected hypervolume improvement); Ginsbourger et al. 2010 (running points at their expected
value).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FixedTrial, FrozenTrial, TrialState
from scipy.stats import norm, qmc

from orchestrator.results import pareto
from orchestrator.search.dimensions import Encoding
from orchestrator.search.tpe import Memory
from orchestrator.sweepfile.space.dimensions import Block, Choice, Point, grid, neighbours, sample

FIRST = 8
"""Suggestions that are spread evenly before the first that is computed."""
CANDIDATES = 300
"""A larger space is searched through this many points at each suggestion."""
DRAWS = 32
"""A gain is the mean over this many joint draws of the objectives."""


Known = Callable[[Point], Mapping[str, float] | None]
"""Gives a point's objectives that are known before training, by name; None if the point cannot be built."""


class BlockGp(BaseSampler):
    """Suggests a point of `blocks` by expected hypervolume improvement."""

    def __init__(self, blocks: Sequence[Block], memory: Memory, seed: int, first: int, known: Known) -> None:
        """
        Args:
            seed: seed of this suggestion.
            first: seed of the Sobol sequence, the same for all suggestions.
            known: gives what is known of a point before training.
        """
        self._blocks, self._memory, self._seed, self._first = tuple(blocks), memory, seed, first
        self._few = not any(block.ranges for block in blocks) and sum(block.size for block in blocks) <= CANDIDATES
        self._known_of = known
        self._encoding = Encoding(blocks)
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        choice, dimensions = self._encoding.distributions
        return choice | {name: one for block in dimensions.values() for name, one in block.items()}

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        asked = [one for one in self._memory.of(study) if one.number != trial.number and one.params]
        done = [one for one in asked if one.state == TrialState.COMPLETE]
        if len(asked) < FIRST or len(done) < FIRST // 2:
            return self._known(self._encoding.evenly(trial.number, self._first), search_space)
        candidates = self._candidates(study, asked)
        if not candidates:
            return {}
        chosen = candidates[int(np.argmax(self._gains(study, asked, done, candidates)))]
        return self._known(self._encoding.parameters(chosen), search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _known(self, parameters: Mapping[str, Any], search_space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
        return {name: value for name, value in parameters.items() if name in search_space}

    def _point(self, trial: FrozenTrial) -> Point:
        return self._encoding.suggest(FixedTrial(trial.params))

    def _candidates(self, study: Study, asked: Sequence[FrozenTrial]) -> list[Point]:
        points: Iterable[Point]
        if self._few:
            points = (one for one in grid(self._blocks) if self._known_of(one) is not None)
        else:
            near = (one for trial in study.best_trials for one in neighbours(self._blocks, self._point(trial), self._seed))
            points = itertools.islice(itertools.chain(near, sample(self._blocks, self._seed)), CANDIDATES)
        seen = {repr(self._point(trial)) for trial in asked}
        return list({text: one for one in points if (text := repr(one)) not in seen}.values())

    def _counted(self, points: Sequence[Point], objective: str) -> np.ndarray | None:
        """The points' values of an objective that is known before training; None if a process must predict them."""
        if not self._few:
            return None
        values = [(self._known_of(point) or {}).get(objective) for point in points]
        return None if any(value is None for value in values) else np.array(values, dtype=float)

    def _gains(
        self, study: Study, asked: Sequence[FrozenTrial], done: Sequence[FrozenTrial], candidates: Sequence[Point]
    ) -> np.ndarray:
        """Expected gain of the hypervolume, for every candidate."""
        features = _Features(self._blocks)
        signs = np.array([1.0 if one == StudyDirection.MINIMIZE else -1.0 for one in study.directions])
        at = features(candidates)
        may = np.ones(len(candidates))
        for name in {name for trial in done for name in trial.constraints}:
            told = [trial for trial in done if name in trial.constraints]
            excess = _Process(features(map(self._point, told)), np.array([trial.constraints[name] for trial in told]))
            mean, deviation = excess(at)
            may *= norm.cdf(-mean / np.maximum(deviation, 1e-9))
        allowed = [trial for trial in done if not any(excess > 0 for excess in trial.constraints.values())]
        running = [self._point(trial) for trial in asked if trial.state == TrialState.RUNNING]
        if len(allowed) < 2:
            return may
        rows = np.array([trial.values for trial in allowed], dtype=float)
        logs = [_spans_a_decade(column) for column in rows.T]
        rows = pareto.log_axes(rows, logs) * signs
        known = features(map(self._point, allowed))
        means, deviations, expected = [], [], []
        for place, column in enumerate(rows.T):
            counted = self._counted([*candidates, *running], (study.metric_names or [])[place])
            if counted is not None:
                exact = pareto.log_axes(counted[:, None], [logs[place]])[:, 0] * signs[place]
                ahead, there = exact[: len(candidates)], exact[len(candidates) :]
                means.append(ahead)
                deviations.append(np.zeros(len(ahead)))
                expected.append(there)
                continue
            process = _Process(known, column)
            if running:
                there = process(features(running))[0]
                expected.append(there)
                process = process.believing(features(running), there)
            mean, deviation = process(at)
            means.append(mean)
            deviations.append(deviation)
        reached = np.vstack([rows, np.array(expected).T]) if running else rows
        draws = norm.ppf(qmc.Sobol(len(signs), rng=self._seed).random(DRAWS))
        outcomes = np.array(means).T[:, None] + np.array(deviations).T[:, None] * draws
        corner = pareto.reference_point(reached, ["minimize"] * len(signs))
        gained = _gained(reached, corner, outcomes.reshape(-1, len(signs))).reshape(len(candidates), DRAWS).mean(axis=1)
        # If no candidate has an expected gain, the one with the largest deviation wins.
        return (gained + 1e-9 * np.array(deviations).sum(axis=0)) * may


class _Features:
    """Points of all blocks as rows of numbers from 0 to 1."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = [block.index for block in blocks]
        self._axes: dict[str, tuple[float, float, bool]] = {}
        self._words: list[tuple[str, str]] = []
        for name in dict.fromkeys(name for block in blocks for name in block.dimensions):
            found = [block.dimensions[name] for block in blocks if name in block.dimensions]
            values = [value for one in found for value in (one.values if isinstance(one, Choice) else one.ends)]
            sizes = [_size(value) for value in values]
            if any(size is None for size in sizes):
                self._words += [(name, text) for text in dict.fromkeys(map(repr, values))]
            else:
                numbers = [size for size in sizes if size is not None]
                log = _spans_a_decade(np.array(numbers))
                low, high = (math.log(end) if log else end for end in (min(numbers), max(numbers)))
                self._axes[name] = low, high, log

    def __call__(self, points: Iterable[Point]) -> np.ndarray:
        return np.array([self._row(one) for one in points])

    def _row(self, point: Point) -> list[float]:
        values = point.values
        row = [float(point.block == index) for index in self._blocks] if len(self._blocks) > 1 else []
        for name, (low, high, log) in self._axes.items():
            size = _size(values[name]) if name in values else None
            if size is None or high <= low:
                row.append(0.5)
            else:
                row.append(((math.log(size) if log else size) - low) / (high - low))
        return row + [float(name in values and repr(values[name]) == text) for name, text in self._words]


class _Process:
    """A Gaussian process: Matérn 5/2 with a length scale for every feature, and noise; fitted, or with the kernel of `like`."""

    def __init__(self, features: np.ndarray, values: np.ndarray, like: _Process | None = None) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        self._features, self._values = features, values
        self._middle: float = float(values.mean()) if like is None else like._middle
        self._spread: float = (float(values.std()) or 1.0) if like is None else like._spread
        if like is None:
            lengths = Matern(np.ones(features.shape[1]), (0.1, 20.0), nu=2.5)
            kernel = ConstantKernel(1.0, (0.1, 10.0)) * lengths + WhiteKernel(0.05, (1e-6, 0.5))
            self._fit = GaussianProcessRegressor(kernel, random_state=0)
        else:
            self._fit = GaussianProcessRegressor(like._fit.kernel_, optimizer=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a length scale at its bound
            self._fit.fit(features, (values - self._middle) / self._spread)

    def __call__(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at the points, without the noise."""
        mean, deviation = self._fit.predict(features, return_std=True)
        noise = self._fit.kernel_.k2.noise_level
        deviation = np.sqrt(np.maximum(deviation**2 - noise, 1e-12))
        return mean * self._spread + self._middle, deviation * self._spread

    def believing(self, features: np.ndarray, values: np.ndarray) -> _Process:
        """A process of the same kernel with further observations."""
        return _Process(np.vstack([self._features, features]), np.append(self._values, values), like=self)


def _gained(reached: np.ndarray, corner: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
    """By how much each outcome alone would raise the hypervolume of `reached`; everything is to be minimized."""
    if outcomes.shape[1] != 2:
        directions: list[pareto.Direction] = ["minimize"] * outcomes.shape[1]
        front = reached[pareto.front(reached, directions)]
        before = pareto.hypervolume(front, directions, corner)
        return np.array([pareto.hypervolume(np.vstack([front, one]), directions, corner) - before for one in outcomes])
    # Cut the plane into strips between neighbouring points of the front; the front has one height in each strip.
    front = reached[np.argsort(reached[:, 0], kind="stable")]
    edges = np.concatenate([[-np.inf], front[:, 0], corner[:1]])
    heights = np.concatenate([corner[1:], np.minimum(np.minimum.accumulate(front[:, 1]), corner[1])])
    widths = np.clip(np.minimum(edges[1:], corner[0]) - np.maximum(edges[:-1], outcomes[:, :1]), 0.0, None)
    return (widths * np.clip(heights - outcomes[:, 1:], 0.0, None)).sum(axis=1)


def _size(value: Any) -> float | None:
    """A number for a number, and for a list of numbers and words the mean of its numbers' logarithms, back from the log."""
    if isinstance(value, list | tuple):
        numbers = [one for one in value if isinstance(one, int | float) and not isinstance(one, bool) and one > 0]
        return math.exp(sum(map(math.log, numbers)) / len(numbers)) if numbers else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _spans_a_decade(values: np.ndarray) -> bool:
    return bool((values > 0).all() and values.max() >= 10 * values.min())

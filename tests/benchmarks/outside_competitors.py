"""Searchers of other libraries at their best, on the flat space: BoTorch's qLogNEHVI with the size known, and SMAC3.

    pip install botorch==0.18.1             # into an environment that has torch
    pip install smac==2.4.1 pyrfr           # pyrfr is built with swig

The project needs neither. Both get the flat space (`orchestrator.search.flat`), as Optuna's samplers do.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FixedTrial, FrozenTrial, TrialState

from orchestrator.search import samplers
from orchestrator.search.dimensions import Encoding
from orchestrator.search.flat import BLOCK, SIZE, FlatSpace
from orchestrator.sweepfile.space.dimensions import Point, neighbours, sample
from tests.benchmarks.outside_tasks import OBJECTIVES

FIRST = 10
"""Points drawn at random before a model is fitted, as many as Optuna's samplers draw."""


class QLogNehvi:
    """BoTorch's noisy expected hypervolume improvement: a Gaussian process of the score, and a deterministic model of the size,
    which is an input of its own."""

    def __init__(self, plan: Any) -> None:
        self._blocks, self._flat, self._size = plan.sweep.blocks, samplers.OnFlatSpace(plan, None).flat, plan.task.size
        self._encoding = Encoding(plan.sweep.blocks)
        sizes = [math.log(self._size(one)) for one in islice(sample(self._blocks, 0), 1000)]
        self._ends = min(sizes), max(sizes)

    def __call__(self, trials: Sequence[FrozenTrial], directions: Sequence[Any], seed: int) -> Point:
        import torch
        from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from botorch.models.deterministic import GenericDeterministicModel
        from botorch.models.model import ModelList
        from botorch.models.transforms import Standardize
        from botorch.utils.multi_objective.hypervolume import infer_reference_point
        from botorch.utils.multi_objective.pareto import is_non_dominated
        from gpytorch.mlls import ExactMarginalLogLikelihood

        torch.manual_seed(seed)
        points = [self._encoding.suggest(FixedTrial(one.params)) for one in trials]
        ended = [index for index, one in enumerate(trials) if one.state == TrialState.COMPLETE]
        if len(ended) < FIRST:
            return next(sample(self._blocks, seed))
        rows = torch.tensor(np.array([self._row(one) for one in points]), dtype=torch.double)
        scores = torch.tensor([[float(trials[index].values[0])] for index in ended], dtype=torch.double)
        done, running = rows[ended], [index for index, one in enumerate(trials) if one.state == TrialState.RUNNING]
        model = SingleTaskGP(done, scores, outcome_transform=Standardize(1))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        values = torch.cat([scores, -done[:, -1:]], dim=1)
        acquisition = qLogNoisyExpectedHypervolumeImprovement(
            ModelList(model, GenericDeterministicModel(lambda rows: -rows[..., -1:])),
            infer_reference_point(values[is_non_dominated(values)]),
            done,
            prune_baseline=True,
            X_pending=rows[running] if running else None,
        )
        front = [points[ended[index]] for index in torch.nonzero(is_non_dominated(values)).flatten().tolist()]
        return self._best(acquisition, front, seed)

    def _best(self, acquisition: Any, front: Sequence[Point], seed: int) -> Point:
        """The best of random points and neighbours of the front; from there along the gradient, unless the space is a table."""
        import torch
        from botorch.optim import optimize_acqf

        drawn = [*islice(sample(self._blocks, seed), 500)]
        drawn += [near for one in front for near in neighbours(self._blocks, one, seed)]
        rows = torch.tensor(np.array([self._row(one) for one in drawn]), dtype=torch.double)
        with torch.no_grad():
            gains = torch.cat([acquisition(part.unsqueeze(1)) for part in rows.split(100)])
        best = int(gains.argmax())
        if not any(block.ranges for block in self._blocks):
            return drawn[best]
        titles = len(self._flat.distributions[BLOCK].choices)  # type: ignore[attr-defined]
        fixed = {place: float(rows[best, place]) for place in range(titles)}
        beside = [one for one in gains.argsort(descending=True).tolist() if (rows[one, :titles] == rows[best, :titles]).all()]
        found, _ = optimize_acqf(
            acquisition,
            torch.tensor([[0.0] * rows.shape[1], [1.0] * rows.shape[1]], dtype=torch.double),
            1,
            num_restarts=len(beside[:4]),
            fixed_features=fixed,
            batch_initial_conditions=rows[beside[:4]].clamp(0, 1).unsqueeze(1),
            options={"maxiter": 50},
        )
        return self._flat.point(self._parameters(found[0].tolist()))

    def _row(self, point: Point) -> list[float]:
        """The parameters but the size as numbers from 0 to 1, categories as one column for each, then
        the logarithm of the size."""
        low, high = self._ends
        columns = [column for part in self._columns(self._flat.parameters(point)) for column in part]
        return [*columns, (math.log(self._size(point)) - low) / (high - low)]

    def _columns(self, parameters: Mapping[str, Any]) -> Iterator[list[float]]:
        for name, one in self._flat.distributions.items():
            if name == SIZE:
                continue
            if isinstance(one, CategoricalDistribution):
                yield [float(parameters.get(name) == choice) for choice in one.choices]
            else:
                yield [parameters.get(name, 0.0) / (one.high if isinstance(one, IntDistribution) else 1.0)]

    def _parameters(self, row: Sequence[float]) -> dict[str, Any]:
        found: dict[str, Any] = {SIZE: min(max(row[-1], 0.0), 1.0)}
        at = 0
        for name, one in self._flat.distributions.items():
            if name == SIZE:
                continue
            if isinstance(one, CategoricalDistribution):
                part = row[at : at + len(one.choices)]
                found[name] = one.choices[int(np.argmax(part))]
                at += len(one.choices)
            else:
                found[name] = round(row[at] * one.high) if isinstance(one, IntDistribution) else row[at]
                at += 1
        return found


class Smac:
    """SMAC3's random forests with ParEGO's weights. It needs one run from beginning to end."""

    def __init__(self, plan: Any, seed: int) -> None:
        from ConfigSpace import Categorical, ConfigurationSpace, Float, Integer
        from smac import HyperparameterOptimizationFacade as Facade
        from smac import Scenario

        self._flat: FlatSpace = samplers.OnFlatSpace(plan, None).flat
        self._encoding, self._told, self._asked = Encoding(plan.sweep.blocks), set[int](), {}
        self._space = ConfigurationSpace(seed=seed)
        self._names = {name: f"d{place}" for place, name in enumerate(self._flat.distributions)}
        for name, one in self._flat.distributions.items():
            if isinstance(one, CategoricalDistribution):
                self._space.add(Categorical(self._names[name], list(one.choices)))
            elif isinstance(one, IntDistribution):
                self._space.add(Integer(self._names[name], (one.low, one.high)))
            elif isinstance(one, FloatDistribution):
                self._space.add(Float(self._names[name], (one.low, one.high)))
        scenario = Scenario(
            self._space,
            objectives=list(OBJECTIVES),
            n_trials=plan.wanted,
            deterministic=True,
            seed=seed,
            output_directory=Path(tempfile.mkdtemp()),
        )
        self._smac = Facade(
            scenario,
            lambda configuration, seed=0: {},
            initial_design=Facade.get_initial_design(scenario, n_configs=FIRST),
            multi_objective_algorithm=Facade.get_multi_objective_algorithm(scenario),
            logging_level=False,
            overwrite=True,
        )

    def __call__(self, trials: Sequence[FrozenTrial], directions: Sequence[Any], seed: int) -> Point:
        from ConfigSpace import Configuration
        from smac.runhistory import TrialInfo, TrialValue

        for trial in trials:
            if trial.state != TrialState.COMPLETE or trial.number in self._told:
                continue
            self._told.add(trial.number)
            asked = self._asked.pop(trial.number, None)
            if asked is None:
                parameters = self._flat.parameters(self._encoding.suggest(FixedTrial(trial.params)))
                asked = TrialInfo(Configuration(self._space, {self._names[one]: at for one, at in parameters.items()}), seed=0)
            score, size = trial.values
            self._smac.tell(asked, TrialValue(cost=[-score, math.log(size)]))
        self._asked[len(trials)] = asked = self._smac.ask()
        given = dict(asked.config)
        return self._flat.point({name: given[short] for name, short in self._names.items()})

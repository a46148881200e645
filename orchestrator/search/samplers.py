"""One function for each searcher that learns: Optuna's own samplers, as they come, on the space without conditions.

    draws --> FlatSpace --a study in memory--> Optuna's sampler --> FlatSpace --> point

The study is made for each draw from what is known then: a trial that waits counts with its score so far, a trial that runs as
running. SEARCHERS (`orchestrator.sweepfile.algorithms`) names the functions; a new searcher is one function here and one row
there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import optuna
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from orchestrator.search.flat import FlatSpace
from orchestrator.search.learned import Draw, Learned
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Point

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan


def tpe(plan: Plan) -> Learned:
    return Learned(plan, OnFlatSpace(plan, lambda seed: TPESampler(seed=seed)))


def gp(plan: Plan) -> Learned:
    # A configuration that is drawn again keeps its value, so the sampler must not hope that another try gives more.
    return Learned(plan, OnFlatSpace(plan, lambda seed: GPSampler(seed=seed, deterministic_objective=True)))


class OnFlatSpace:
    """Asks a sampler of Optuna's for points of the plan's space."""

    def __init__(self, plan: Plan, make: Callable[[int], BaseSampler]) -> None:
        objectives = plan.sweep.objectives
        self._make, self._directions = make, list(objectives.values())
        objective = next((name for name, way in objectives.items() if name != "score" and way == "minimize"), "")

        def cost(point: Point) -> float | None:
            try:
                return plan.planner.configuration(point).known.get(objective)
            except SweepError:
                return None

        self.flat = FlatSpace(plan.sweep.blocks, cost)
        self._flattened: dict[str, FrozenTrial] = {}

    def __call__(self, draws: Sequence[Draw], seed: int) -> Point:
        """Returns the next point."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optuna.logging.set_verbosity(optuna.logging.WARNING)
            study = optuna.create_study(directions=self._directions, sampler=self._make(seed))
            study.add_trials([self._flatten(draw) for draw in draws if draw.values is not None or not draw.ended])
            return self.flat.point(study.ask(self.flat.distributions).params)

    def _flatten(self, draw: Draw) -> FrozenTrial:
        key = repr((draw.point, draw.values, draw.excess))
        if key not in self._flattened:
            self._flattened[key] = create_trial(
                state=TrialState.RUNNING if draw.values is None else TrialState.COMPLETE,
                values=draw.values,
                params=self.flat.parameters(draw.point),
                distributions=self.flat.distributions,
                constraints=None if draw.values is None else dict(draw.excess),
            )
        return self._flattened[key]

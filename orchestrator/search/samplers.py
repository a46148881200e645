"""One function for each searcher that learns: Optuna's own samplers, as they come, on the space without conditions.

    study --results so far--> FlatSpace --a study in memory, made anew--> Optuna's sampler --> FlatSpace --> point

The study in memory holds what is known now: a trial that waits counts with its score so far, a trial that runs as running.
SEARCHERS (`orchestrator.sweepfile.algorithms`) names the functions; a new searcher is one function here and one row there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import optuna
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FixedTrial, FrozenTrial, TrialState, create_trial

from orchestrator.search.dimensions import Encoding
from orchestrator.search.flat import FlatSpace
from orchestrator.search.study import SO_FAR, StudyProposer
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Point

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan


def tpe(plan: Plan, folder: Path | None) -> StudyProposer:
    return StudyProposer(plan, folder, OnFlatSpace(plan, lambda seed: TPESampler(seed=seed)))


def gp(plan: Plan, folder: Path | None) -> StudyProposer:
    # A configuration that is suggested again keeps its value, so the sampler must not hope that another try gives more.
    return StudyProposer(plan, folder, OnFlatSpace(plan, lambda seed: GPSampler(seed=seed, deterministic_objective=True)))


class OnFlatSpace:
    """Asks a sampler of Optuna's for points of the plan's space."""

    def __init__(self, plan: Plan, make: Callable[[int], BaseSampler]) -> None:
        self._make, self._encoding = make, Encoding(plan.sweep.blocks)
        objective = next((name for name, way in plan.sweep.objectives.items() if name != "score" and way == "minimize"), "")

        def cost(point: Point) -> float | None:
            try:
                return plan.planner.configuration(point).known.get(objective)
            except SweepError:
                return None

        self.flat = FlatSpace(plan.sweep.blocks, cost)
        self._ended: dict[int, FrozenTrial] = {}

    def __call__(self, trials: Sequence[FrozenTrial], directions: Sequence[StudyDirection], seed: int) -> Point:
        """The next point, by the trials of the sweep's study."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(directions=directions, sampler=self._make(seed))
            study.add_trials(
                [self._flattened(trial) for trial in trials if trial.state in (TrialState.COMPLETE, TrialState.RUNNING)]
            )
            return self.flat.point(study.ask(self.flat.distributions).params)

    def _flattened(self, trial: FrozenTrial) -> FrozenTrial:
        if trial.number in self._ended:
            return self._ended[trial.number]
        state, values = trial.state, trial.values
        if state == TrialState.RUNNING and SO_FAR in trial.user_attrs:
            state, values = TrialState.COMPLETE, trial.user_attrs[SO_FAR]
        flat = create_trial(
            state=state,
            values=values,
            params=self.flat.parameters(self._encoding.suggest(FixedTrial(trial.params))),
            distributions=self.flat.distributions,
            constraints=trial.constraints if state == TrialState.COMPLETE else None,
        )
        if trial.state == TrialState.COMPLETE:
            self._ended[trial.number] = flat
        return flat

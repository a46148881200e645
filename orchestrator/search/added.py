"""`Added`: what was added while the sweep ran, after what another strategy wants: by a person's proposal, or for the answer.

Each addition is a `Decided` in the log, so every session has the same ones, whatever file is applied later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import PlannedTrial
from orchestrator.search.strategy import Staged, Stages, Strategy
from orchestrator.state.events import Decided
from orchestrator.state.state import State
from orchestrator.state.trial import Why
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Point


class Added(Staged):
    """A strategy after another one."""

    def __init__(self, first: Strategy, plan: Plan) -> None:
        super().__init__(first, plan)
        self._families: dict[str, list[Configuration]] = {}

    def _advance(self, state: State, trials: list[PlannedTrial], configurations: list[Configuration]) -> Stages:
        for decision in state.decisions:
            trials, configurations = self._after(decision, trials, configurations)
        notes = [f"Added{'' if row.request else ' for the answer'}: {row.why}" for row in state.decisions]
        return Stages(trials, configurations, True, notes)

    def _after(
        self, decision: Decided, trials: Sequence[PlannedTrial], configurations: Sequence[Configuration]
    ) -> tuple[list[PlannedTrial], list[Configuration]]:
        """Returns trials and configurations with those that a decision adds."""
        by_id = {configuration.id: configuration for configuration in [*configurations, *self._family(decision)]}
        wanted = {trial.key: trial for trial in trials}
        for name, seeds in decision.seeds.items():
            family = [configuration for configuration in by_id.values() if (configuration.source or configuration).id == name]
            for trial in self._plan.planner.trials(family, seeds):
                wanted.setdefault(trial.key, _because(trial, Why("added", decision.why)))
        return [*wanted.values()], [*by_id.values()]

    def _family(self, decision: Decided) -> list[Configuration]:
        """Returns the configuration that a decision adds, after what its adapters are cut to; empty if it adds none, or none
        that the file allows."""
        if decision.point is None:
            return []
        key = repr(decision.point)
        if key not in self._families:
            self._families[key] = build(self._plan, Point(**decision.point))
        return [row for row in self._families[key] if (row.source or row).id in decision.seeds]


def build(plan: Plan, point: Point) -> list[Configuration]:
    """Returns the configuration of a point after what its adapters are cut to; empty if the file does not allow it."""
    blocks = plan.sweep.blocks
    if point.block is not None and (point.block >= len(blocks) or blocks[point.block].method != point.method):
        return []
    try:
        return plan.planner.allowed(point)[0]
    except SweepError:
        return []


def _because(trial: PlannedTrial, why: Why) -> PlannedTrial:
    """Returns a trial for whose training there is this reason, unless it says whose learning rate it has."""
    if trial.trial.transferred:
        return trial
    return replace(trial, why=replace(trial.why, training=why) if trial.run.cut_from is not None else why)

"""A strategy says which trials a sweep wants, by its file and its state. It keeps nothing: a resumed sweep wants the same.

    listed                       grid, random: all of the plan's trials
    learned                      tpe, gp: the trials of what was drawn, and the next draw
    tune, then measure           `compare: fair`: candidates, then the best of each group with the reported seeds
    added                        after any of these: what was decided for the answer
    until answered               after all of these: what decides which configuration is enough

No Ray here, and Optuna only in `orchestrator.search.learned`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from craft.methods import shown_method
from orchestrator.plan.configuration import Configuration, flatten
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import PlannedTrial, Why
from orchestrator.record.events import Decided, Event, Refused
from orchestrator.record.state import Entry, State
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Point

SEARCH_SCORE = "search_score"


class Strategy:
    """All trials of the plan (grid, random), as far as a subclass says nothing else. Its methods are pure functions of the
    state, for one sweep file; they may remember what they computed, and nothing else."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def configurations(self, state: State) -> Sequence[Configuration]:
        """Returns the configurations that are known, each after what its adapters are cut to."""
        return self._plan.configurations

    def wanted(self, state: State) -> list[PlannedTrial]:
        """Returns all trials that are wanted by what is known, in the order in which they are to start. Asked whenever trials
        have ended or something was drawn."""
        return [*self._plan.trials]

    def draw(self, state: State) -> list[Event]:
        """Returns the events of the next draw; none if nothing is to be drawn. Asked whenever a worker is free and no trial is
        ready."""
        return []

    def is_open(self, state: State) -> bool:
        """Returns whether more may be wanted, or drawn, when more is known."""
        return False

    def notes(self, state: State) -> list[str]:
        """Returns sentences on what was decided."""
        return []


@dataclass(frozen=True)
class Stages:
    """All trials that are wanted, their configurations, whether no more can come, sentences on what was decided, and what is
    decided now."""

    trials: list[PlannedTrial]
    configurations: list[Configuration]
    over: bool
    notes: list[str] = field(default_factory=list)
    step: Decided | None = None

    def has_ended(self, state: State) -> bool:
        """Returns whether no more can come and none of the trials has anything left to run in this session."""
        entries = (state.entries.get(trial.key) for trial in self.trials)
        return self.over and all(entry is not None and entry.ended for entry in entries)


Stage = Callable[[Plan, State, Stages], Stages]
"""Adds what comes after the stages before it."""


class Staged(Strategy):
    """A strategy, and what comes after it."""

    def __init__(self, first: Strategy, plan: Plan, rest: Sequence[Stage]) -> None:
        super().__init__(plan)
        self._first, self._rest = first, rest
        self._last: tuple[tuple[Any, ...], Stages] | None = None

    def configurations(self, state: State) -> Sequence[Configuration]:
        return self._stages(state).configurations

    def wanted(self, state: State) -> list[PlannedTrial]:
        return self._stages(state).trials

    def draw(self, state: State) -> list[Event]:
        if self._first.is_open(state):
            return self._first.draw(state)
        step = self._stages(state).step
        return [step] if step else []

    def is_open(self, state: State) -> bool:
        return self._first.is_open(state) or not self._stages(state).over

    def notes(self, state: State) -> list[str]:
        return [*self._first.notes(state), *self._stages(state).notes]

    def _stages(self, state: State) -> Stages:
        at = state.entries, state.proposals, state.decisions, state.refused, state.started
        if self._last is None or any(part is not last for part, last in zip(at, self._last[0], strict=True)):
            first = self._first
            stages = Stages(first.wanted(state), [*first.configurations(state)], not first.is_open(state))
            for stage in self._rest:
                stages = stage(self._plan, state, stages)
            self._last = at, stages
        return self._last[1]


def refusal(configuration: Configuration, reason: str, protocol: str) -> Refused:
    """Returns the event of a configuration that breaks a constraint and is never trained."""
    method = shown_method(configuration.method, configuration.parameters)
    return Refused(
        configuration=configuration.id,
        label=configuration.label,
        method=method,
        protocol=protocol,
        parameters={"method": method, **flatten(configuration.parameters), **flatten(configuration.training)},
        counts=configuration.counts.known(),
        reason=reason,
    )


def entries_of(trials: Iterable[PlannedTrial], state: State) -> list[Entry]:
    """Returns the trials as the state knows them; one that it does not know waits."""
    return [state.entries.get(trial.key) or Entry(trial.trial, wave=state.waves + 1) for trial in trials]


def added(plan: Plan, state: State, stages: Stages) -> Stages:
    """The stage of what was decided for the answer."""
    trials, configurations = stages.trials, stages.configurations
    for decision in state.decisions:
        trials, configurations = after(plan, decision, trials, configurations)
    notes = [f"Added for the answer: {row.why}" for row in state.decisions]
    return replace(stages, trials=trials, configurations=configurations, notes=[*stages.notes, *notes])


def after(
    plan: Plan, decision: Decided, trials: Sequence[PlannedTrial], configurations: Sequence[Configuration]
) -> tuple[list[PlannedTrial], list[Configuration]]:
    """Returns trials and configurations with those that a decision adds; none that the file does not allow."""
    new = [] if decision.point is None else build(plan, Point(**decision.point))
    new = [configuration for configuration in new if configuration.trained.id in decision.seeds]
    by_id = {configuration.id: configuration for configuration in [*configurations, *new]}
    wanted, why = {trial.key: trial for trial in trials}, Why("added", decision.why)
    for name, seeds in decision.seeds.items():
        family = [configuration for configuration in by_id.values() if configuration.trained.id == name]
        for trial in plan.planner.trials(family, seeds):
            if not trial.trial.transferred:  # which says whose learning rate it has
                because = replace(trial.why, training=why) if trial.run.cut_from is not None else why
                trial = replace(trial, why=because)
            wanted.setdefault(trial.key, trial)
    return [*wanted.values()], [*by_id.values()]


def build(plan: Plan, point: Point) -> list[Configuration]:
    """Returns the configuration of a point after what its adapters are cut to; empty if the file does not allow it."""
    blocks = plan.sweep.blocks
    if point.block >= len(blocks) or blocks[point.block].method != point.method:
        return []
    try:
        return plan.planner.allowed(point)[0]
    except SweepError:
        return []

"""A strategy says which trials a sweep wants, by its file and its state. It keeps nothing: a resumed sweep wants the same.

    listed                       grid, random: all of the plan's trials
    learned                      tpe, gp: the trials of what was drawn, and the next draw
    tune, then measure           `compare: fair`: candidates, then the best of each group with the reported seeds
    more seeds                   `choose: front`: one seed after another for what may be on the front
    added                        after any of these: what people have proposed
    until answered               after all of these: what decides which configuration is enough

No Ray here, and Optuna only in `orchestrator.search.learned`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from craft.methods import shown_method
from orchestrator.plan.configuration import Dropped
from orchestrator.plan.parameters import flatten
from orchestrator.plan.trial import PlannedTrial, jobs_of
from orchestrator.state.entry import Entry
from orchestrator.state.events import Decided, Event, Refused
from orchestrator.state.state import State

if TYPE_CHECKING:
    from orchestrator.plan.configuration import Configuration
    from orchestrator.plan.plan import Plan


class Strategy(Protocol):
    """Pure functions of the state, for one sweep file. They may remember what they computed, and nothing else."""

    def configurations(self, state: State) -> Sequence[Configuration]:
        """Returns the configurations that are known, each after what its adapters are cut to."""
        ...

    def wanted(self, state: State) -> list[PlannedTrial]:
        """Returns all trials that are wanted by what is known, in the order in which they are to start. Asked whenever trials
        have ended or something was drawn."""
        ...

    def draw(self, state: State) -> list[Event]:
        """Returns the events of the next draw; none if nothing is to be drawn. Asked whenever a worker is free and no trial is
        ready."""
        ...

    def is_open(self, state: State) -> bool:
        """Returns whether more may be wanted, or drawn, when more is known."""
        ...

    def notes(self, state: State) -> list[str]:
        """Returns sentences on what was decided."""
        ...


class Listed:
    """All trials of the plan: grid and random."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def configurations(self, state: State) -> Sequence[Configuration]:
        return self._plan.configurations

    def wanted(self, state: State) -> list[PlannedTrial]:
        return [*self._plan.trials]

    def draw(self, state: State) -> list[Event]:
        return []

    def is_open(self, state: State) -> bool:
        return False

    def notes(self, state: State) -> list[str]:
        return []


@dataclass(frozen=True)
class Stages:
    """All trials that are wanted, their configurations, whether no more can come, sentences on what was decided, and what is
    decided now."""

    trials: list[PlannedTrial]
    configurations: list[Configuration]
    over: bool
    notes: list[str]
    step: Decided | None = None


class Staged(ABC):
    """A strategy whose first stage is another one."""

    def __init__(self, first: Strategy, plan: Plan) -> None:
        self._first, self._plan = first, plan
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
        if self._last is None or any(now is not then for now, then in zip(at, self._last[0], strict=True)):
            self._last = at, self._advance(state, self._first.wanted(state), [*self._first.configurations(state)])
        return self._last[1]

    @abstractmethod
    def _advance(self, state: State, trials: list[PlannedTrial], configurations: list[Configuration]) -> Stages:
        """Returns the stages after the first one, whose trials and configurations these are."""

    def _has_ended(self, state: State, trials: Iterable[PlannedTrial]) -> bool:
        """Returns whether the first stage is over and none of the trials has anything left to run in this session."""
        entries = (state.entries.get(trial.key) for trial in trials)
        return not self._first.is_open(state) and all(entry is not None and entry.ended for entry in entries)

    def _is_affordable(self, trials: Sequence[PlannedTrial]) -> bool:
        allowed = self._plan.sweep.budget.trials
        return allowed is None or len(jobs_of(trials)) <= allowed


def refusal(dropped: Dropped, protocol: str) -> Refused:
    """Returns the event of a configuration that breaks a constraint and is never trained."""
    configuration = dropped.configuration
    method = shown_method(configuration.method, configuration.parameters)
    return Refused(
        configuration=configuration.id,
        label=configuration.label,
        method=method,
        protocol=protocol,
        parameters={"method": method, **flatten(configuration.parameters), **flatten(configuration.training)},
        counts=configuration.counts.known(),
        reason=dropped.reason,
    )


def entries_of(trials: Iterable[PlannedTrial], state: State) -> list[Entry]:
    """Returns the trials as the state knows them; one that it does not know waits."""
    return [state.entries.get(trial.key) or Entry(trial.trial) for trial in trials]

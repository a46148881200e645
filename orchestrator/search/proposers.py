"""Proposers choose configurations: the protocol, and the one of searchers that know all of theirs beforehand. No Ray here.

A proposer is asked for a configuration (`suggest`) and told its values (`tell`) when all of its trials have ended. Grid and
random list their configurations beforehand and learn nothing; the others are samplers over an Optuna study
(`orchestrator.search.study`), which is imported only for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from orchestrator.sweepfile.algorithms import imported

if TYPE_CHECKING:
    from orchestrator.plan.configuration import Configuration
    from orchestrator.plan.plan import Plan

ConfigurationStatus = Literal["complete", "incomplete"]


class Proposer(Protocol):
    """Chooses configurations."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will ever be suggested, as of the last `advance` or `suggest`."""
        ...

    def advance(self) -> None:
        """Takes up the trials that have ended since; may add trials to the plan. `suggest` begins with it."""
        ...

    def suggest(self) -> Configuration | None:
        """The next configuration, or None to be asked again when more is known (or nothing is left)."""
        ...

    def tell(self, configuration: str, values: Mapping[str, float], status: ConfigurationStatus) -> None:
        """A configuration's trials have all ended: its objectives' values, those that it has."""
        ...

    def tell_partial(self, configuration: str, values: Mapping[str, float]) -> None:
        """A configuration waits, and may never go on: its objectives' values as far as they are known."""
        ...


class Listed:
    """A proposer that knows all its configurations beforehand and does not learn: grid and random."""

    def __init__(self, configurations: Iterable[Configuration]) -> None:
        self._waiting = deque(configurations)

    @property
    def exhausted(self) -> bool:
        return not self._waiting

    def advance(self) -> None:
        pass

    def suggest(self) -> Configuration | None:
        return self._waiting.popleft() if self._waiting else None

    def tell(self, configuration: str, values: Mapping[str, float], status: ConfigurationStatus) -> None:
        pass

    def tell_partial(self, configuration: str, values: Mapping[str, float]) -> None:
        pass


def listed(plan: Plan, folder: Path | None) -> Listed:
    """The proposer of grid and random."""
    return Listed(one for one in plan.configurations if plan.trials_of(one.id))


def propose(plan: Plan, folder: Path | None = None) -> Proposer:
    """The proposer of the plan's searcher; it keeps in `folder`, if given, what a resumed sweep needs of it."""
    proposer: Proposer = imported(plan.sweep.search.row.make)(plan, folder)
    return proposer

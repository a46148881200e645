"""What chooses configurations: SEARCHERS, one row for each `search.algorithm` of a sweep file. No Ray here.

A proposer is asked for a configuration (`suggest`) and told its values (`tell`) when all of its trials have ended. Grid and
random know theirs beforehand and learn nothing; the others are Optuna's samplers over a study (`orchestrator.search.study`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from orchestrator.search import study
from orchestrator.search.study import StudyProposer

if TYPE_CHECKING:
    from orchestrator.plan.configuration import Configuration
    from orchestrator.plan.plan import Plan

ConfigurationStatus = Literal["complete", "incomplete"]


class Proposer(Protocol):
    """What chooses configurations."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will ever be suggested."""
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

    def suggest(self) -> Configuration | None:
        return self._waiting.popleft() if self._waiting else None

    def tell(self, configuration: str, values: Mapping[str, float], status: ConfigurationStatus) -> None:
        pass

    def tell_partial(self, configuration: str, values: Mapping[str, float]) -> None:
        pass


@dataclass(frozen=True)
class SearcherRow:
    """One row of SEARCHERS: `make` gives a plan's proposer, which keeps what it must remember in a folder if given one."""

    make: Callable[[Plan, Path | None], Proposer]

    def propose(self, plan: Plan, folder: Path | None = None) -> Proposer:
        return self.make(plan, folder)


SEARCHERS: dict[str, SearcherRow] = {
    "grid": SearcherRow(lambda plan, folder: Listed(plan.configurations)),
    "random": SearcherRow(lambda plan, folder: Listed(plan.configurations)),
    "sobol": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, None)),
    "tpe": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, study.tpe)),
    "nsga2": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, study.nsga2)),
    "nsga3": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, study.nsga3)),
    "gp": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, study.gp)),
    "cmaes": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, study.cmaes)),
}

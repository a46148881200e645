"""Where trials come from: proposers suggest configurations, `TrialSource` turns them into the trials that Ray Tune asks for.

    proposer  --configuration-->  TrialSource  --its trials on every task with every seed-->  Ray Tune
        ^                                                                                        |
        +------ tell(values of the configuration: means over tasks and seeds) <--- all ended ----+

A searcher thinks in configurations, Ray in trials; here the one becomes the other. SEARCHERS and SCHEDULERS are the tables to
add a row to; their names and settings in a sweep file are `orchestrator.algorithms`'.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from orchestrator import study
from orchestrator.study import StudyProposer
from orchestrator.trial import TrialSpec

if TYPE_CHECKING:
    from orchestrator.plan import Configuration, Plan
    from orchestrator.sweep import Sweep

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


@dataclass(frozen=True)
class SearcherRow:
    """One row of SEARCHERS: `make` gives a plan's proposer, which keeps what it must remember in a folder if given one."""

    make: Callable[[Plan, Path | None], Proposer]

    def propose(self, plan: Plan, folder: Path | None = None) -> Proposer:
        return self.make(plan, folder)


@dataclass(frozen=True)
class SchedulerRow:
    """One row of SCHEDULERS: `make` gives what Ray Tune asks after every evaluation, or None to let every trial run."""

    make: Callable[[Sweep], TrialScheduler | None]


SEARCHERS: dict[str, SearcherRow] = {
    "grid": SearcherRow(lambda plan, folder: Listed(plan.configurations)),
    "random": SearcherRow(lambda plan, folder: Listed(plan.configurations)),
    "sobol": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, None)),
    "tpe": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, study.tpe)),
    "nsga2": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, study.nsga2)),
    "nsga3": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, study.nsga3)),
    "gp": SearcherRow(lambda plan, folder: StudyProposer(plan, folder, study.gp)),
}

SCHEDULERS: dict[str, SchedulerRow] = {
    "none": SchedulerRow(lambda sweep: None),
}


class TrialSource(Searcher):
    """Hands Ray Tune one trial after another; a configuration's trials follow each other, so that its summary comes early.

    A trial that needs no run (a result is on record) is not handed out. State is never saved with Ray's: on a resume the plan
    and the ledger say it all.
    """

    def __init__(
        self,
        proposer: Proposer,
        trials_of: Callable[[Configuration], Sequence[TrialSpec]],
        is_settled: Callable[[str], bool],
        waiting: Iterable[TrialSpec] = (),
        max_concurrent: int | None = None,
    ) -> None:
        """
        Args:
            trials_of: a configuration's trials.
            is_settled: whether the trial of a key has nothing left to run.
            waiting: trials to hand out before any configuration is asked for.
            max_concurrent: how many trials may be out at once.
        """
        super().__init__()
        self._proposer, self._trials_of, self._is_settled = proposer, trials_of, is_settled
        self._max_concurrent = max_concurrent
        self._next = deque(trial for trial in waiting if not is_settled(trial.key))
        self._out: set[str] = set()

    def suggest(self, trial_id: str) -> Any:
        # Ray's own signature leaves out the word for `no more`.
        if self._max_concurrent is not None and len(self._out) >= self._max_concurrent:
            return None
        while not self._next:
            configuration = self._proposer.suggest()
            if configuration is None:
                return Searcher.FINISHED if self._proposer.exhausted else None
            self._next.extend(trial for trial in self._trials_of(configuration) if not self._is_settled(trial.key))
        trial = self._next.popleft()
        self._out.add(trial_id)
        return trial_config(trial)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._out.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: see the class."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see the class."""

    def __getstate__(self) -> dict[str, Any]:
        # Ray pickles its whole configuration into a file that this project never reads; open files must not be in it.
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> TrialSource:
        return self


def trial_config(trial: TrialSpec) -> dict[str, Any]:
    """The configuration by which Ray carries a trial: one text, so that Ray has nothing to resolve in it."""
    return {"key": trial.key, "trial": json.dumps(trial.to_json())}

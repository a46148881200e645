"""`TrialSource` turns the configurations that a proposer suggests into the trials that Ray Tune asks for.

    proposer  --configuration-->  TrialSource  --its trials on every task with every seed-->  Ray Tune
        ^                                                                                        |
        +------ tell(values of the configuration: means over tasks and seeds) <--- all ended ----+

A searcher thinks in configurations, Ray in trials. Proposers are in `orchestrator.search.proposers`, without Ray.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ray.tune.search import Searcher

from orchestrator.plan.trial import Trial
from orchestrator.search.proposers import Proposer
from orchestrator.tune.schedulers import Promoting

if TYPE_CHECKING:
    from orchestrator.plan.configuration import Configuration


class TrialSource(Searcher):
    """Hands Ray Tune one trial after another; a configuration's trials follow each other, so that its summary comes early.

    A trial whose result is on record is not handed out. Ray saves no state of this class: a resumed sweep knows everything from
    the plan and the ledger.
    """

    def __init__(
        self,
        proposer: Proposer,
        trials_of: Callable[[Configuration], Sequence[Trial]],
        is_settled: Callable[[str], bool],
        waiting: Iterable[Trial] = (),
        max_concurrent: int | None = None,
        turns: Promoting | None = None,
    ) -> None:
        """
        Args:
            trials_of: a configuration's trials.
            is_settled: whether the trial of a key has nothing left to run.
            waiting: trials to hand out before any configuration is asked for.
            max_concurrent: how many trials may be out at once.
            turns: says which of the waiting trials is next, where trials pause.
        """
        super().__init__()
        self._turns = turns
        self._proposer, self._trials_of, self._is_settled = proposer, trials_of, is_settled
        self._max_concurrent = max_concurrent
        self._next = deque(self._to_run(waiting))
        self._out: dict[str, Trial] = {}

    def suggest(self, trial_id: str) -> Any:
        # The return type is Any: Ray's own signature leaves out Searcher.FINISHED.
        if self._max_concurrent is not None and len(self._out) >= self._max_concurrent:
            return None
        while (trial := self._ready()) is None:
            configuration = self._proposer.suggest()
            if configuration is None:
                # When nothing is running, a waiting trial can never be promoted.
                over = self._proposer.exhausted and not (self._out if self._turns else self._next)
                return Searcher.FINISHED if over else None
            self._next.extend(self._to_run(self._trials_of(configuration)))
        self._next.remove(trial)
        self._out[trial_id] = trial
        return trial_config(trial)

    def _to_run(self, trials: Iterable[Trial]) -> list[Trial]:
        return [trial for trial in trials if not self._is_settled(trial.key)]

    def _ready(self) -> Trial | None:
        """The first trial that can start: a warm start needs the result of the run it begins from."""
        if self._turns is not None:
            return self._turns.choose(self._next, {trial.configuration for trial in self._out.values()})
        for trial in self._next:
            begin = trial.run.warm_start
            if begin is None or self._is_settled(begin.run):
                return trial
        return None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self._out.pop(trial_id, None)
        if self._turns is not None and trial is not None and not error and not self._is_settled(trial.key):
            self._next.append(trial)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: see the class."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see the class."""

    def __getstate__(self) -> dict[str, Any]:
        # Ray pickles its whole configuration into a file that this project never reads; open files must not be in it.
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> TrialSource:
        return self


def trial_config(trial: Trial) -> dict[str, Any]:
    """The configuration by which Ray carries a trial: one text, so that Ray has nothing to resolve in it."""
    return {"key": trial.key, "trial": json.dumps(trial.to_json())}

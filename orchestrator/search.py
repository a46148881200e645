"""Where trials come from: proposers suggest configurations, `TrialSource` turns them into the trials that Ray Tune asks for.

    proposer  --configuration-->  TrialSource  --its trials on every task with every seed-->  Ray Tune
        ^                                                                                        |
        +------ tell(values of the configuration: means over tasks and seeds) <--- all ended ----+

A searcher thinks in configurations, Ray in trials; here the one becomes the other. What chooses configurations stands in
`orchestrator.proposers`, the rules of SCHEDULERS in `orchestrator.stopping`, both without Ray.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from orchestrator.journal import read
from orchestrator.proposers import SEARCHERS, Listed, Proposer
from orchestrator.stopping import RULES, Rule, entrant, judged
from orchestrator.tracking import JOURNAL
from orchestrator.trial import TrialSpec

if TYPE_CHECKING:
    from orchestrator.plan import Configuration, Plan

__all__ = ["SCHEDULERS", "SEARCHERS", "Listed", "TrialSource", "trial_config"]


@dataclass(frozen=True)
class SchedulerRow:
    """One row of SCHEDULERS: `make` gives what Ray Tune asks after every evaluation, or None to let every trial run."""

    make: Callable[[Plan, Path | None], TrialScheduler | None]


def _stops_by(name: str) -> SchedulerRow:
    def make(plan: Plan, folder: Path | None = None) -> TrialScheduler | None:
        rule = RULES[name](plan.sweep.scheduler)
        return Stopping(rule, plan, folder) if rule else None

    return SchedulerRow(make)


SCHEDULERS: dict[str, SchedulerRow] = {name: _stops_by(name) for name in RULES}


class Stopping(FIFOScheduler):
    """Asks a rule of `orchestrator.stopping` after every evaluation. Trials start in the order in which they come.

    What earlier sessions of the sweep recorded in its journal is told to the rule first: a resumed sweep judges as if it had
    never been stopped.
    """

    def __init__(self, rule: Rule, plan: Plan, folder: Path | None = None) -> None:
        super().__init__()
        self._rule, self._plan = rule, plan
        self._configurations: dict[str, Configuration] = {}
        self._given_up: set[str] = set()
        if folder is not None:
            self._recall(folder / JOURNAL)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        # Tune hands schedulers the report flattened.
        if "progress/total_steps" not in result:
            return TrialScheduler.CONTINUE
        spec = TrialSpec.from_json(json.loads(trial.config["trial"]))
        stop = self._told(spec, result["epoch"], result.get("search_score"))
        last = result["step"] >= result["progress/total_steps"]
        if last or not (stop or spec.configuration in self._given_up):
            return TrialScheduler.CONTINUE
        self._given_up.add(spec.configuration)
        return TrialScheduler.STOP

    def _told(self, spec: TrialSpec, epoch: float, score: Any) -> bool:
        for one in self._plan.configurations[len(self._configurations) :]:
            self._configurations[one.id] = one
        found = self._configurations.get(spec.configuration)
        if found is None or not judged(score):
            return False
        return self._rule.report(entrant(self._plan.sweep, spec, found), epoch, score)

    def _recall(self, journal: Path) -> None:
        specs = {trial.key: trial for trial in self._plan.trials}
        for event, _ in read(journal):
            if event.get("kind") == "trial_progress" and event.get("key") in specs:
                for row in event.get("rows", ()):
                    if "epoch" in row and "search_score" in row:
                        self._told(specs[event["key"]], row["epoch"], row["search_score"])

    def __getstate__(self) -> dict[str, Any]:
        # Ray pickles its whole configuration into a file that this project never reads; open files must not be in it.
        return {}


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
        while (trial := self._ready()) is None:
            configuration = self._proposer.suggest()
            if configuration is None:
                return Searcher.FINISHED if self._proposer.exhausted and not self._next else None
            self._next.extend(trial for trial in self._trials_of(configuration) if not self._is_settled(trial.key))
        self._next.remove(trial)
        self._out.add(trial_id)
        return trial_config(trial)

    def _ready(self) -> TrialSpec | None:
        """The first waiting trial that waits for no other: one that starts warm needs the run it starts from."""
        while self._next and self._is_settled(self._next[0].key):
            self._next.popleft()  # spared since
        for trial in self._next:
            begin = trial.run.warm_start
            if self._is_settled(trial.key):
                continue
            if begin is None or self._is_settled(begin.run):
                return trial
        return None

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

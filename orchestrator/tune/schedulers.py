"""Where trials come from: proposers suggest configurations, `TrialSource` turns them into the trials that Ray Tune asks for.

    proposer  --configuration-->  TrialSource  --its trials on every task with every seed-->  Ray Tune
        ^                                                                                        |
        +------ tell(values of the configuration: means over tasks and seeds) <--- all ended ----+

A searcher thinks in configurations, Ray in trials; here the one becomes the other. What chooses configurations stands in
`orchestrator.search.proposers`, the rules that judge trials in `orchestrator.search.stopping`, both without Ray.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from orchestrator.plan.trial import TrialResult, TrialSpec
from orchestrator.record.folder import SweepFolder
from orchestrator.search.promotion import Promotion
from orchestrator.search.rivals import Entrant, Rule, entrant, judged
from orchestrator.search.stopping import rule_of
from orchestrator.tools.journal import read

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan


def scheduler_of(plan: Plan, folder: Path | None = None) -> Stopping | None:
    """What Ray Tune asks after every evaluation of a plan's trials; None lets every trial run to its end."""
    rule = rule_of(plan.sweep.scheduler)
    if rule is None:
        return None
    return Pausing(cast(Promotion, rule), plan, folder) if plan.sweep.scheduler.row.pauses else Stopping(rule, plan, folder)


class Stopping(FIFOScheduler):
    """Asks a rule of `orchestrator.search.stopping` after every evaluation. Trials start in the order in which they come.

    What earlier sessions of the sweep recorded in its journal is told to the rule first: a resumed sweep judges as if it had
    never been stopped.
    """

    def __init__(self, rule: Rule | Promotion, plan: Plan, folder: Path | None = None) -> None:
        super().__init__()
        self._rule, self._plan = rule, plan
        self._given_up: set[str] = set()
        self.recalled: dict[str, TrialResult] = {}
        """What trials of earlier sessions had last reported, as results of trials that were stopped there."""
        if folder is not None:
            self._recall(SweepFolder(folder).journal)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        # Tune hands schedulers the report flattened.
        if "progress/total_steps" not in result:
            return TrialScheduler.CONTINUE
        spec = TrialSpec.from_json(json.loads(trial.config["trial"]))
        last = result["step"] >= result["progress/total_steps"]
        stop = self._told(spec, result["epoch"], result.get("search_score"), last)
        if last or not (stop or spec.configuration in self._given_up):
            return TrialScheduler.CONTINUE
        self._given_up.add(spec.configuration)
        return TrialScheduler.STOP

    def _entrant(self, spec: TrialSpec) -> Entrant:
        return entrant(self._plan.sweep, spec, self._plan.configuration(spec.configuration))

    def _told(self, spec: TrialSpec, epoch: float, score: Any, last: bool) -> bool:
        return judged(score) and self._judge(self._entrant(spec), epoch, score, last)

    def _judge(self, seen_as: Entrant, epoch: float, score: float, last: bool) -> bool:
        return self._rule.report(seen_as, epoch, score)

    def _recall(self, journal: Path) -> None:
        specs = {trial.key: trial for trial in self._plan.trials}
        for event, _ in read(journal):
            if event.get("kind") == "trial_progress" and event.get("key") in specs:
                total = event.get("total_steps") or math.inf
                for row in event.get("rows", ()):
                    if "epoch" in row and "search_score" in row:
                        last = row.get("step", 0) >= total
                        self._told(specs[event["key"]], row["epoch"], row["search_score"], last)
                        metrics = {"search_score": row["search_score"]}
                        self.recalled[event["key"]] = TrialResult(event["key"], "stopped", metrics, steps=row.get("step", 0))

    def __getstate__(self) -> dict[str, Any]:
        # Ray pickles its whole configuration into a file that this project never reads; open files must not be in it.
        return {}


class Pausing(Stopping):
    """Asks a rule that pauses (`orchestrator.search.promotion.Promotion`).

    A trial that pauses ends for Tune, its checkpoint stays, and `TrialSource` hands it out again when it is its turn: then it
    goes on from there, as after a crash.
    """

    def __init__(self, rule: Promotion, plan: Plan, folder: Path | None = None) -> None:
        self._turns = rule
        self._checkpoints: dict[str, int] = {}
        self.on_wait: Callable[[str, float], None] = lambda configuration, score: None
        """Hears of a configuration that waits now, and its mean search score as far as it is known."""
        super().__init__(rule, plan, folder)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        # Tune would give the second of a name another folder, where nobody looks for its checkpoints, and count from 0 again.
        key = trial.config["key"]
        if key in self._checkpoints:
            trial.relative_logdir = trial.storage.trial_dir_name = trial.custom_dirname
            trial.storage.current_checkpoint_index = self._checkpoints[key]

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if "progress/total_steps" not in result:
            return TrialScheduler.CONTINUE
        spec = TrialSpec.from_json(json.loads(trial.config["trial"]))
        number = re.fullmatch(r"checkpoint_(\d+)", str(result.get("checkpoint_dir_name")))
        if number:
            self._checkpoints[spec.key] = int(number[1])
        last = result["step"] >= result["progress/total_steps"]
        pause = self._told(spec, result["epoch"], result.get("search_score"), last)
        if pause:
            score = self._turns.so_far([self._entrant(one) for one in self._plan.trials_of(spec.configuration)])
            if score is not None:
                self.on_wait(spec.configuration, score)
        return TrialScheduler.STOP if pause and not last else TrialScheduler.CONTINUE

    def choose(self, waiting: Iterable[TrialSpec], busy: Container[str]) -> TrialSpec | None:
        """The trial whose turn it is, which then goes on; None if all must wait.

        Args:
            busy: configurations of which a trial is out.
        """
        trials: dict[str, list[TrialSpec]] = {}
        for spec in waiting:
            if spec.configuration not in busy and self._turns.may_go_on(spec.configuration):
                trials.setdefault(spec.configuration, []).append(spec)
        if not trials:
            return None
        chosen = max(trials, key=lambda one: sum(self._turns.epochs_of(one).values()))
        self._turns.go_on(chosen)
        begun = self._turns.epochs_of(chosen)
        halfway = [spec for spec in trials[chosen] if spec.key in begun]
        if halfway:
            return halfway[0]
        seen_as = [self._entrant(one) for one in trials[chosen]]
        return next(spec for spec in trials[chosen] if spec.key == self._turns.next_of(seen_as).key)

    def _judge(self, seen_as: Entrant, epoch: float, score: float, last: bool) -> bool:
        return self._turns.report(seen_as, epoch, score, last)

"""`Promoting`: what Ray Tune asks after every evaluation of a trial, where a sweep promotes trials.

    Tune  --evaluation-->  Promoting  --the rule-->  the trial continues or waits  -->  CONTINUE or STOP
    TrialSource  --a worker is free-->  Promoting.choose  -->  the waiting trial that continues

The rule is in `orchestrator.search.promotion`, without Ray. For Tune a trial that waits has ended: its checkpoint stays, and
`TrialSource` hands it out again when it is its turn. It then continues from there, as after a crash.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from orchestrator.plan.trial import Trial
from orchestrator.record.folder import SweepFolder
from orchestrator.search.promotion import Promotion
from orchestrator.search.rivals import Entrant, entrant
from orchestrator.state.entry import TrialResult
from orchestrator.tools.journal import events_of

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan


def scheduler_of(plan: Plan, folder: Path | None = None) -> Promoting | None:
    """The scheduler of a plan's trials; None lets every trial run to its end."""
    return None if plan.sweep.scheduler.name == "none" else Promoting(plan, folder)


class Promoting(FIFOScheduler):
    """Pauses trials by the rule, and says which waiting trial is next.

    What earlier sessions of the sweep recorded in its journal is given to the rule first: a resumed sweep judges as if it had
    never been interrupted.
    """

    def __init__(self, plan: Plan, folder: Path | None = None) -> None:
        super().__init__()
        settings = plan.sweep.scheduler
        self._rule, self._plan = Promotion(settings.grace, settings.factor), plan
        self._checkpoints: dict[str, int] = {}
        self.listeners: list[Callable[[str, float], None]] = []
        """Each is called with a configuration that waits from now on, and its mean search score as far as that is known."""
        self.recalled: dict[str, TrialResult] = {}
        """What trials of earlier sessions had last reported, as results of trials that were stopped there."""
        if folder is not None:
            self._recall(SweepFolder(folder).journal)

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        # Tune would give the second trial of a name another folder, where nobody looks for its checkpoints, and would number
        # them from 0 again.
        key = trial.config["key"]
        if key in self._checkpoints:
            trial.relative_logdir = trial.storage.trial_dir_name = trial.custom_dirname
            trial.storage.current_checkpoint_index = self._checkpoints[key]

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if "total_steps" not in result:
            return TrialScheduler.CONTINUE
        spec = Trial.from_json(json.loads(trial.config["trial"]))
        if number := re.fullmatch(r"checkpoint_(\d+)", str(result.get("checkpoint_dir_name"))):
            self._checkpoints[spec.key] = int(number[1])
        last = result["step"] >= result["total_steps"]
        if not self._rule.pauses(self._entrant(spec), result["epoch"], result.get("search_score"), last):
            return TrialScheduler.CONTINUE
        score = self._rule.so_far([self._entrant(one) for one in self._plan.trials_of(spec.configuration)])
        if score is not None:
            for listener in self.listeners:
                listener(spec.configuration, score)
        return TrialScheduler.CONTINUE if last else TrialScheduler.STOP

    def choose(self, waiting: Iterable[Trial], busy: Container[str]) -> Trial | None:
        """The trial whose turn it is, which then continues; None if all must wait."""
        specs = {spec.key: spec for spec in waiting if spec.configuration not in busy}
        entrants: dict[str, list[Entrant]] = {}
        for spec in specs.values():
            entrants.setdefault(spec.configuration, []).append(self._entrant(spec))
        chosen = self._rule.next_turn(entrants)
        return None if chosen is None else specs[chosen.key]

    def _entrant(self, spec: Trial) -> Entrant:
        return entrant(self._plan.sweep, spec, self._plan.configuration(spec.configuration))

    def _recall(self, journal: Path) -> None:
        specs = {trial.key: trial for trial in self._plan.trials}
        for event in events_of(journal, "trial_progress"):
            if event["key"] in specs:
                total = event.get("total_steps") or math.inf
                for row in event.get("rows", ()):
                    if "epoch" in row and "search_score" in row:
                        last = row.get("step", 0) >= total
                        self._rule.pauses(self._entrant(specs[event["key"]]), row["epoch"], row["search_score"], last)
                        metrics = {"search_score": row["search_score"]}
                        self.recalled[event["key"]] = TrialResult(event["key"], "stopped", metrics, steps=row.get("step", 0))

    def __getstate__(self) -> dict[str, Any]:
        # Ray pickles its whole configuration into a file that this project never reads; open files must not be in it.
        return {}

"""The one writer of a sweep's record on the driver: every event of a trial passes here, in one thread, in order.

One other thread may come in, to close the record when the driver's own is lost in Ray; `lock` keeps them apart.
The ledger gets a result first; then the tracker, the display and the searcher get it. An error of the tracker is logged and
never stops the sweep; results that the ledger cannot take (a full disk) wait and are tried again until the end.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from orchestrator.driver.display import Display
from orchestrator.driver.standing import Standing
from orchestrator.driver.underway import Underway
from orchestrator.plan.trial import Ended, Trial
from orchestrator.record.checkpoints import ADAPTER_FOLDER
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.results.summary import Summary
from orchestrator.state.entry import TrialResult

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan
    from orchestrator.record.tracker import Tracker

log = logging.getLogger(__name__)

TELL_EVERY = 15.0
"""Seconds between two records of how far the sweep is."""


P = ParamSpec("P")
R = TypeVar("R")


def _alone(method: Callable[Concatenate[Recorder, P], R]) -> Callable[Concatenate[Recorder, P], R]:
    """The method, run by one thread at a time."""

    @functools.wraps(method)
    def locked(self: Recorder, *arguments: P.args, **named: P.kwargs) -> R:
        with self.lock:
            return method(self, *arguments, **named)

    return locked


class Recorder:
    """Records what happens to the trials of a plan.

    Attributes:
        standing: which trials are settled, and the results.
        underway: which trials run, and the time that trials have taken.
        listeners: each is called with a configuration when the last of its trials has ended.
        notes: what is said at the end of the session.
        lock: held while an event is recorded.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        display: Display,
        tracker: Tracker | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.standing = Standing(plan, ledger.results())
        self.underway = Underway()
        self.listeners: list[Callable[[Summary], None]] = []
        self.notes: list[str] = []
        self._plan, self._ledger, self._display, self._tracker = plan, ledger, display, tracker
        self._unwritten: list[TrialResult] = []
        self._next_telling = 0.0
        self.add(plan.trials)
        self._catch_up()

    def add(self, trials: Iterable[Trial]) -> None:
        """Takes in trials that are new to the plan, with the results that are on record for them."""
        restated = set()
        for trial in self.standing.take_in(trials):
            results = [found for one in trial.outputs if (found := self.standing.results.get(one.key))]
            self.underway.took(trial.key, sum(one.seconds for one in results))
            result = self.standing.results.get(trial.key)
            if result is not None and self.standing.is_settled(trial.key):
                self._display.ended(trial, result, earlier=True)
            for found in results:
                self._display.made(self.standing.spec(found.key), found)
                if found.status in ("finished", "failed") and self._tracker is not None and not self._tracker.holds(found.key):
                    one = self.standing.spec(found.key)
                    self._begin(one)  # its journal was lost
                    self._track("trial_ended", found, None)
                    restated.add(one.configuration)
        for configuration in restated:
            self._maybe_end_configuration(configuration)

    def grow(self, trials: Iterable[Trial]) -> None:
        """Takes in trials that the plan got beyond those it was expected to have."""
        self.add(trials)
        self._display.expect(len(self._plan.trials) if self._plan.adaptive else self._plan.most_trials)

    @_alone
    def say(self, line: str) -> None:
        """Prints a line about the whole sweep."""
        self._display.say(line)

    def started(self, key: str) -> None:
        """A training runs, for the first time or again."""
        spec = self.standing.spec(key)
        self.underway.start(key)
        self._display.started(spec)
        for one in spec.outputs:
            self._begin(one)

    @_alone
    def progressed(self, key: str, progress: dict[str, Any]) -> None:
        """A running trial reported an evaluation."""
        self.underway.report(key, progress)
        self._display.progressed(self.standing.spec(key), progress)
        self._track("trial_progress", key, progress)

    @_alone
    def looked(self, key: str, outlook: dict[str, Any]) -> None:
        """A running trial reports how far it is, which is shown and not recorded."""
        if not self.standing.is_settled(key):
            self._display.looked(self.standing.spec(key), outlook)

    @_alone
    def tell(self) -> None:
        """Records for the page, every so often, what the trials do and the time left."""
        if time.monotonic() < self._next_telling:
            return
        self._next_telling = time.monotonic() + TELL_EVERY
        tally = self._display.tally
        if tally.doing or tally.left is not None:
            self._track("sweep_underway", {"left": tally.left, "doing": tally.doing})

    @_alone
    def retried(self, key: str, why: str) -> None:
        """The trial's process or machine died; Tune starts it again."""
        log.warning("trial %s is started again: %s", key, why)
        self._display.retried(self.standing.spec(key), why)

    @_alone
    def ended(self, result: TrialResult, adapter: Path | None = None, sizes: Sequence[Ended] = ()) -> None:
        """The training is over for this session: the ledger gets the results of its outputs before anything else.

        Args:
            sizes: those that a finished training has. If it did not finish, they end as it does, with no score.
        """
        key = result.key
        if self.standing.is_settled(key):
            return
        training, given = self.standing.spec(key), {one.result.key: one for one in sizes}
        # Its own last: until that is on record, the training counts as not ended.
        outputs = [
            *(given.get(one.key) or _as_its_training(one.key, result) for one in training.sizes),
            Ended(result, adapter),
        ]
        began = self.underway.end(key, sum(one.result.seconds for one in outputs)) or key in self.standing.results
        for one in outputs:
            self.standing.note(one.result, settled=True)
            self._unwritten.append(one.result)
        self.flush()
        self._display.ended(training, result)
        for size, one in zip(training.sizes, outputs, strict=False):
            self._display.made(size, one.result)
        for one in outputs:
            if began:
                self._track("trial_ended", one.result, one.adapter)
        for trial in training.outputs:
            self._maybe_end_configuration(trial.configuration)

    @_alone
    def paused(self, key: str) -> None:
        """The trial waits for its turn: it has no result, and goes on from its last checkpoint."""
        self.underway.pause(key)
        self._display.paused(self.standing.spec(key))
        for one in self.standing.spec(key).outputs:
            self._track("trial_paused", one.key)

    @_alone
    def not_promoted(self, recalled: Mapping[str, TrialResult]) -> None:
        """Nothing runs and nothing more comes: each trial that still waits ends with its last evaluation as its result.

        Args:
            recalled: such results of trials that have waited since an earlier session, by key.
        """
        notes = ["never among the best of its rivals, so it was not gone on with"]
        for key in self.standing.remaining:
            if self.underway.paused_at(key):
                result = self.underway.result(key, "stopped")
            elif key in recalled:
                self.underway.pause(key)  # in the earlier session: it has begun, so the tracker records its end
                result = recalled[key]
            else:
                result = TrialResult(key, "stopped")
            self.ended(replace(result, notes=notes))

    @_alone
    def interrupted(self) -> None:
        """The sweep stops: records so for each running trial, which stays to be run.

        The tracker marks open runs itself when the sweep is interrupted.
        """
        for key in self.underway.running:
            result = self.underway.result(key, "interrupted")
            self.underway.end(key, result.seconds)
            self.standing.note(result, settled=False)
            self._unwritten.append(result)
            self._display.ended(self.standing.spec(key), result)
        self.flush()

    @_alone
    def lost(self) -> list[str]:
        """An attempt broke off: returns the trials that were running, which will be started again from their checkpoints."""
        keys = self.underway.break_off()
        for key in keys:
            self._display.retried(self.standing.spec(key), "the attempt broke off")
        return keys

    @_alone
    def flush(self) -> bool:
        """Writes what the ledger has not taken yet; False while the disk refuses."""
        while self._unwritten:
            try:
                self._ledger.add(self._unwritten[0])
            except OSError as error:
                log.error("the ledger %s cannot be written: %s", self._ledger.path, error)
                self._display.trouble(f"{self._ledger.path} cannot be written ({error.strerror}); trying again")
                return False
            self._unwritten.pop(0)
        return True

    def _catch_up(self) -> None:
        """Tells the tracker of results that an earlier driver wrote into the ledger and did not live to pass on."""
        settled = self.standing.settled_results
        if self._tracker is None or not settled:
            return
        # Storage by URI: the driver's own copy, if it came to make one.
        copies = SweepFolder(self._ledger.path.parent).adapters
        noted = {key: str(result.facts["adapter"]) for key, result in settled.items() if "adapter" in result.facts}
        adapters = {key: copies / key / ADAPTER_FOLDER if "://" in adapter else Path(adapter) for key, adapter in noted.items()}
        self._track("settle", settled, {key: path for key, path in adapters.items() if path.is_dir()})
        for configuration in self._tracker.open_configurations:
            if self._plan.trials_of(configuration):
                self._maybe_end_configuration(configuration)
        # Seeds that the sweep has got since: what was complete waits, and is not compared with what has them.
        closed = [
            summary for summary in self.standing.summaries() if summary.configuration not in self._tracker.open_configurations
        ]
        for summary in closed:
            if 0 < summary.finished < summary.planned and not (summary.failed or summary.stopped or summary.tunes):
                content = summary.tracked() | {"status": "waiting"}
                self._track("configuration_ended", summary.configuration, summary.label, summary.parameters, content)

    def _begin(self, trial: Trial) -> None:
        counts = self._plan.counts.get(trial.configuration, {})
        self._track("trial_started", trial, None, counts.get("trainable_parameters"))

    def _maybe_end_configuration(self, configuration: str) -> None:
        if not all(self.standing.is_settled(trial.key) for trial in self._plan.trials_of(configuration)):
            return
        (summary,) = self.standing.summaries([configuration])
        self._track("configuration_ended", configuration, summary.label, summary.parameters, summary.tracked())
        for listener in self.listeners:
            listener(summary)

    def _track(self, method: str, *arguments: Any) -> None:
        if self._tracker is None:
            return
        try:
            getattr(self._tracker, method)(*arguments)
        except Exception:
            log.exception("the tracker failed in %s; the sweep goes on", method)


def _as_its_training(key: str, training: TrialResult) -> Ended:
    """How a size ended whose training has no result for it."""
    if training.status == "finished":
        return Ended(TrialResult(key, "failed", error="its training finished without this size", retryable=True))
    return Ended(replace(training, key=key, metrics={}, counts={}, seconds=0.0))

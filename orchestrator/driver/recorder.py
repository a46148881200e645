"""The one writer of a sweep's record on the driver: every event of a trial passes here, in one thread, in order.

One other thread may come in, to close the record when the driver's own is lost in Ray; `lock` keeps them apart.
The ledger hears of a result first, and only then do the tracker, the display and the searcher. What a tracker does wrong is
logged and never stops the sweep; results that the ledger cannot take (a full disk) wait and are tried again until the end.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from orchestrator.driver.display import Display
from orchestrator.driver.outcome import SweepOutcome
from orchestrator.plan.parameters import flat_parameters
from orchestrator.plan.trial import Status, TrialResult, TrialSpec
from orchestrator.record.checkpoints import ADAPTER_FOLDER
from orchestrator.record.folder import SweepFolder
from orchestrator.record.ledger import Ledger
from orchestrator.results.summary import Summary, summarize

if TYPE_CHECKING:
    from orchestrator.plan.plan import Plan

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class Tracker(Protocol):
    """What the recorder asks of `orchestrator.record.tracker.Tracker`."""

    @property
    def open_configurations(self) -> frozenset[str]: ...
    def settle(self, results: Mapping[str, TrialResult], adapters: Mapping[str, Path]) -> None: ...
    def trial_started(self, trial: TrialSpec, params: dict[str, Any]) -> None: ...
    def trial_progress(self, key: str, progress: dict[str, Any]) -> None: ...
    def trial_paused(self, key: str) -> None: ...
    def trial_ended(self, result: TrialResult, adapter: Path | None) -> None: ...
    def configuration_ended(self, configuration: str, label: str, params: dict[str, Any], summary: dict[str, Any]) -> None: ...


def _alone(method: Callable[Concatenate[Recorder, P], R]) -> Callable[Concatenate[Recorder, P], R]:
    """The method, run by one thread at a time."""

    @functools.wraps(method)
    def locked(self: Recorder, *arguments: P.args, **named: P.kwargs) -> R:
        with self.lock:
            return method(self, *arguments, **named)

    return locked


class Recorder:
    """Records what happens to the trials of a plan."""

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        display: Display,
        tracker: Tracker | None = None,
        on_configuration: Callable[[Summary], None] = lambda summary: None,
    ) -> None:
        """
        Args:
            on_configuration: hears of a configuration when the last of its trials has ended.
        """
        self.lock = threading.RLock()
        self._ledger, self._display, self._tracker = ledger, display, tracker
        self._on_configuration: Callable[[Summary], None] = lambda summary: None
        self._plan = plan
        self._specs: dict[str, TrialSpec] = {}
        self._trials_of: dict[str, list[TrialSpec]] = {}
        self._recorded = ledger.results()
        self.results: dict[str, TrialResult] = {}
        self._ended: set[str] = set()
        self._running: dict[str, dict[str, Any]] = {}
        self._waiting: dict[str, dict[str, Any]] = {}
        self._since: dict[str, float] = {}
        self._spent: dict[str, float] = {}
        self._unwritten: list[TrialResult] = []
        self.add(plan.trials)
        self._catch_up()
        # Not before: what is on record already is not news, and whoever listens is still being made.
        self._on_configuration = on_configuration

    def add(self, trials: Iterable[TrialSpec]) -> None:
        """Takes in trials that are new to the plan, with the results that are on record for them."""
        given_up = set()
        for trial in trials:
            if trial.key in self._specs:
                continue
            self._specs[trial.key] = trial
            self._trials_of.setdefault(trial.configuration, []).append(trial)
            result = self._recorded.get(trial.key)
            if result is None:
                continue
            self.results[trial.key] = result
            if result.settled:
                self._ended.add(trial.key)
                self._display.ended(trial, result, earlier=True)
            if result.status == "stopped":
                given_up.add(trial.configuration)
        for configuration in given_up:
            self._spare(configuration)

    def grow(self, trials: Iterable[TrialSpec]) -> None:
        """Takes in trials that the plan got beyond those it was expected to have."""
        self.add(trials)
        self._display.expect(len(self._plan.trials))

    def is_settled(self, key: str) -> bool:
        """Whether the trial needs no run: a result that holds is on record, or it ended in this run."""
        return key in self._ended

    @property
    def remaining(self) -> list[str]:
        """Keys of trials that are still to run, in the plan's order."""
        return [key for key in self._specs if key not in self._ended]

    @property
    def running(self) -> list[str]:
        """Keys of trials that run."""
        return list(self._running)

    @property
    def seconds(self) -> dict[str, float]:
        """What trials have taken so far, by key; their present runs are not counted."""
        return self._spent | {key: result.seconds for key, result in self.results.items()}

    def step_of(self, key: str) -> int:
        """The last step that a running trial has reported; 0 before its first report."""
        return int(self._running.get(key, {}).get("step", 0))

    def spec(self, key: str) -> TrialSpec:
        return self._specs[key]

    @_alone
    def started(self, key: str) -> None:
        if key in self._ended:
            return  # spared after Tune had asked for it
        spec = self._specs[key]
        self._running.setdefault(key, {})
        self._since.setdefault(key, time.monotonic())
        self._display.started(spec)
        self._track("trial_started", spec, flat_parameters(spec.run))

    @_alone
    def progressed(self, key: str, progress: dict[str, Any]) -> None:
        self._running[key] = progress
        self._display.progressed(self._specs[key], progress)
        self._track("trial_progress", key, progress)

    @_alone
    def retried(self, key: str, why: str) -> None:
        log.warning("trial %s is started again: %s", key, why)
        self._display.retried(self._specs[key], why)

    @_alone
    def ended(self, result: TrialResult, adapter: Path | None = None) -> None:
        """A trial is over for this run: writes that down before anyone hears of it."""
        if result.key in self._ended:
            return
        spec = self._specs[result.key]
        began = result.key in self._running or result.key in self._waiting or result.key in self.results
        self._running.pop(result.key, None)
        self._waiting.pop(result.key, None)
        self._since.pop(result.key, None)
        self.results[result.key] = result
        self._ended.add(result.key)
        self._unwritten.append(result)
        self.flush()
        self._display.ended(spec, result)
        if began:
            self._track("trial_ended", result, adapter)
        self._maybe_end_configuration(spec.configuration)

    @_alone
    def stopped(self, key: str) -> None:
        """A scheduler stopped the trial: its last evaluation is its result. Its configuration's other trials are spared."""
        last = self._running.get(key, {})
        self.ended(self._unfinished(key, "stopped", last))
        self._spare(self._specs[key].configuration)

    @_alone
    def paused(self, key: str) -> None:
        """The trial waits for its turn: it has no result, and goes on from its last checkpoint."""
        self._waiting[key] = self._running.pop(key, {})
        self._spent[key] = self._taken(key)
        self._display.paused(self._specs[key])
        self._track("trial_paused", key)

    @_alone
    def not_promoted(self, recalled: Mapping[str, TrialResult]) -> None:
        """Nothing runs and nothing more comes: what still waits is over, with its last evaluation as its result.

        Args:
            recalled: such results of what waits since an earlier session.
        """
        for key in self.remaining:
            result = TrialResult(key, "stopped")
            if key in recalled:
                self._waiting.setdefault(key, {})
                result = recalled[key]
            if last := self._waiting.get(key):
                result = self._unfinished(key, "stopped", last)
            self.ended(replace(result, notes=["never among the best of its rivals, so it was not gone on with"]))

    @_alone
    def interrupted(self) -> list[str]:
        """The sweep stops: says so of each running trial, and returns their keys. They stay to be run.

        The tracker marks what is open itself when it hears that the sweep was interrupted.
        """
        keys = list(self._running)
        for key in keys:
            last = self._running.pop(key)
            result = self._unfinished(key, "interrupted", last)
            self.results[key] = result
            self._unwritten.append(result)
            self._display.ended(self._specs[key], result)
        self.flush()
        return keys

    @_alone
    def lost(self) -> list[str]:
        """An attempt broke off: the trials that were running, which will be started again from their checkpoints."""
        keys = list(self._running)
        for key in keys:
            self._running.pop(key)
            self._display.retried(self._specs[key], "the attempt broke off")
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

    def summaries(self, configurations: Sequence[str] | None = None) -> list[Summary]:
        """The plan's configurations as their trials stand now (all, or those of the given ids)."""
        chosen = self._trials_of if configurations is None else configurations
        trials = [trial for name in chosen for trial in self._trials_of[name]]
        return summarize(trials, self.results, {name: self._plan.configuration(name).known for name in chosen})

    def outcome(self, seconds: float, trouble: str | None, signal: int | None = None, spent: str | None = None) -> SweepOutcome:
        """How the plan stands, after a run of `seconds` that ended early for `trouble` if it did, or by its budget."""
        by_status: dict[str, list[str]] = {"finished": [], "stopped": [], "failed": [], "interrupted": [], "missing": []}
        for key in self._specs:
            by_status[self.results[key].status if key in self.results else "missing"].append(key)
        return SweepOutcome(
            results=dict(self.results),
            seconds=seconds,
            trouble=trouble,
            signal=signal,
            spent=spent,
            finished=by_status["finished"],
            stopped=by_status["stopped"],
            failed=by_status["failed"],
            interrupted=by_status["interrupted"],
            missing=by_status["missing"],
        )

    def _unfinished(self, key: str, status: Status, last: Mapping[str, Any]) -> TrialResult:
        """The result of a trial that has none of its own: its last evaluation, and the time it took."""
        metrics, steps = dict(last.get("metrics", {})), int(last.get("step", 0))
        return TrialResult(key, status, metrics=metrics, steps=steps, seconds=self._taken(key))

    def _taken(self, key: str) -> float:
        """Seconds of a trial's runs, the present one included, which ends with that."""
        began = self._since.pop(key, None)
        return self.seconds.get(key, 0.0) + (time.monotonic() - began if began is not None else 0.0)

    def _catch_up(self) -> None:
        """Tells the tracker what the driver before wrote into the ledger and died before saying."""
        settled = {key: self.results[key] for key in self._ended}
        if self._tracker is None or not settled:
            return
        # Storage by URI: the driver's own copy, if it came to make one.
        copies = SweepFolder(self._ledger.path.parent).adapters
        noted = {key: str(result.facts["adapter"]) for key, result in settled.items() if "adapter" in result.facts}
        adapters = {key: copies / key / ADAPTER_FOLDER if "://" in adapter else Path(adapter) for key, adapter in noted.items()}
        self._track("settle", settled, {key: path for key, path in adapters.items() if path.is_dir()})
        for configuration in self._tracker.open_configurations:
            if configuration in self._trials_of:
                self._maybe_end_configuration(configuration)

    def _spare(self, configuration: str) -> None:
        """Ends the trials of a stopped configuration that do not run; those that do, the scheduler stops at their next report.

        What they would cost is better spent: without the stopped trial the configuration cannot be complete any more.
        """
        for trial in self._trials_of[configuration]:
            if trial.key in self._ended or trial.key in self._running:
                continue
            before = self.results.get(trial.key)
            result = replace(before, status="stopped") if before else TrialResult(trial.key, "stopped")
            note = "spared: another trial of its configuration was stopped"
            self.ended(replace(result, notes=[note]))

    def _maybe_end_configuration(self, configuration: str) -> None:
        if any(trial.key not in self._ended for trial in self._trials_of[configuration]):
            return
        (summary,) = self.summaries([configuration])
        self._track("configuration_ended", configuration, summary.label, summary.parameters, summary.tracked())
        self._on_configuration(summary)

    def _track(self, method: str, *arguments: Any) -> None:
        if self._tracker is None:
            return
        try:
            getattr(self._tracker, method)(*arguments)
        except Exception:
            log.exception("the tracker failed in %s; the sweep goes on", method)


def with_facts(result: TrialResult, **facts: Any) -> TrialResult:
    """The same result with more facts."""
    return replace(result, facts={**result.facts, **facts})

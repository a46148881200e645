"""What Tune asks and tells the driver in one attempt. This module only translates; the driver decides.

    Jobs       Tune has room             -->  driver.next_job  -->  the job's training names Tune's trial
    Judge      a worker reports          -->  driver.receive  -->  the trial continues, or waits
    Recording  starts, deaths, ends      -->  driver.record_start, record_leave, record_failure, show_retry
    Stopper    may the attempt continue?

For Tune a trial that waits has ended: its checkpoint stays, and the driver submits it again when it is its turn. It then
continues from there, as after a crash.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from craft.results import Leave
from craft.words import format_duration
from orchestrator.driver.driver import Driver
from orchestrator.plan.trial import Job
from orchestrator.tune import private
from orchestrator.tune.crew import INSIDE, resources_of
from orchestrator.worker import crash
from orchestrator.worker.surroundings import stderr_left

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
LONGEST_TICK = 5.0
"""No more seconds of silence are counted for one tick: a driver that was stopped itself has missed reports that wait for it."""
HEARTBEATS = 2
"""The driver ends a process after so many heartbeats of silence. A process that can still run has ended itself after one."""
START_SECONDS = 600.0
"""The least silence after which a process that has reported nothing yet is ended: a busy machine takes minutes to start one."""
NO_CHECKPOINT = -1
"""The number before the first checkpoint of a Tune trial."""


class _NotPickled:
    """Ray pickles its whole configuration into a file that this project never reads; open files must not be in it."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Jobs(_NotPickled, Searcher):
    """Gives Tune one job after another; if it is given, `at_once` are out at most. Ray saves no state of this class: a resumed
    sweep knows everything from its log."""

    def __init__(self, driver: Driver, at_once: int | None, only: Sequence[str] = ()) -> None:
        super().__init__()
        self._driver, self._at_once, self._only = driver, at_once, only
        self._out: set[str] = set()

    def suggest(self, trial_id: str) -> Any:
        # The return type is Any: Ray's own signature leaves out Searcher.FINISHED.
        if self._at_once is not None and len(self._out) >= self._at_once:
            return None
        job = self._driver.next_job(self._only or None)
        if job is not None:
            self._out.add(trial_id)
            return config_of(job)
        if self._out:
            return None
        if self._only or self._driver.is_over or self._driver.is_ending:
            return Searcher.FINISHED
        self._driver.tick()  # Tune takes no step while it has no trial and waits for one
        return None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._out.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: see the class."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Jobs:
        return self


class Judge(_NotPickled, FIFOScheduler):
    """Hands each report to the driver, and takes jobs back that must wait or are not wanted any more.

    A job that runs is taken back at a report: its thread then waits for Tune, so that its process can be used again."""

    def __init__(self, driver: Driver, attempt: int) -> None:
        super().__init__()
        self._driver, self._attempt = driver, attempt
        self._checkpoints: dict[str, int] = {}

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        key = trial.config["key"]
        if key in self._checkpoints:
            private.continue_folder(trial, self._checkpoints[key])
        self._checkpoints.setdefault(key, NO_CHECKPOINT)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        key, checkpoint = trial.config["key"], result.get("checkpoint_dir_name")
        if number := re.fullmatch(r"checkpoint_(\d+)", str(checkpoint)):
            self._checkpoints[key] = int(number[1])
        message = {name: json.loads(result[name]) for name in INSIDE if name in result}
        must_leave = self._driver.receive(self._attempt, key, message, checkpoint)
        return TrialScheduler.STOP if must_leave else TrialScheduler.CONTINUE

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        for trial in [*tune_controller.get_live_trials()]:
            key = trial.config["key"]
            if trial.status == trial.PENDING and (self._driver.must_leave(key) or key not in self._driver.queue.submitted):
                tune_controller.stop_trial(trial)
        return super().choose_trial_to_run(tune_controller)


class Recording(_NotPickled, tune.Callback):
    """Tells the driver what Tune sees of the trials of an attempt, and counts their failures.

    Tune itself starts a trial again without end: it would count before anybody can say that the machine was at fault.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._next_tick = 0.0
        self._failures: Counter[str] = Counter()
        self._lost_at: dict[str, int] = {}
        self._last_tick, self._silence = time.monotonic(), defaultdict[str, float](float)
        self._silent: dict[str, str] = {}
        self._reporting: set[str] = set()

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._silence.pop(trial.config["key"], None)
        self._reporting.discard(trial.config["key"])
        self._driver.record_start(trial.config["key"])

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **info: Any) -> None:
        self._silence.pop(trial.config["key"], None)
        self._reporting.add(trial.config["key"])

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        if not self._driver.stopping():
            self._driver.record_leave(trial.config["key"])

    def on_trial_recover(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        key, error = trial.config["key"], private.error_of(trial)
        if self._driver.stopping():
            return  # what stops the sweep may have ended the trial's process too: it stays one that was running
        self._failures[key] += not self._is_excused(key, error)
        if self._failures[key] > self._driver.options.max_failures:
            self._fail(trial, error)
        else:
            self._driver.show_retry(key, self._why(key, error))

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """Records the failure of a trial that could not even start."""
        if not self._driver.stopping():
            self._failures[trial.config["key"]] += 1
            self._fail(trial, private.error_of(trial))

    def on_step_begin(self, iteration: int, trials: list, **info: Any) -> None:
        clock_seconds = time.monotonic()
        if clock_seconds >= self._next_tick:
            self._next_tick = clock_seconds + TICK_SECONDS
            self._end_silent(trials, min(clock_seconds - self._last_tick, LONGEST_TICK))
            self._last_tick = clock_seconds
            self._driver.tick()

    def _end_silent(self, trials: Sequence[Any], seconds: float) -> None:
        """Ends the processes that are stopped for good (a frozen container, a debugger), so that they cannot end themselves.

        `seconds` have passed since the last call.
        """
        for trial in trials:
            if trial.status != trial.RUNNING:
                continue
            key, limit = trial.config["key"], HEARTBEATS * 60 * resources_of(trial.config).heartbeat_minutes
            self._silence[key] += seconds
            if limit and key not in self._reporting:
                limit = max(limit, START_SECONDS)
            if limit and self._silence[key] > limit and private.end_process(trial):
                self._silent[key] = f"no sign of life for {format_duration(limit)}, so its process was ended"
                del self._silence[key]

    def _is_excused(self, key: str, error: BaseException | None) -> bool:
        """Returns whether a machine was lost or taken away, which is no failure of a trial that gets further.

        One that never does may be what ends its machines, unless it left one that was drained.
        """
        if isinstance(getattr(error, "cause", None), Leave) or getattr(error, "preempted", False):
            return True
        report = self._driver.state.entries[key].report
        step = report.step if report else 0
        further = crash.machine_lost(error) and step > self._lost_at.get(key, -1)
        if further:
            self._lost_at[key] = step
        return further

    def _fail(self, trial: Any, error: BaseException | None) -> None:
        key, by_itself = trial.config["key"], isinstance(getattr(error, "cause", None), Exception)
        self._driver.record_failure(key, self._why(key, error), tries=self._failures.pop(key), by_itself=by_itself)

    def _why(self, key: str, error: BaseException | None) -> str:
        return self._silent.pop(key, None) or crash.describe(error, stderr_left(self._driver.folder.scratch, key))


class Stopper(_NotPickled, tune.Stopper):
    """Ends an attempt when the driver ends the session."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._driver.is_ending


def config_of(job: Job) -> dict[str, Any]:
    """Returns the configuration by which Ray carries a job: texts, so that Ray has nothing to resolve in it."""
    resources = job.training.resources.model_dump_json(exclude_defaults=True)
    return {"key": job.key, "job": json.dumps(job.to_json()), "resources": resources}


def key_of(trial: Any) -> str:
    key: str = trial.config["key"]
    return key

"""What Tune calls in one attempt: the trial itself on its worker, and on the driver the callbacks.

    worker   trainable  -->  work(key, trial, report)  -->  tune.report(metrics, checkpoint)
    driver   Recording  <--  results, deaths, ends          Stopper  <--  may the attempt go on?

This module only translates Tune's events; the recorder and the other parts of the session decide.
"""

from __future__ import annotations

import json
import logging
import posixpath
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import tune

from craft.results import Leave
from orchestrator.plan.trial import Ended, Trial
from orchestrator.record.checkpoints import ADAPTER_FOLDER, SIZES_FOLDER, local_adapter, within
from orchestrator.review.model_card import add_card
from orchestrator.state.entry import TrialResult
from orchestrator.tune.assembly import Parts
from orchestrator.tune.cluster import share
from orchestrator.worker import crash
from orchestrator.worker.crash import TAKEN
from orchestrator.worker.gpus import keep_to_share
from orchestrator.worker.worker import WorkerSettings, stderr_left, work

log = logging.getLogger(__name__)


class Recording(tune.Callback):
    """Passes what Tune sees of the trials of an attempt to the recorder."""

    def __init__(self, parts: Parts, attempt: int) -> None:
        self._parts, self._recorder, self._attempt = parts, parts.recorder, attempt
        self._next_tick = 0.0
        self._lost_at: dict[str, int] = {}

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._recorder.started(trial.config["key"])

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **info: Any) -> None:
        key = trial.config["key"]
        if "outlook" in result:
            self._recorder.looked(key, json.loads(result["outlook"]))
            return
        progress = json.loads(result["progress"]) if "progress" in result else {}
        if not progress.get("again"):  # a resumed trial tells what it had before, also where nothing can be trained
            self._parts.common_cause.works()
        if "result" in result:
            sizes = [TrialResult.from_json(one) for one in json.loads(result.get("sizes", "[]"))]
            self._end(TrialResult.from_json(json.loads(result["result"])), sizes, result.get("checkpoint_dir_name"))
        elif "progress" in result and not self._recorder.standing.is_settled(key):
            self._recorder.progressed(key, progress)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        # One with a result is on record already; one without waits.
        key = trial.config["key"]
        if not self._parts.stop.asked and not self._recorder.standing.is_settled(key):
            self._recorder.paused(key)

    def on_trial_recover(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        if not self._parts.stop.asked:
            self._recorder.retried(trial.config["key"], self._why(trial))
        self._excuse(trial)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        if self._parts.stop.asked:
            return  # what stops the sweep may have ended the trial's process too: it stays one that was running
        key, tries = trial.config["key"], self._parts.options.max_failures + 1
        times, why = f" ({tries} times)" if tries > 1 else "", self._why(trial)
        self._recorder.ended(TrialResult(key, "failed", error=f"{why}{times}", retryable=True))
        if isinstance(getattr(_error_of(trial), "cause", None), Exception):  # what the trial itself said, and no lost process
            self._parts.common_cause.failed(why, self._recorder.underway.running_since)

    def on_step_begin(self, iteration: int, trials: list, **info: Any) -> None:
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + 0.25
            self._recorder.flush()
            self._parts.watch.check()
            self._recorder.tell()
            self._parts.display.tick()

    def __getstate__(self) -> dict[str, Any]:
        # Ray pickles its whole configuration into a file that this project never reads; open files must not be in it.
        return {}

    def _end(self, result: TrialResult, sizes: list[TrialResult], checkpoint: str | None) -> None:
        if result.status != "finished" or checkpoint is None:
            self._recorder.ended(result)
            return
        there = (f"attempt-{self._attempt}", result.key, checkpoint)
        kept = [self._kept(one, *there, SIZES_FOLDER, one.key) for one in sizes]
        whole = self._kept(result, *there)
        self._recorder.ended(whole.result, whole.adapter, kept)

    def _kept(self, result: TrialResult, *parts: str) -> Ended:
        """A result with its adapter, which lies in the folder `parts` on storage."""
        storage, place, adapter = self._parts.storage, (*parts, ADAPTER_FOLDER), None
        try:
            adapter = local_adapter(storage, posixpath.join(*place), self._parts.folder.adapters / result.key)
        except OSError:
            log.exception("the adapter of trial %s cannot be read back from %s; its result counts", result.key, storage)
        try:
            if adapter is not None:
                add_card(adapter, self._parts.folder.path.name, self._recorder.standing.spec(result.key), result)
        except Exception:  # an adapter without a card is as good
            log.exception("the adapter of trial %s has no model card", result.key)
        return Ended(result.with_facts(adapter=within(storage, *place)), adapter)

    def _excuse(self, trial: Any) -> None:
        """A machine that is lost or taken away is no failure of the trial, so long as the trial gets on in between.

        One that never gets on may be what ends its machines, unless it left one that was drained. Ray itself excuses only what
        its autoscaler announced.
        """
        key, error = trial.config["key"], _error_of(trial)
        step = self._recorder.underway.step_of(key)
        if isinstance(getattr(error, "cause", None), Leave):
            trial.run_metadata.num_failures -= 1
        elif crash.machine_lost(error) and step > self._lost_at.get(key, -1):
            self._lost_at[key] = step
            if not getattr(error, "preempted", False):
                trial.run_metadata.num_failures -= 1

    def _why(self, trial: Any) -> str:
        return crash.describe(_error_of(trial), stderr_left(self._parts.folder.scratch, trial.config["key"]))


class Stopper(tune.Stopper):
    """Ends an attempt when somebody asked for it, or the budget is used up."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._parts.ending

    def __getstate__(self) -> dict[str, Any]:
        return {}


def _error_of(trial: Any) -> BaseException | None:
    """What Tune noted of a trial's failure a moment ago.

    From the file it made on this machine: `Trial.get_pickled_error` asks the sweep's storage, which may be what failed, gets
    the file late, and may be written by others.
    """
    try:
        with Path(trial.pickled_error_file).open("rb") as file:
            return ray.cloudpickle.load(file)
    except Exception:  # no file, or an error of a kind that does not come back out of one
        return None


def trainable(settings: WorkerSettings) -> Callable[[dict[str, Any]], None]:
    def trial(config: dict[str, Any]) -> None:
        def report(metrics: dict[str, Any], folder: Path | None) -> None:
            tune.report(as_text(metrics), checkpoint=tune.Checkpoint.from_directory(str(folder)) if folder else None)

        logging.getLogger("ray").setLevel(logging.WARNING)
        held = _held_to(settings, config["trial"])
        keep_to_share(held.gpu, ray.get_gpu_ids())
        with drain_notice() as must_leave:
            work(config["key"], config["trial"], held, report, must_leave)

    return trial


def as_text(metrics: dict[str, Any]) -> dict[str, Any]:
    """A report of `orchestrator.worker.worker` as Tune gets it: the metrics, and the parts with an inside as JSON.

    Of every number in a report, also inside others, Tune keeps statistics for each trial, and writes them into snapshots of the
    experiment. `total_steps` stands at the top, where schedulers look.
    """
    inside = ("progress", "result", "sizes", "outlook")
    shown = {name: json.dumps(value) if name in inside else value for name, value in metrics.items()}
    return shown | ({"total_steps": metrics["progress"]["total_steps"]} if "progress" in metrics else {})


def share_of(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """What Tune places a trial by."""
    return share(Trial.from_json(json.loads(config["trial"])).resources)


def _held_to(settings: WorkerSettings, trial: str) -> WorkerSettings:
    """The settings with what the trial itself gets; `work` says what is wrong with one that cannot be read."""
    try:
        resources = Trial.from_json(json.loads(trial)).resources
    except ValueError:
        return settings
    return replace(
        settings,
        threads=max(1, int(resources.cpu)),
        heartbeat_seconds=resources.heartbeat_minutes * 60 or None,
        memory_bytes=resources.memory,
        gpu=resources.gpu,
    )


def key_of(trial: Any) -> str:
    return trial.config["key"]


POLL_SECONDS = 2.0
ANSWER_SECONDS = 10.0


@contextmanager
def drain_notice() -> Iterator[Callable[[], str | None]]:
    """Gives a function that says at once why the trial of this process has to leave its machine, or None while it may stay.

    The head knows which machines drain: `ray drain-node`, an autoscaler, or a SIGTERM to `ray start --block`, by which Slurm
    and Kubernetes end a machine's processes. It is asked in a thread of its own: training never waits for it, and a head that
    does not answer says nothing.
    """
    over, drained = threading.Event(), threading.Event()
    machine = ray.get_runtime_context().get_node_id()
    client: Any = ray._private.worker.global_worker.gcs_client  # type: ignore[attr-defined]

    def watch() -> None:
        while not over.is_set() and not drained.is_set():
            try:
                if machine in client.get_draining_nodes(timeout=ANSWER_SECONDS):
                    drained.set()
            except Exception as error:  # of many kinds while the head is away
                log.info("the cluster's head does not say which machines are drained: %s", error)
            over.wait(POLL_SECONDS)

    threading.Thread(target=watch, name="drain-notice", daemon=True).start()
    try:
        yield lambda: TAKEN if drained.is_set() else None
    finally:
        over.set()

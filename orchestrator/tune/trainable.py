"""The job itself on its worker: `trainable` gives Tune the function that runs it.

worker   trainable  -->  work(key, job, report)  -->  tune.report(metrics, checkpoint)
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import tune

from orchestrator.sweepfile.resources import Resources
from orchestrator.tune.cluster import share
from orchestrator.worker.crash import TAKEN
from orchestrator.worker.gpus import keep_to_share
from orchestrator.worker.worker import WorkerSettings, work

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
ANSWER_SECONDS = 10.0


def trainable(settings: WorkerSettings) -> Callable[[dict[str, Any]], None]:
    """Returns the function that runs a job, given `config_of(job)`, on a worker."""

    def run(config: dict[str, Any]) -> None:
        def report(metrics: dict[str, Any], folder: Path | None) -> None:
            tune.report(as_text(metrics), checkpoint=tune.Checkpoint.from_directory(str(folder)) if folder else None)

        logging.getLogger("ray").setLevel(logging.WARNING)
        shared = _with_share(settings, _resources(config))
        keep_to_share(shared.gpu, ray.get_gpu_ids())
        with drain_notice() as must_leave:
            work(config["key"], config["job"], shared, report, must_leave)

    return run


def as_text(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns a report of `orchestrator.worker.worker` as Tune gets it: the parts with an inside as JSON.

    Of every number in a report, also inside others, Tune keeps statistics for each trial, and writes them into snapshots of the
    experiment.
    """
    inside = ("progress", "results", "outlook")
    return {name: json.dumps(value) if name in inside else value for name, value in metrics.items()}


def share_of(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    """Returns what Tune places a job by."""
    return share(_resources(config))


def _resources(config: dict[str, Any]) -> Resources:
    return Resources.model_validate_json(config["resources"])


def _with_share(settings: WorkerSettings, resources: Resources) -> WorkerSettings:
    return replace(
        settings,
        threads=max(1, int(resources.cpu)),
        heartbeat_seconds=resources.heartbeat_minutes * 60 or None,
        memory_bytes=resources.memory,
        gpu=resources.gpu,
    )


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

"""The processes of a trial on Ray: the trial's own actor is the first, the others are its child actors in the trial's bundles.

    bundle 0    Tune's actor      gathered(...)  -->  WorkerSettings.crew  -->  work(...)
    bundle i    _Follower         place(), then follow(part) for each try; ends with the trial

Ray ends a child with the actor that made it, and all of them with the trial's placement group. `trainable` gives Tune the
function that the first one runs.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ray
from ray import tune
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from craft.plugins import load_inherited
from craft.spec import RunSpec
from orchestrator.plan.trial import Job
from orchestrator.sweepfile.resources import Resources
from orchestrator.tune import private
from orchestrator.tune.cluster import share
from orchestrator.worker import crash
from orchestrator.worker.crash import TAKEN
from orchestrator.worker.share import keep_to_share
from orchestrator.worker.surroundings import WorkerSettings, follow_first, process_name, stderr_left
from orchestrator.worker.worker import work

if TYPE_CHECKING:
    from craft.trainer.together import Part


log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
POLL_SECONDS = 2.0
ANSWER_SECONDS = 10.0

Place = tuple[str, list[Any]]
"""A machine by Ray's id, and the GPUs there by Ray's names."""


class _Follower:
    """One of the processes that follow the first."""

    def place(self) -> Place:
        return _place()

    def follow(self, key: str, part: Part, settings: WorkerSettings, gpus: list[Any]) -> None:
        load_inherited()
        keep_to_share(settings.gpu, gpus)
        try:
            with drain_notice() as why_leave:
                follow_first(key, part, settings, why_leave)
        except Exception:
            os._exit(1)  # closes its connections


class _Actors:
    """`craft.trainer.together.Crew` of child actors in the bundles of a trial."""

    def __init__(self, key: str, settings: WorkerSettings, resources: Resources) -> None:
        self.followers = resources.count - 1
        self._key, self._settings, self._resources = key, settings, resources
        self._group: Any = ray.util.get_current_placement_group()
        self._actors: list[Any] = []
        self.places: list[Place] = []
        self._make()

    def _make(self) -> None:
        options, remote = _options(self._resources), cast(Any, ray.remote(_Follower))
        placed = [PlacementGroupSchedulingStrategy(self._group, bundle) for bundle in range(1, self.followers + 1)]
        self._actors = [remote.options(**options, scheduling_strategy=bundle).remote() for bundle in placed]
        self.places = [_place(), *ray.get([actor.place.remote() for actor in self._actors])]

    @property
    def host(self) -> str:
        return LOOPBACK if len({machine for machine, _ in self.places}) == 1 else ray.util.get_node_ip_address()

    def start(self, parts: Sequence[Part]) -> list[Future[None]]:
        if not self._actors:
            self._make()
        futures = []
        for part, actor in zip(parts, self._actors, strict=False):
            gpus = _seen(self.places, part.rank)
            settings = replace(self._settings, visible=len(gpus))
            futures.append(actor.follow.remote(self._key, part, settings, gpus).future())
        return futures

    def explain(self, rank: int, death: BaseException) -> str:
        scratch = self._settings.scratch
        return crash.describe(death, stderr_left(Path(scratch), process_name(self._key, rank)) if scratch else None)

    def stop(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []


@contextmanager
def gathered(key: str, settings: WorkerSettings, resources: Resources) -> Iterator[WorkerSettings]:
    """Starts the other processes of a trial, and ends them. Yields the settings with what each process of the trial has, and
    with its crew if there are several."""
    settings = replace(
        settings,
        threads=max(1, int(resources.cpu)),
        heartbeat_seconds=resources.heartbeat_minutes * 60 or None,
        memory_bytes=resources.memory,
        gpu=resources.gpu / resources.count,
    )
    if resources.count == 1:
        keep_to_share(settings.gpu, ray.get_gpu_ids())
        yield settings
        return
    crew = _Actors(key, settings, resources)
    try:
        seen = _seen(crew.places, 0)
        keep_to_share(settings.gpu, seen)
        yield replace(settings, visible=len(seen), crew=crew)
    finally:
        crew.stop()


def try_steps(job: Job, shared: Callable[[RunSpec], AbstractContextManager[None]] | None, timeout_s: float) -> str | None:
    """Runs a short job in the processes of its trial on the joined cluster. Returns why it failed, or None."""
    resources = job.training.resources
    factory = share(resources)
    group = ray.util.placement_group(factory.bundles, factory.strategy)
    try:
        if not group.wait(timeout_s):
            return f"no machine had room for {resources.describe()} within {timeout_s:g} s"
        placed = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
        remote: Any = ray.remote(max_retries=0)(_run_alone)
        task = remote.options(**_options(resources), scheduling_strategy=placed).remote(job, shared)
        reason: str | None = ray.get(task, timeout=timeout_s)
        return reason
    except (ray.exceptions.RayError, TimeoutError) as error:
        return crash.describe(error)
    finally:
        ray.util.remove_placement_group(group)


def _run_alone(job: Job, shared: Callable[[RunSpec], AbstractContextManager[None]] | None) -> str | None:
    reports: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        gathered(job.key, WorkerSettings(folder, None, 1, shared=shared), job.training.resources) as settings,
    ):
        work(job.key, json.dumps(job.to_json()), settings, lambda metrics, _folder: reports.append(metrics))
    error: str | None = reports[-1]["results"][0]["error"]
    return error


def _options(resources: Resources) -> dict[str, Any]:
    custom = dict(resources.asked)
    named = {"num_cpus": custom.pop("CPU"), "num_gpus": custom.pop("GPU", 0), "memory": custom.pop("memory", None)}
    return {**named, "resources": custom}


def _place() -> Place:
    return ray.get_runtime_context().get_node_id(), [*ray.get_gpu_ids()]


def _seen(places: list[Place], rank: int) -> list[Any]:
    """Returns the GPUs that a process is to see: its own first, then those of the processes on its machine.

    NCCL reaches only GPUs that are visible directly, and `layers` puts layers on all of them.
    """
    host, own_gpus = places[rank]
    return [*own_gpus, *(gpu for other, (place, gpus) in enumerate(places) for gpu in gpus if place == host and other != rank)]


@contextmanager
def drain_notice() -> Iterator[Callable[[], str | None]]:
    """Gives a function that says at once why the trial of this process has to leave its machine, or None while it may stay.

    The head knows which machines drain: `ray drain-node`, an autoscaler, or a SIGTERM to `ray start --block`, by which Slurm
    and Kubernetes end a machine's processes. It is asked in a thread of its own: training never waits for it, and a head that
    does not answer says nothing.
    """
    over, drained = threading.Event(), threading.Event()
    machine = ray.get_runtime_context().get_node_id()

    def watch() -> None:
        while not over.is_set() and not drained.is_set():
            try:
                if private.drains(machine, ANSWER_SECONDS):
                    drained.set()
            except Exception as error:  # of many kinds while the head is away
                log.info("the cluster's head does not say which machines are drained: %s", error)
            over.wait(POLL_SECONDS)

    threading.Thread(target=watch, name="drain-notice", daemon=True).start()
    try:
        yield lambda: TAKEN if drained.is_set() else None
    finally:
        over.set()


INSIDE = ("progress", "results", "outlook")
"""The parts of a report with an inside, which Tune gets as JSON."""


def trainable(settings: WorkerSettings) -> Callable[[dict[str, Any]], None]:
    """Returns the function that runs a job, given `config_of(job)`, on a worker."""

    def run(config: dict[str, Any]) -> None:
        def report(metrics: dict[str, Any], folder: Path | None) -> None:
            # Of every number in it, also inside others, Tune keeps statistics, and writes them into its snapshots.
            message = {name: json.dumps(value) if name in INSIDE else value for name, value in metrics.items()}
            tune.report(message, checkpoint=tune.Checkpoint.from_directory(str(folder)) if folder else None)

        logging.getLogger("ray").setLevel(logging.WARNING)
        with gathered(config["key"], settings, resources_of(config)) as shared, drain_notice() as why_leave:
            work(config["key"], config["job"], shared, report, why_leave)

    return run


def share_of(config: dict[str, Any]) -> tune.PlacementGroupFactory:
    return share(resources_of(config))


def resources_of(config: dict[str, Any]) -> Resources:
    return Resources.model_validate_json(config["resources"])

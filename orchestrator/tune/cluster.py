"""Ray's machines: joined, measured, asked and left.

With no address a cluster of this machine alone is started, and ends with the driver; with one, a running cluster is joined.
Its own processes can die while the driver lives (a SIGTERM to the whole process group takes them all); the driver then waits
in Ray's C++ until that ends it, as it does where a joined cluster's head is lost. `Cluster.broken` is therefore asked
from another thread.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from craft import plugins
from orchestrator.plan.ways import Gpu
from orchestrator.record.options import check_answers, check_socket_room
from orchestrator.sweepfile.resources import Resources, words_of
from orchestrator.tools.quiet import log_to_root
from orchestrator.tune import private
from orchestrator.worker.crash import describe, read_tail
from orchestrator.worker.share import keep_to_share, require_gpu

DRIVER_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Of a driver that `ray job submit` started, with an environment of its own: both hold, even where they name the same.
    "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
    # The monitor kills a worker, perhaps an innocent one, with an error that ends the whole of fit().
    "RAY_memory_monitor_refresh_ms": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "30",
    # Tune's snapshots are never read: a resume reads the sweep's log.
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
PATIENT_ENVIRONMENT = {
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    "RAY_gcs_server_port_wait_time_s": "300",
    "RAY_health_check_failure_threshold": "10",
    "RAY_health_check_initial_delay_ms": "60000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_worker_register_timeout_seconds": "600",
}
"""For this machine's own cluster. On a busy machine Ray's processes answer late, and by Ray's own limits of 10 to 60 s they
count as dead: the raylet then ends itself, and all trials with it."""
WORKER_ENVIRONMENT = {"RAY_CHDIR_TO_TRIAL_DIR": "0", "TUNE_FUNCTION_THREAD_TIMEOUT_S": "30", "TOKENIZERS_PARALLELISM": "false"}
PASSED_ON = ("HF_HUB_OFFLINE", "HF_HOME", "CRAFT_CACHE_DIR")
OBJECT_STORE_BYTES = 100 * 2**20
VITAL = ("gcs_server", "raylet")
FATAL_LINE = re.compile(r"^\[[^]]+ [CE] \d+ \d+\] \(\w+\) \S+ +(.+)$", re.MULTILINE)
ASK_SECONDS = 2.0
JOIN_SECONDS = 120.0
HEAD_SECONDS = 25.0
"""How long a joined cluster's head may be silent before its driver counts as hanging."""


class Cluster:
    """A cluster while it is joined; `machines` are what each of its machines had when it was."""

    def __init__(self, started_here: bool) -> None:
        self.machines = machines()
        self._node = private.own_node() if started_here else None
        self._head = None if started_here else ray.get_runtime_context().gcs_address
        self._asked = self._answered = time.monotonic()
        self._broken: str | None = None

    @property
    def broken(self) -> str | None:
        """Why the cluster cannot be used any more; None while it can. Any thread may ask.

        This machine's own: one of the processes it cannot live without has died. Another: its head has not answered for a
        while. One that keeps its state may come back; Ray would end the driver after a minute.
        """
        if self._node is not None and self._broken is None:
            logs, dead = Path(self._node.get_session_dir_path(), "logs"), self._node.dead_processes()
            reasons = [describe_death(kind, process.returncode, logs) for kind, process in dead if kind in VITAL]
            self._broken = f"Ray's own processes on this machine died: {'; '.join(reasons)}" if reasons else None
        if self._head is not None:
            self._ask(self._head)
            silent = self._asked - self._answered
            self._broken = f"the cluster's head at {self._head} does not answer" if silent > HEAD_SECONDS else None
        return self._broken

    def leave(self) -> None:
        """Ends the connection, and the cluster with it where it is this machine's own."""
        node, self._node, self._head = self._node, None, None
        ray.shutdown()
        self._broken = None
        if node is not None:
            shutil.rmtree(node.get_session_dir_path(), ignore_errors=True)

    def _ask(self, head: str) -> None:
        if time.monotonic() - self._asked < ASK_SECONDS:
            return
        host, _, port = head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
            self._asked = self._answered = time.monotonic()
        except OSError:
            self._asked = time.monotonic()

    def await_machines(self, count: int) -> int:
        """Waits a while for `count` machines with cores to join, and returns how many have."""
        until = time.monotonic() + JOIN_SECONDS
        while True:
            self.machines = machines()
            present = sum("CPU" in machine for machine in self.machines)
            if present >= count or time.monotonic() > until:
                return present
            time.sleep(1.0)

    def check(self, resources: Resources) -> None:
        if resources.slots(*self.machines) == 0:
            (machine,) = self.machines
            has = ", ".join(words_of(name, machine[name]) if name in machine else f"no {name}" for name in resources.asked)
            raise ValueError(
                f"a trial asks for {resources.describe()} and this machine has {has}: lower `resources`, or give --address of "
                "a cluster that has them."
            )


def describe_death(kind: str, status: int, logs: Path) -> str:
    """Says how one of Ray's own processes ended, and why by the last fatal line of its log."""
    load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    if status in (-signal.SIGKILL, -signal.SIGTERM):
        why = "; the system does so when memory runs out" if status == -signal.SIGKILL else ""
        return f"{kind} was ended by {signal.Signals(-status).name}{why} ({load})"
    lines = FATAL_LINE.findall(read_tail(logs / f"{kind}.out"))
    why = lines[-1].rpartition("Check failed: ")[2][:300].strip() if lines else f"it ended with status {status}"
    return f"{kind}: {why} ({load})"


def machines() -> list[dict[str, float]]:
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def missing(waiting: Sequence[Resources], machines: Sequence[Mapping[str, float]]) -> str:
    """Returns what the first waiting trial asks for, if no machine is large enough for any that waits; empty if one is."""
    return waiting[0].describe() if waiting and not any(resources.slots(*machines) for resources in waiting) else ""


def refuse_running_ray() -> None:
    """Raises ValueError if Ray runs in this process already, as in a notebook: it has been started with settings of its own."""
    if ray.is_initialized():
        raise ValueError(
            "Ray runs in this process already, and a sweep starts it, or joins a cluster, with settings of its own: call "
            "ray.shutdown() first"
        )


@contextmanager
def joined(address: str | None, cpus: int | None = None) -> Iterator[Cluster]:
    """Joins the cluster at `address`, or starts one of this machine alone with `cpus` of its cores."""
    os.environ.update(DRIVER_ENVIRONMENT)
    private.keep_environment_here()  # what trials need is in `runtime_env`
    for name in private.LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    passed_on = {name: os.environ[name] for name in (*PASSED_ON, plugins.VARIABLE) if name in os.environ}
    common: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.WARNING,
        "runtime_env": {"env_vars": WORKER_ENVIRONMENT | passed_on},
    }
    if address:
        check_answers(address)
        named = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
        if named or Path("~/.ray/auth_token").expanduser().exists():
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        try:
            ray.init(address=address, **common)
        except Exception as error:
            raise ValueError(
                f"no Ray cluster answers at {address} ({str(error).strip().splitlines()[0]}). Check the address, and "
                "RAY_AUTH_TOKEN if the cluster asks for a token."
            ) from error
    else:
        check_socket_room()
        keep_token()
        for name, value in PATIENT_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        ray.init(address="local", include_dashboard=False, num_cpus=cpus, object_store_memory=OBJECT_STORE_BYTES, **common)
    log_to_root(("ray", "ray.tune", "ray.train", "ray.data"))
    cluster = Cluster(started_here=not address)
    try:
        yield cluster
    finally:
        cluster.leave()


def keep_token() -> None:
    """Makes the token by which a new cluster guards its ports, and keeps it from other users, who could run code by it. Without
    a home folder that can be written, as in a container, it is in the environment."""
    if os.environ.get("RAY_AUTH_MODE", "token") != "token" or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        return
    file, token = Path("~/.ray/auth_token").expanduser(), secrets.token_hex(32)
    own = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():  # Ray makes it readable for everybody
            file.chmod(0o600)
            return
        with open(own, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as stream:
            stream.write(token)
        with suppress(FileExistsError):  # another sweep was first
            os.link(own, file)
    except OSError:
        if not os.access(file, os.R_OK):
            os.environ["RAY_AUTH_TOKEN"] = token
    finally:
        with suppress(OSError):
            own.unlink()


def share(resources: Resources) -> tune.PlacementGroupFactory:
    """Returns a trial's resources as Tune asks for them: a bundle for each process, on one machine."""
    return tune.PlacementGroupFactory([resources.asked] * resources.count, strategy="STRICT_PACK")


@dataclass(frozen=True)
class Answer:
    """What one machine said: `result`, or `error` where it could not, or not in time."""

    host: str
    result: Any = None
    error: str | None = None


def ask_each(question: Callable[..., Any], *arguments: Any, timeout_s: float = 120.0, gpu: float = 0.0) -> list[Answer]:
    """Runs `question(*arguments)` once on every machine of the joined cluster, at the same time.

    Args:
        gpu: the share of a GPU that the task holds; above 0, machines without GPUs are not asked.
    """
    machines = [node for node in ray.nodes() if node["Alive"] and (not gpu or node["Resources"].get("GPU"))]
    remote = ray.remote(num_cpus=0, num_gpus=gpu, max_retries=0)(_ask)
    tasks = [
        remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            question, *arguments
        )
        for node in machines
    ]
    ready, late = ray.wait(tasks, num_returns=len(tasks), timeout=timeout_s) if tasks else ([], [])
    for task in late:
        ray.cancel(task, force=True)  # one that waits for a GPU would take it later
    return [_answer(node, task, task in ready, timeout_s) for node, task in zip(machines, tasks, strict=True)]


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    plugins.load_inherited()
    return question(*arguments)


def try_gpus(gpu: float) -> list[Answer]:
    """Multiplies matrices in a task with the share `gpu` of a GPU on every machine that has GPUs by Ray's count.

    The result of an answer is the `Gpu` there; its error is torch's reason.
    """

    def multiply() -> Gpu:
        keep_to_share(gpu, ray.get_gpu_ids())  # as a trial does
        return require_gpu()

    return ask_each(multiply, gpu=gpu)


def _answer(node: dict[str, Any], task: Any, ready: bool, timeout_s: float) -> Answer:
    host = node["NodeManagerHostname"]
    if not ready:
        return Answer(host, error=f"no answer within {timeout_s:g} s")
    try:
        return Answer(host, ray.get(task))
    except Exception as error:  # whatever a machine has wrong with it is what was asked
        return Answer(host, error=describe(error))

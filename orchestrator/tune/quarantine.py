"""Keeps trials away from a machine that fails them. It would draw trial after trial, since it always has room.

    worker    from_here     a fault of the machine goes to the driver with the machine's id
    driver    Quarantine    a task takes the place of the trial that failed there, before Ray gives it to the next one
    machine   _keep_place   waits, looks whether the machine is in order, and only then ends

Ray (2.60) places a trial wherever there is room and knows no machine to avoid. A machine that is not in order when a sweep
starts is refused by `prepare_machines`; this is for one that joins, or breaks, later. Each place on it costs one attempt of one
trial. Places elsewhere on the machine stay in use, so that of eight GPUs a broken one alone is kept.

Where trials fail on all machines alike, no machine is to blame. So all places are given back when no trial has run for a
minute, and are kept again only after a trial has trained.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from craft.results import RunPrevented, Unavailable
from orchestrator.driver.tally import format_duration
from orchestrator.sweepfile.resources import Resources
from orchestrator.tools.scratch import scratch_folder
from orchestrator.tune.preparing import Shared, share_of_machine
from orchestrator.tune.tokens import own_token, with_token
from orchestrator.worker.gpus import keep_to_share, require_gpu

FAULTS = (OSError, ImportError, RunPrevented, Unavailable)
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 1800.0
"""Seconds until a machine is looked at again: twice as long after each time that it was not in order."""
NOTHING_RUNS = 60.0
"""So many seconds without a running trial, and all machines get trials again."""
ROOM_BYTES = 2**20


@contextmanager
def from_here() -> Iterator[None]:
    """Notes this machine on a fault that may be its own. A lost connection says nothing of the machine that noticed it."""
    try:
        yield
    except FAULTS as error:
        if machine_of(error) is None and not isinstance(error, ConnectionError) and ray.is_initialized():
            note_machine(error, ray.get_runtime_context().get_node_id())
        raise


def note_machine(error: BaseException, machine: str | None) -> None:
    error.machine = machine  # type: ignore[attr-defined]


def machine_of(error: BaseException | None) -> str | None:
    """Ray's id of the machine that an error, or what Ray made of it, came from; None if that is not known."""
    return getattr(getattr(error, "cause", None) or error, "machine", None)


class Quarantine:
    """The machines of one attempt on which places are kept, and the tasks that keep them."""

    def __init__(self, shared: Shared | None, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._shared, self._say, self._clock = shared, say, clock
        self._kept: dict[str, list[Any]] = {}
        self._pauses: dict[str, float] = {}
        self._ran = clock()
        self._useful = True

    def works(self) -> None:
        """A trial has trained somewhere."""
        self._useful = True

    def failed(self, error: BaseException | None, share: Resources, why: str) -> None:
        """Keeps the place of a trial that has just failed, if by a fault of its machine. Its place must not be free yet.

        Args:
            share: what each worker of the trial gets.
        """
        machine = machine_of(error)
        node = next((one for one in ray.nodes() if one["NodeID"] == machine and one["Alive"]), None)
        if machine is None or node is None or not self._useful:
            return
        tasks = self._kept.setdefault(machine, [])
        if not tasks:
            self._ran = self._clock()
            self._pauses[machine] = min(2 * self._pauses.get(machine, FIRST_PAUSE / 2), LONGEST_PAUSE)
            self._say(
                f"{node['NodeManagerHostname']} (node {machine[:8]}) is not in order: {why}. No trial takes the place of one "
                f"that failed there; it is looked at again in {format_duration(self._pauses[machine])}"
            )
        if len(tasks) < share.processes(node["Resources"]):
            tasks.append(self._keep(machine, share))

    def tick(self, runs: Callable[[], bool]) -> None:
        """Forgets machines that are in order again, and gives all places back if nothing else runs.

        Args:
            runs: whether a trial runs now. It is asked only while places are kept.
        """
        for machine, tasks in list(self._kept.items()):
            if len(ray.wait(tasks, num_returns=len(tasks), timeout=0)[0]) == len(tasks):
                del self._kept[machine]
        if not self._kept or runs():
            self._ran = self._clock()
        elif self._clock() - self._ran > NOTHING_RUNS:
            self._give_back()

    def _keep(self, machine: str, share: Resources) -> Any:
        remote: Any = ray.remote(max_calls=1, max_retries=0)(_keep_place)  # its process ends with it, and frees the GPU
        place = NodeAffinitySchedulingStrategy(machine, soft=False)
        return remote.options(**share_of_machine(share), scheduling_strategy=place).remote(
            self._shared, share.gpu, own_token(), self._pauses[machine], LONGEST_PAUSE
        )

    def _give_back(self) -> None:
        self._say("no trial runs elsewhere, so machines that were not in order get trials again")
        for task in [task for tasks in self._kept.values() for task in tasks]:
            ray.cancel(task, force=True)
        self._kept.clear()
        self._useful = False


def _keep_place(shared: Shared | None, gpu: float, token: str | None, pause: float, longest: float) -> None:
    """The task that holds a place on its machine until the machine is in order."""
    keep_to_share(gpu)
    while True:
        time.sleep(pause)
        pause = min(2 * pause, longest)
        with suppress(Exception):  # whatever is wrong there is what trials are spared
            _look(shared, gpu, token)
            return


def _look(shared: Shared | None, gpu: float, token: str | None) -> None:
    if gpu:
        require_gpu()
    with scratch_folder("room") as folder:
        (folder / "file").write_bytes(bytes(ROOM_BYTES))
    if shared is not None:
        with with_token(token):
            shared.prepare_here(again=True)

"""Prepares each machine of a cluster once for all its trials, and gives trials what was prepared.

    driver    prepare_machines    one Ray task a machine, with a trial's share of it, before the first trial
    machine   <Ray's session folder>/craft-prepared/NODE-NEEDS.done     it has been prepared
    worker    Shared.there        a machine that joined later is prepared by its first trial; the others on it wait

Data must be the same on all machines. A token of the hub comes from the driver where a machine has none of its own
(`orchestrator.tune.tokens`). Once the model is on a machine's disk, its trials ask the hub for nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from filelock import FileLock
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from craft.factors.ticking import acquire
from craft.results import Unavailable
from orchestrator.driver.options import RunOptions
from orchestrator.driver.preparation import Needs, prepare
from orchestrator.sweepfile.resources import Resources
from orchestrator.tune.cluster import joined
from orchestrator.tune.tokens import own_token, shared_token, with_token
from orchestrator.worker import crash
from orchestrator.worker.gpus import keep_to_share, require_gpu

Prepare = Callable[[Needs], dict[str, str]]

FOLDER = "craft-prepared"
LOCK_SECONDS = 6 * 3600.0
"""How long a trial waits for the one that prepares its machine. One that dies gives the lock back."""


@dataclass(frozen=True)
class Shared:
    """What trials share, as their workers need it.

    Attributes:
        needs: what it is.
        fingerprints: of the data by task, as far as they were read; a machine with other data trains nothing.
        on_cluster: whether a trial may find itself on a machine that was not prepared at the start.
        prepare: what prepares; another one in tests.
    """

    needs: Needs
    fingerprints: Mapping[str, str]
    on_cluster: bool
    prepare: Prepare = prepare

    @contextmanager
    def there(self) -> Iterator[None]:
        """Makes sure that this machine has it. Inside, a model that is on its disk is read without asking the hub.

        Raises:
            Unavailable: the machine cannot be prepared, or has other data; the message names it.
        """
        if self.on_cluster:
            try:
                with shared_token():
                    _once(self.needs, self._prepare_alike)
            except (OSError, ValueError, ImportError) as error:
                raise Unavailable(f"{socket.gethostname()} cannot be prepared for this trial: {error}") from error
        with _without_hub(self.needs):
            yield

    def _prepare_alike(self, needs: Needs) -> dict[str, str]:
        found = self.prepare(needs)
        for task, print_ in found.items():
            if self.fingerprints.get(task, print_) != print_:
                raise Unavailable(
                    f"it has other data of {task} than the machines that were prepared first: copy the same files to all"
                )
        return found


def prepare_machines(
    needs: Needs,
    shares: Sequence[Resources],
    options: RunOptions,
    say: Callable[[str], None] = lambda line: None,
    prepare: Prepare = prepare,
) -> dict[str, str]:
    """Prepares every machine that has room for a trial now, all at the same time; returns the data's fingerprints by task.

    A machine that is busy with something else is left to its first trial, as one that joins later is.

    Raises:
        ValueError: a machine cannot be prepared, or machines have different data. It names them. Trials would fail there one
            after another, and so quickly that most of the sweep would go there.
    """
    with joined(options.address, options.cpus) as cluster:
        if not options.address:
            for share in shares:
                cluster.check(share)
        answers: dict[str, dict[str, str]] = {}
        faults: dict[str, str] = {}
        asked = _ask(needs, shares, say, prepare)
        for name, task in asked.items():
            try:
                answers[name] = ray.get(task)
            except ray.exceptions.RayTaskError as error:
                faults[name] = crash.describe(error)
            except ray.exceptions.RayError as error:
                if isinstance(error, ray.exceptions.TaskUnschedulableError) or crash.machine_lost(error):
                    say(f"{name} was lost while it was being prepared")
                else:
                    faults[name] = crash.describe(error)
    if not asked:
        say("no machine has room for a trial now: each is prepared by its first trial")
    if faults:
        told = "".join(f"\n  {name}: {why}" for name, why in faults.items())
        raise ValueError(
            f"{len(faults)} of {len(asked)} machines cannot be prepared:{told}\nMend this, or take these machines out of the "
            "cluster (`ray stop` on them); nothing has been trained"
        )
    return _agreed(answers)


def _ask(needs: Needs, shares: Sequence[Resources], say: Callable[[str], None], prepare: Prepare) -> dict[str, Any]:
    """Starts a task on every machine that has room for a worker of a trial; by the machine's name."""
    free = ray._private.state.available_resources_per_node()
    token, tasks = own_token(), {}
    for node in ray.nodes():
        name, has = f"{node['NodeManagerHostname']} (node {node['NodeID'][:8]})", node["Resources"]
        fitting = [share for share in shares if _holds(has, share)] if node["Alive"] else []
        if not fitting:
            continue
        share = next((one for one in fitting if _holds(free.get(node["NodeID"], has), one)), None)
        if share is None:
            say(f"{name} is busy: its first trial prepares it")
            continue
        remote: Any = ray.remote(max_calls=1, max_retries=0)(_on_this_machine)  # its process ends with it, and frees the GPU
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        tasks[name] = remote.options(**_share_of_machine(share), scheduling_strategy=place).remote(
            needs, share.gpu, token, prepare
        )
    return tasks


def _share_of_machine(share: Resources) -> dict[str, Any]:
    """What one worker of a trial gets, as options of a Ray task."""
    asked = dict(share.asked)
    own = {"num_cpus": asked.pop("CPU", 0), "num_gpus": asked.pop("GPU", 0), "memory": asked.pop("memory", 0)}
    return own | {"resources": asked}


def _holds(has: Mapping[str, float], share: Resources) -> bool:
    return all(has.get(name, 0) >= amount - 1e-9 for name, amount in share.asked.items())


def _on_this_machine(needs: Needs, gpu: float, token: str | None, prepare: Prepare) -> dict[str, str]:
    """The task of one machine. What it raises is that machine's fault."""
    keep_to_share(gpu)
    if gpu:
        require_gpu()
    with with_token(token):
        return _once(needs, prepare, again=True)


def _once(needs: Needs, prepare: Prepare, again: bool = False) -> dict[str, str]:
    """Prepares this machine unless that has been done, by one process at a time; the others wait and tick.

    Args:
        again: prepare it in any case. What is in the caches is found there.

    Returns:
        The data's fingerprints where this call has read the data, else nothing.
    """
    node: Any = ray._private.worker._global_node
    folder = Path(node.get_session_dir_path()) / FOLDER
    done = folder / f"{ray.get_runtime_context().get_node_id()}-{needs.key}.done"
    if done.exists() and not again:
        return {}
    folder.mkdir(exist_ok=True)
    lock = FileLock(done.with_suffix(".lock"))
    acquire(lock, LOCK_SECONDS)
    try:
        if done.exists() and not again:
            return {}
        found = prepare(needs)
        done.touch()
        return found
    finally:
        lock.release()


def _agreed(answers: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The fingerprints that all machines gave.

    Raises:
        ValueError: they differ; it says on which machines.
    """
    agreed: dict[str, str] = {}
    for task in dict.fromkeys(task for found in answers.values() for task in found):
        by_print: dict[str, list[str]] = {}
        for name, found in answers.items():
            by_print.setdefault(found[task], []).append(name)
        if len(by_print) > 1:
            told = "".join(f"\n  rows hash to {one[:12]}: {', '.join(names)}" for one, names in by_print.items())
            raise ValueError(f"machines have different data of {task}:{told}\nCopy the same files to all of them")
        agreed[task] = next(iter(by_print))
    return agreed


@contextmanager
def _without_hub(needs: Needs) -> Iterator[None]:
    from craft.models.cached import offline, weights_on_disk
    from craft.models.loading import resolve_model

    runs = [base.run for base in needs.bases]
    there = all(weights_on_disk(resolve_model(run.model, run.revision), run.revision) for run in runs)
    with offline() if there else nullcontext():
        yield

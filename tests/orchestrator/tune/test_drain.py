"""A machine that is announced to be taken away: its trial checkpoints at its next step and continues elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
import torch
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from safetensors.torch import load_file

from craft.results import Train
from craft.trainer.training import train_run
from orchestrator.plan.plan import make_plan
from tests.orchestrator.plans import toy_sweep
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import ray_cluster, run_sweep, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("without_token")]

DEADLINE_S = 60
STEPS = 12


class Machine:
    """A node of a cluster, as a service starts it."""

    def __init__(self, address: str, cpus: int = 1) -> None:
        command = [str(Path(sys.executable).parent / "ray"), "start", "--block", f"--address={address}", f"--num-cpus={cpus}"]
        environment = os.environ | {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(DEADLINE_S)}
        before = nodes(address)
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (self.node,) = wait_for(lambda: nodes(address) - before)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def nodes(address: str) -> set[str]:
    return {node.hex() for node, info in ray._raylet.GcsClient(address=address).get_all_node_info().items() if info.state == 0}


def drain(address: str, machine: Machine) -> None:
    """What `ray drain-node` and an autoscaler do."""
    until = int((time.time() + DEADLINE_S) * 1000)
    client = ray._raylet.GcsClient(address=address)
    reason = DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    assert client.drain_node(machine.node, reason, "a spot machine's warning", until) == (True, "")


def terminate(address: str, machine: Machine) -> None:
    """What Slurm and Kubernetes do."""
    machine.process.send_signal(signal.SIGTERM)


def slowly(log: str) -> Train:
    """`train_run` with a line for each step of each process; everything it needs is inside, because workers get it by value."""

    def train(spec, directory, *, on_step, **calls):
        import time
        from pathlib import Path

        import ray

        from craft.processes import current
        from craft.trainer.training import train_run

        def stepped(step, total):
            with Path(log).open("a") as file:
                file.write(f"{ray.get_runtime_context().get_node_id()} {current().rank} {step}\n")
            time.sleep(1.0)
            on_step(step, total)

        return train_run(spec, directory, on_step=stepped, **calls)

    return train


def steps_of(log: Path, process: int) -> list[tuple[str, int]]:
    """The node and the number of each step that a process has done."""
    rows = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(node, int(step)) for node, rank, step in rows if int(rank) == process]


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    started: list[Machine] = []
    yield started
    for machine in started:
        machine.end()


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("announce", [drain, terminate])
def test_a_trial_on_a_machine_that_drains_continues_elsewhere_from_its_very_step(
    tmp_path: Path, tiny_bert: str, machines: list[Machine], announce: Callable[[str, Machine], None], processes: int
) -> None:
    """Each of two machines has room for all processes of the trial; one process has the bits of an undisturbed run."""
    text = (
        f"model: {tiny_bert}\ntasks: [toy/sentiment]\nseeds: [0]\n"
        f"resources: {{cpu: 1, processes: {processes}, heartbeat_minutes: 3}}\n"
        f"training: {{max_steps: {STEPS}, batch_size: 8, train_examples: 64, eval_examples: 24, max_length: 32}}\n"
        f"space: [{{method: craft, ranks: [all, 8, 8], dropout: {0.1 if processes == 1 else 0.0}}}]\n"
    )
    plan = make_plan(toy_sweep(tmp_path, text))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the trial has: sums in another order round differently
    undisturbed = train_run(plan.trials[0].run, tmp_path / "undisturbed")
    torch.set_num_threads(threads)
    log = tmp_path / "log"

    def take_away() -> None:
        wait_for(lambda: len(steps_of(log, processes - 1)) >= 2)
        machines.sort(key=lambda machine: machine.node != steps_of(log, 0)[0][0])
        announce(cluster.address, machines[0])

    with ray_cluster() as cluster:
        machines.extend([Machine(cluster.address, processes), Machine(cluster.address, processes)])
        thread = threading.Thread(target=take_away)
        thread.start()
        options = {"address": cluster.address, "quiet": True, "max_failures": 0}
        outcome = run_sweep(plan, tmp_path / "test", **options, train=slowly(str(log)))
        thread.join()
        if announce is terminate:
            machines[0].process.wait(30)
    (result,) = results_of(outcome).values()
    assert result.status == "finished", result.error
    if processes == 1:
        assert result.metrics == undisturbed.metrics
        places = (undisturbed.adapter, result.facts["adapter"])
        left, right = (load_file(Path(place) / "adapter_model.safetensors") for place in places)
        assert all(torch.equal(left[name], right[name]) for name in left)
    assert result.metrics == pytest.approx(undisturbed.metrics, abs=1e-3)

    first, second = (machine.node for machine in machines)
    for process in range(processes):
        steps = steps_of(log, process)
        assert [step for _, step in steps] == list(range(1, STEPS + 1)), "no step is lost or done again"
        before = [step for node, step in steps if node == first]
        assert result.facts["resumed_at"] == [before[-1]]
        assert {node for node, step in steps if step > before[-1]} == {second}

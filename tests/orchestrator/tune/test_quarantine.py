"""A machine that fails trials at once, and always has room, under a running sweep: real Ray, its nodes as processes.

Preparing and training are stand-ins that note on which node they were called.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from craft.results import RunPrevented
from orchestrator.driver.options import RunOptions
from orchestrator.driver.preparation import needs_of
from orchestrator.tune import quarantine
from orchestrator.tune.preparing import Shared
from tests.orchestrator.stand_in import plan_of
from tests.orchestrator.tune.test_lost_machines import wait_for


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that takes no trials."""
    import ray
    from ray.cluster_utils import Cluster

    # A driver with a token (the user's ~/.ray/auth_token) and nodes without one start no worker.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def noting(log: Path, alone: int = 99) -> Callable[..., Any]:
    """A `train_run` that notes its node. After `alone` trainings it waits for another node to train."""

    def train(spec, directory, *, report, resume_from, on_step):
        import time
        from pathlib import Path

        import ray

        from craft.results import Counts, RunResult

        with Path(log).open("a") as file:
            file.write(ray.get_runtime_context().get_node_id() + "\n")
        until = time.monotonic() + 200
        while len(nodes := Path(log).read_text().split()) > alone and len(set(nodes)) == 1 and time.monotonic() < until:
            time.sleep(0.5)
        adapter = directory / "adapter"
        adapter.mkdir()
        return RunResult({"score": 1.0}, Counts(10, 2, 100, 40), adapter, 1, 1, 1.0)

    return train


def broken_unless(well: Path, log: Path) -> Callable[[Any], dict[str, str]]:
    """A `prepare` that finds no room on nodes that the file `well` does not name, and notes each of its calls."""

    def prepare(needs):
        import ray

        node = ray.get_runtime_context().get_node_id()
        with log.open("a") as file:
            file.write(node + "\n")
        if node not in well.read_text():
            raise OSError(28, "No space left on device")
        return {}

    return prepare


def count(log: Path) -> Counter[str]:
    return Counter(log.read_text().split()) if log.exists() else Counter()


@pytest.mark.cluster
@pytest.mark.slow
def test_a_machine_that_joins_late_and_is_bad_costs_an_attempt_a_place_until_it_is_mended(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.tune.runner import run_sweep

    monkeypatch.setattr(quarantine, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(quarantine, "LONGEST_PAUSE", 1.0)
    # The node joins from a thread, where Python lets nobody listen to signals.
    monkeypatch.setattr("ray._private.utils.set_sigterm_handler", lambda handler: None)
    good = cluster.add_node(num_cpus=1)
    well, trained, looked = tmp_path / "well", tmp_path / "trained", tmp_path / "looked"
    well.write_text(good.node_id)
    late: list[str] = []
    seen: list[int] = []
    over = threading.Event()

    def join() -> None:
        wait_for(lambda: bool(count(trained)))
        late.append(cluster.add_node(num_cpus=2).node_id)
        wait_for(lambda: count(looked)[late[0]] >= 6)
        seen.append(count(trained)[late[0]])
        well.write_text(f"{good.node_id} {late[0]}")
        over.wait()  # Linux ends a node's processes with the thread that started them

    thread = threading.Thread(target=join)
    thread.start()
    plan = plan_of(tmp_path, seeds="[0, 1, 2, 3, 4, 5, 6, 7]", ranks="[1, 2]")
    shared = Shared(needs_of(plan.trials), {}, True, broken_unless(well, looked))
    options = RunOptions(tmp_path / "test", address=cluster.address, max_failures=1)
    try:
        outcome = run_sweep(plan, options, train=noting(trained, alone=4), shared=shared)
    finally:
        over.set()
    thread.join()
    said = "".join(capfd.readouterr())
    assert len(outcome.finished) == 16, said
    assert seen == [0]
    assert said.count("again: ") <= 2, "it has two places"
    assert said.count(f"(node {late[0][:8]}) is not in order: ") == 1
    assert "No space left on device" in said
    assert count(trained)[late[0]] > 0, "it gets trials once it is mended"


@pytest.mark.cluster
@pytest.mark.slow
def test_where_all_machines_fail_alike_the_session_ends(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.tune.runner import run_sweep

    monkeypatch.setattr(quarantine, "NOTHING_RUNS", 2.0)
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    well = tmp_path / "well"
    well.write_text("none")
    plan = plan_of(tmp_path, seeds="[0, 1, 2, 3, 4, 5, 6, 7]", ranks="[1, 2]")
    shared = Shared(needs_of(plan.trials), {}, True, broken_unless(well, tmp_path / "looked"))
    outcome = run_sweep(
        plan,
        RunOptions(tmp_path / "test", address=cluster.address, max_failures=0),
        train=noting(tmp_path / "trained"),
        shared=shared,
    )
    said = "".join(capfd.readouterr())
    assert "trials in a row failed for one reason" in (outcome.trouble or ""), said
    assert said.count("is not in order: ") == 2
    assert said.count("machines that were not in order get trials again") == 1


def test_only_a_fault_of_this_machine_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: type("Context", (), {"get_node_id": lambda self: "here"})())
    elsewhere = OSError(28, "No space left on device")
    quarantine.note_machine(elsewhere, "a member's")
    told = {
        "here": [OSError(28, "No space left on device"), RunPrevented("no model"), ImportError("bitsandbytes")],
        "a member's": [elsewhere],
        None: [ConnectionResetError("a member is gone"), RuntimeError("CUDA error: device-side assert triggered")],
    }
    for machine, errors in told.items():
        for error in errors:
            with pytest.raises(type(error)) as raised, quarantine.from_here():
                raise error
            assert quarantine.machine_of(raised.value) == machine

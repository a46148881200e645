"""Machines of a cluster are prepared once each, whenever they join, with the driver's token, which is found nowhere later.

Preparation and training are stand-ins; Ray, its nodes (processes of this machine), folders and the tracking store are real.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.driver.options import RunOptions
from orchestrator.driver.preparation import needs_of
from orchestrator.record.ledger import Ledger
from orchestrator.sweepfile.resources import Resources
from tests.orchestrator.stand_in import plan_of, stand_in_prepare, starts
from tests.orchestrator.tune.test_lost_machines import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TOKEN = "hf_" + "NotAToken" * 4


@pytest.fixture(autouse=True)
def without_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A driver with a token (the user's ~/.ray/auth_token) and nodes without one start no worker.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no token here"))


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A cluster of a head that takes no trials and two machines of one core."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    machines = [cluster.add_node(num_cpus=1) for _ in range(2)]
    yield cluster, [one.node_id for one in machines]
    ray.shutdown()
    cluster.shutdown()


def prepared(log: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in log.read_text().splitlines()) if log.exists() else Counter()


def holding(text: str, folders: list[Path]) -> list[str]:
    """Files under `folders` with `text` in them, in full or as UTF-16."""
    needles = [text.encode(), text.encode("utf-16-le")]
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                content = path.read_bytes()
                found += [str(path)] if any(needle in content for needle in needles) else []
    return found


def test_machines_are_prepared_once_each_and_one_with_a_fault_or_other_data_is_named(nodes: Any, tmp_path: Path) -> None:
    from orchestrator.tune.preparing import prepare_machines

    cluster, ids = nodes
    plan = plan_of(tmp_path)
    needs, options = needs_of(plan.trials), RunOptions(tmp_path / "test", address=cluster.address)
    shares, said = [Resources(), Resources(cpu=64)], list[str]()
    log = tmp_path / "prepared"
    assert prepare_machines(needs, shares, options, said.append, stand_in_prepare(str(log))) == {
        "toy/acceptability": "the same rows"
    }
    assert prepared(log) == dict.fromkeys(ids, 1)
    assert said == []

    def other_data(needs: Any) -> dict[str, str]:
        import ray

        return {"toy/acceptability": f"rows of {ray.get_runtime_context().get_node_id()}"}

    with pytest.raises(ValueError, match="different data of toy/acceptability") as refusal:
        prepare_machines(needs, shares, options, said.append, other_data)
    assert all(one[:8] in str(refusal.value) for one in ids)

    def broken(needs: Any, bad: str = ids[0]) -> dict[str, str]:
        import ray

        if ray.get_runtime_context().get_node_id() == bad:
            raise OSError(28, "No space left on device")
        return {"toy/acceptability": "rows"}

    with pytest.raises(ValueError, match="1 of 2 machines cannot be prepared") as refusal:
        prepare_machines(needs, shares, options, said.append, broken)
    assert f"(node {ids[0][:8]}): " in str(refusal.value)
    assert "No space left" in str(refusal.value)
    assert ids[1][:8] not in str(refusal.value)

    assert prepare_machines(needs, [Resources(cpu=64)], options, said.append, broken) == {}
    assert said == ["no machine has room for a trial now: each is prepared by its first trial"]


def test_a_machine_that_joins_later_is_prepared_by_its_first_trial_and_the_token_leaves_no_trace(
    tmp_path: Path, driver: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    first = cluster.add_node(num_cpus=1)
    log, report = tmp_path / "log", tmp_path / "prepared"
    environment: list[int] = []
    try:
        sessions = Path(first.get_session_dir_path())
        monkeypatch.setenv("HF_TOKEN", TOKEN)  # of the driver alone: Ray's processes have started
        # Preparing takes longer than the heartbeat: who prepares ticks, and who waits does.
        resources = "{cpu: 1, heartbeat_minutes: 0.5}"
        process = driver(
            tmp_path, ranks=[1, 2, 4, 8], seconds=4.0, resources=resources, session=True, prepares=40.0, address=cluster.address
        )
        monkeypatch.delenv("HF_TOKEN")  # the machine that joins does not inherit it either
        wait_for(lambda: log.exists() and len(starts(log)) >= 1)
        late = cluster.add_node(num_cpus=2)
        wait_for(lambda: prepared(report)[late.node_id] == 1)
        raylets = [one.all_processes["raylet"][0].process.pid for one in (first, late)]
        for worker in [child for raylet in raylets for child in psutil.Process(raylet).children(recursive=True)]:
            shown = " ".join(worker.cmdline()) + " ".join(f"{name}={value}" for name, value in worker.environ().items())
            environment += [worker.pid] if TOKEN in shown else []
        out, screen = process.communicate(timeout=400)
        traces = holding(TOKEN, [sessions, tmp_path / "test", tmp_path])
    finally:
        cluster.shutdown()
    assert process.returncode == 0, out + screen
    assert TOKEN not in out + screen
    assert prepared(report) == {first.node_id: 1, late.node_id: 1}
    tokens = {line.split()[2] for line in report.read_text().splitlines()}
    assert tokens == {hashlib.sha256(TOKEN.encode()).hexdigest()}, "both machines had the driver's token while they prepared"
    assert len(Ledger(tmp_path / "test").finished()) == len(starts(log)) == 4, "no trial was taken for hanging"
    assert traces == []
    assert environment == []

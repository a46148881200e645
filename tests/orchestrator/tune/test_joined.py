"""`--address`: a sweep on a Ray cluster that somebody else started, with a token; on one (nodes are processes here) that loses
machines, and its head, under a running sweep; and on one that declares GPUs which torch cannot use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from craft.results import Counts
from orchestrator.plan.plan import make_plan
from orchestrator.sweepfile.sweep import Sweep
from tests.mlflow_server import free_port
from tests.orchestrator.plans import count, toy_sweep
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import check_runs, ended, ray_cluster, run_sweep, scores_of, starts, steps, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
Drivers = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster by `ray start`, whose token the environment names."""
    address = f"127.0.0.1:{free_port()}"
    # Short, since sockets lie in it.
    home = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    (home / "token").write_text("0123456789abcdef" * 2)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "token"))
    ray = [str(Path(sys.executable).parent / "ray")]
    start = [*ray, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={address.split(':')[1]}"]
    start += ["--num-cpus=2", "--include-dashboard=false", f"--temp-dir={home}", "--object-store-memory=100000000"]
    process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        status = [*ray, "status", f"--address={address}"]
        wait_for(lambda: not subprocess.run(status, capture_output=True, check=False).returncode, process, 120)
        yield address
    finally:
        # Not `ray stop`, which ends every cluster of the machine.
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(home, ignore_errors=True)


def test_a_sweep_joins_a_running_cluster_and_leaves_it_running(
    tmp_path: Path, guarded: str, driver: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ranks, submitted in (([1, 2], False), ([1, 2, 4], True)):
        if submitted:  # as by `ray job submit`, with an environment that names what the driver passes on too
            monkeypatch.setenv("HF_HUB_OFFLINE", "1")
            environment = {"env_vars": {"HF_HUB_OFFLINE": "1"}}
            monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": environment, "metadata": {}}))
        ended(driver(tmp_path, ranks=ranks, seconds=0.1, session=True, address=guarded))
        assert scores_of(tmp_path / "test") == [60.0 + rank for rank in ranks]
    monkeypatch.setenv("RAY_AUTH_TOKEN", "fedcba9876543210" * 2)
    process = driver(tmp_path, ranks=[1, 2, 4, 8], session=True, address=guarded)
    assert f"no Ray cluster answers at {guarded}" in process.communicate(timeout=240)[1]
    assert process.returncode != 0


@pytest.mark.usefixtures("without_token")
def test_machines_that_are_taken_away_again_and_again_are_no_failures_of_the_trial(tmp_path: Path, driver: Drivers) -> None:
    log = tmp_path / "log"

    def where() -> Any:
        """The node of the process that started last."""
        pid = [int(line.split()[4]) for line in log.read_text().splitlines() if line.startswith("start")][-1]
        return nodes[psutil.Process(pid).ppid()]

    with ray_cluster() as cluster:
        nodes = {node.all_processes["raylet"][0].process.pid: node for node in [cluster.add_node(num_cpus=1) for _ in range(3)]}
        # One failure is forgiven; two machines are lost.
        options = {"address": cluster.address, "max_failures": 1}
        process = driver(tmp_path, ranks=[1], seconds=5.0, options=options)
        for steps_done in (1, 2):
            wait_for(lambda many=steps_done: steps(log).total() >= many)  # type: ignore[misc]
            time.sleep(1.0)  # so that the step is reported
            cluster.remove_node(where(), allow_graceful=False)
        out, screen = process.communicate(timeout=240)
    assert out.split()[:4] == ["1", "0", "0", "0"], out + screen
    (result,) = results_of(tmp_path / "test").values()
    assert result.metrics == {"score": 61.0}
    assert [first for _, _, first in starts(log)] == [0, 1, 2]


@pytest.mark.usefixtures("without_token")
def test_a_head_that_is_lost_ends_the_driver_in_words_and_the_next_start_goes_on(tmp_path: Path, driver: Drivers) -> None:
    with ray_cluster(num_cpus=2) as first:
        address = first.address
        process = driver(tmp_path, ranks=[1, 2, 4, 8], seconds=3.0, session=True, address=address)
        wait_for(lambda: len(results_of(tmp_path / "test")) >= 1)
        wait_for(lambda: len(starts(tmp_path / "log")) >= 3)
        first.head_node.kill_gcs_server()
        out, screen = process.communicate(timeout=120)
    assert process.returncode == 1, out + screen
    assert f"the cluster's head at {address} does not answer" in screen
    left = 4 - len(results_of(tmp_path / "test"))
    assert left
    assert any(line.startswith(f"{left} trial") and " --resume" in line for line in out.splitlines())

    with ray_cluster(num_cpus=2) as second:
        ended(driver(tmp_path, ranks=[1, 2, 4, 8], session=True, address=second.address))
    check_runs(f"sqlite:///{tmp_path}/mlflow.db", set(results_of(tmp_path / "test")), configurations=4)


@pytest.mark.usefixtures("without_token")
def test_a_head_that_comes_back_with_its_state_is_waited_for(
    tmp_path: Path, driver: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as state:
        monkeypatch.setenv("RAY_gcs_storage", "rocksdb")
        monkeypatch.setenv("RAY_gcs_storage_path", state)
        with ray_cluster(num_cpus=2) as cluster:
            process = driver(tmp_path, ranks=[1, 2, 4], seconds=3.0, session=True, address=cluster.address)
            wait_for(lambda: steps(tmp_path / "log").total() >= 2)
            cluster.head_node.kill_gcs_server()
            time.sleep(10)
            cluster.head_node.start_gcs_server()
            ended(process)
    log = tmp_path / "log"
    assert len(starts(log)) == 3, "no trial began anew"
    assert set(steps(log).values()) == {1}
    assert len(results_of(tmp_path / "test")) == 3


NO_GPUS = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch may be able to use GPUs")
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SMALL = "training: {max_steps: 2, batch_size: 4, max_length: 16, train_examples: 16, eval_examples: 8}\n"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a machine with two cores and two GPUs, which the driver's environment lists; with the parameter
    "not isolated" Ray makes both visible to every process."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    if getattr(request, "param", "isolated") == "not isolated":
        monkeypatch.setenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1")
    with ray_cluster(num_cpus=2, num_gpus=2) as cluster:
        yield cluster.address


def sweep_of(folder: Path, resources: str, blocks: str = "[{method: lora, rank: 2}]") -> Sweep:
    text = f"model: {MODEL}\ntasks: [toy/sentiment]\nseeds: [0, 1]\nresources: {resources}\nspace: {blocks}\n{SMALL}"
    return toy_sweep(folder, text)


@NO_GPUS
@pytest.mark.parametrize("cluster", ["isolated", "not isolated"], indirect=True)
def test_a_trial_sees_its_share_alone_also_in_a_process_that_is_used_again(tmp_path: Path, cluster: str) -> None:
    log = str(tmp_path / "log")

    def train(spec, directory, *, report, resume_from, on_step):
        import os
        from pathlib import Path

        from craft.results import RunResult

        with Path(log).open("a") as file:
            file.write(f"{spec.method} {os.environ['CUDA_VISIBLE_DEVICES'] or 'none'} {os.getpid()}\n")
        adapter = directory / "adapter"
        adapter.mkdir()
        return RunResult({"score": 1.0}, Counts(10, 2, 100, 40), adapter, 1, 1, 1.0)

    blocks = "[{method: lora, rank: {values: [2, 4]}}, {method: full, resources: {gpu: 0.5}}]"
    plan, options = count(sweep_of(tmp_path, "{cpu: 1}", blocks)), {"address": cluster, "max_concurrent": 1}
    outcome = run_sweep(plan, tmp_path / "t", quiet=True, train=train, **options)
    assert len(outcome.ended("finished")) == 6, results_of(outcome)
    lines = [line.split() for line in Path(log).read_text().splitlines()]
    assert {(method, seen) for method, seen, _ in lines} in ({("lora", "none"), ("full", one)} for one in "01")
    assert len({pid for method, _, pid in lines if method == "lora"}) < 4


@NO_GPUS
def test_a_share_that_torch_cannot_use_fails_at_once_and_goes_on_where_it_can(tmp_path: Path, cluster: str) -> None:
    options = {"folder": tmp_path / "t", "address": cluster, "max_failures": 1, "quiet": True, "resume": True}
    outcome = run_sweep(make_plan(sweep_of(tmp_path, "{cpu: 1, gpu: 1}")), **options)
    assert len(outcome.ended("failed")) == 2
    for result in results_of(outcome).values():
        assert "gave a GPU that torch cannot use" in result.error
        assert result.error.endswith("(2 times)")
        assert result.retryable
    # The share is no part of a trial's name.
    outcome = run_sweep(make_plan(sweep_of(tmp_path, "{cpu: 1}")), **options)
    assert len(outcome.ended("finished")) == 2, results_of(outcome)

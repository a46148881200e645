"""`--address`: a sweep on a Ray cluster that somebody else started, with a token, on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mlflow_server import free_port
from tests.orchestrator.stand_in import ended, scores_of, start_driver, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
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
    tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ranks, submitted in (([1, 2], False), ([1, 2, 4], True)):
        if submitted:  # as by `ray job submit`, with an environment that names what the driver passes on too
            monkeypatch.setenv("HF_HUB_OFFLINE", "1")
            environment = {"env_vars": {"HF_HUB_OFFLINE": "1"}}
            monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": environment, "metadata": {}}))
        process = start_driver(tmp_path, ranks=ranks, seconds=0.1, session=True, address=cluster)
        ended(process)
        assert scores_of(tmp_path / "test") == [60.0 + rank for rank in ranks]
    monkeypatch.setenv("RAY_AUTH_TOKEN", "fedcba9876543210" * 2)
    process = start_driver(tmp_path, ranks=[1, 2, 4, 8], session=True, address=cluster)
    assert f"no Ray cluster answers at {cluster}" in process.communicate(timeout=240)[1]
    assert process.returncode != 0

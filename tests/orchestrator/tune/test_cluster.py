"""This machine's own cluster: what Ray writes down for everybody to read, how long it waits, and why it has died."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.tune import cluster
from orchestrator.tune.cluster import PATIENT_ENVIRONMENT, describe_death, joined, keep_token
from tests.orchestrator.stand_in import ROOT, ended, scores_of, starts, steps, wait_for
from tests.orchestrator.tune.test_faults import stored


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cluster.os, "environ", {"HOME": str(tmp_path)})
    return tmp_path


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@pytest.mark.parametrize("mask", [0o022, 0])
def test_no_other_user_may_read_the_token(home: Path, mask: int) -> None:
    file, before = home / ".ray" / "auth_token", os.umask(mask)
    try:
        keep_token()
        token = file.read_text()
        assert len(token) == 64
        assert mode(file) == 0o600
        file.chmod(0o644)  # as Ray makes it
        keep_token()
    finally:
        os.umask(before)
    assert (mode(file), file.read_text(), [*file.parent.iterdir()]) == (0o600, token, [file])
    assert "RAY_AUTH_TOKEN" not in cluster.os.environ


@pytest.mark.parametrize("given", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"])
def test_a_token_of_the_user_s_own_and_a_cluster_without_one_are_left_alone(home: Path, given: str) -> None:
    cluster.os.environ[given] = "disabled"
    keep_token()
    assert not (home / ".ray").exists()


def test_a_home_that_cannot_be_written_needs_no_token_file(home: Path) -> None:
    cluster.os.environ["HOME"] = "/proc/nowhere"
    keep_token()
    assert len(cluster.os.environ["RAY_AUTH_TOKEN"]) == 64


FATAL = (
    "[2026-11-28 09:08:06,330 I 4992 5030] (raylet) agent_manager.cc:81: Monitor agent process with name runtime_env_agent\n"
    "[2026-11-28 09:08:23,941 C 4992 4992] (raylet) node_manager.cc:3576:  An unexpected system state has occurred. You have "
    "likely discovered a bug. Check failed: status.has_value() Timed out waiting for file metrics_agent_port_f7\n"
    "*** StackTrace Information ***\n/raylet(+0xff770a) [0x55db1c28d70a] ray::operator<<()\n"
)
AGENT = (
    "[2026-11-28 09:08:23,941 E 4992 4992] (raylet) agent_manager.cc:86: The raylet exited immediately because one Ray agent "
    "failed, agent_name = runtime_env_agent.\n\nThe raylet fate shares with the agent.\n"
)


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (-signal.SIGABRT, FATAL, "raylet: status.has_value() Timed out waiting for file metrics_agent_port_f7"),
        (1, AGENT, "raylet: The raylet exited immediately because one Ray agent failed, agent_name = runtime_env_agent"),
        (-signal.SIGKILL, AGENT, "raylet was ended by SIGKILL; the system does so when memory runs out"),
        (3, None, "raylet: it ended with status 3"),
    ],
)
def test_why_a_process_of_ray_died_is_said_in_its_words(tmp_path: Path, status: int, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "raylet.out").write_text("x" * 100_000 + "\n" + text)
    assert describe_death("raylet", status, tmp_path).startswith(said)
    assert f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores" in describe_death("raylet", status, tmp_path)


REPLACED = """
import ctypes, os, signal, subprocess, sys, threading, time
from orchestrator.tools.signals import BEGUN_AGAIN, begin_again

def die_with_parent():
    ctypes.CDLL("libc.so.6").prctl(1, signal.SIGKILL)

child = subprocess.Popen(["sleep", "100"], preexec_fn=die_with_parent)
screen = os.dup(2)
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
program = "import os, sys; print(sys.argv[1:], os.environ['CRAFT_BEGUN_AGAIN'], os.getpid()); sys.stderr.write('on the screen')"
print(os.getpid(), child.pid, flush=True)
threading.Thread(target=begin_again, args=(["-c", program, "run", "--resume"], screen)).start()
time.sleep(100)
"""


def test_a_process_that_begins_again_keeps_its_number_and_its_screen_and_its_children_end() -> None:
    done = subprocess.run([sys.executable, "-c", REPLACED], cwd=ROOT, capture_output=True, text=True, timeout=120)
    first, second = done.stdout.splitlines()
    pid, child = first.split()
    assert second == f"['run', '--resume'] 1 {pid}"
    assert done.stderr == "on the screen"
    assert done.returncode == 0
    wait_for(lambda: not psutil.pid_exists(int(child)), seconds=10)


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Ray's folder of temporary files, with a short path."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN", "HF_TOKEN", "WANDB_API_KEY")


@pytest.mark.cluster
@pytest.mark.slow
def test_no_key_of_the_environment_is_in_a_file_while_a_sweep_runs(
    tmp_path: Path, ray_folder: Path, driver: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, f"s3cret-{name}")
    process = driver(tmp_path, ranks=[1], seconds=1, session=True)
    wait_for(lambda: steps(tmp_path / "log"), process)
    files = [file for folder in (tmp_path, ray_folder) for file in folder.rglob("*") if file.is_file()]
    assert any(file.name == "runtime_env_agent.log" for file in files)
    for file in files:
        with suppress(FileNotFoundError):  # the sweep runs, and removes files
            assert b"s3cret-" not in file.read_bytes(), file
    process.communicate(timeout=240)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_ray_that_dies_on_this_machine_is_named_and_the_sweep_continues_by_itself(
    tmp_path: Path, driver: Callable[..., subprocess.Popen[str]], name: str
) -> None:
    process = driver(tmp_path, ranks=[1, 2], seconds=4, session=True)
    wait_for(lambda: stored(tmp_path), process)
    (victim,) = [child for child in psutil.Process(process.pid).children() if child.name() == name]
    os.kill(victim.pid, signal.SIGKILL)
    shown = ended(process)
    assert scores_of(tmp_path / "test") == [61.0, 62.0]
    assert any(first > 0 for _, _, first in starts(tmp_path / "log")), "each trial began at its first step"
    state = read_state(SweepFolder(tmp_path / "test").record)
    assert not state.in_phase("running")
    assert "SIGKILL" in shown + SweepFolder(tmp_path / "test").log.read_text()


@pytest.mark.cluster
@pytest.mark.slow
def test_a_cluster_waits_long_for_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PATIENT_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_health_check_timeout_ms", "70000")  # the user's own counts
    with joined(None, 1) as own:
        (raylet,) = [child for child in psutil.Process().children() if child.name() == "raylet"]
        environment = raylet.environ()
        assert own.broken is None
    assert environment.items() >= (PATIENT_ENVIRONMENT | {"RAY_health_check_timeout_ms": "70000"}).items()

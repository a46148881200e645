"""The process that follows a sweep's log: it ends with its driver, is started again if it dies, and shows no password."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from orchestrator.record.folder import SweepFolder
from orchestrator.review.mirror import NICENESS
from orchestrator.tracking.follower import Follower, Sent
from tests.orchestrator.conftest import Cli
from tests.orchestrator.logged import SweepLog, entry, history, runs
from tests.orchestrator.stand_in import wait_for

DRIVER = """
import sys, time
from pathlib import Path
from orchestrator.tracking.follower import Follower
from tests.orchestrator.logged import SweepLog, entry

sweep, trial = SweepLog(Path(sys.argv[2])), entry()
sweep.start(trial, tracking={"uri": sys.argv[1]})
sweep.run(trial)
follower = Follower(sweep.folder, sys.argv[1])
for step in (10, 20):
    sweep.report(trial, step)
if len(sys.argv) > 3:
    follower.wait(300)
print("ready", flush=True)
time.sleep(600)
"""
PASSWORD = "c0rrect-h0rse"


def process_of(driver: int) -> psutil.Process:
    """Returns the process that follows for the driver with this number."""

    def following() -> list[psutil.Process]:
        return [child for child in psutil.Process(driver).children() if "orchestrator.review.mirror" in child.cmdline()]

    return wait_for(following, seconds=60)[0]  # one that has died is started again


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Follower]]:
    started = []

    def start(uri: str) -> Follower:
        started.append(Follower(tmp_path / "runs", uri))
        return started[-1]

    yield start
    for follower in started:
        follower.stop()


@pytest.fixture
def driver(uri: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts drivers in a process group of their own."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", DRIVER, uri, str(tmp_path / "runs"), *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow  # a process imports MLflow, and is started again
def test_it_follows_the_log_and_is_started_again_if_it_dies(
    follow: Callable[..., Follower],
    uri: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError('a module of the user, which no library means')")
    monkeypatch.chdir(tmp_path)
    trial, sweep = entry(), SweepLog(tmp_path / "runs")
    assert Sent.read(SweepFolder(tmp_path / "runs"), uri).page is None
    sweep.start(trial)
    follower = follow(uri)
    sweep.run(trial)
    sweep.report(trial, 10)
    assert follower.wait(0) == (5, 0)
    assert follower.wait(300) == (0, 0)
    process = process_of(os.getpid())
    assert process.nice() >= NICENESS
    number = MlflowClient(uri).get_experiment_by_name("demo").experiment_id
    page = f"#/experiments/{number}/runs?viewStateShareKey=front-55555555"
    assert Sent.read(SweepFolder(tmp_path / "runs"), uri).page == page
    assert Sent.read(SweepFolder(tmp_path / "runs"), "http://elsewhere:5000").page is None
    process.kill()
    sweep.report(trial, 20)
    sweep.finish(trial, adapter="gone")
    assert follower.wait(300) == (0, 1), "nobody waits for what the store has refused: the adapter that is not there"
    assert history(uri, runs(uri)["trial", trial.key], "search_score") == [(10, 60.0), (20, 70.0), (30, 79.0)]
    assert "ended with status -9; it is started again" in caplog.text


@pytest.mark.slow
def test_a_store_whose_file_was_removed_is_made_again(follow: Callable[..., Follower], uri: str, tmp_path: Path) -> None:
    trial, sweep = entry(), SweepLog(tmp_path / "runs")
    sweep.start(trial)
    follower = follow(uri)
    sweep.run(trial)
    assert follower.wait(300) == (0, 0)
    for file in tmp_path.glob("mlflow.db*"):
        file.unlink()
    process_of(os.getpid()).wait(60)
    sweep.report(trial, 10)
    assert follower.wait(300) == (0, 0)
    assert len(runs(uri)) == 3


@pytest.mark.slow
def test_ctrl_c_and_sigterm_leave_it_to_be_drained(driver: Callable[..., subprocess.Popen[str]]) -> None:
    process = driver("wait")
    follower = process_of(process.pid)
    assert os.getpgid(follower.pid) != process.pid, "a terminal's Ctrl-C goes to the driver's group"
    for number in (signal.SIGINT, signal.SIGTERM):
        follower.send_signal(number)
    time.sleep(0.5)
    assert follower.is_running()
    assert follower.status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_it_ends_with_its_driver_and_replay_sends_the_rest(
    driver: Callable[..., subprocess.Popen[str]], uri: str, tmp_path: Path, cli: Cli
) -> None:
    process = driver()
    follower = process_of(process.pid)
    process.kill()
    process.wait()
    follower.wait()
    assert "everything is in the tracking store" in cli("replay", str(tmp_path / "runs")).out
    assert {run.info.status for run in runs(uri).values()} == {"KILLED"}
    assert history(uri, runs(uri)["trial", entry().key], "search_score") == [(10, 60.0), (20, 70.0)]


@pytest.mark.slow
def test_a_store_that_is_away_holds_up_nobody_and_its_password_is_nowhere(
    follow: Callable[..., Follower], tmp_path: Path
) -> None:
    uri = f"http://somebody:{PASSWORD}@127.0.0.1:9"
    sweep = SweepLog(tmp_path / "runs")
    sweep.start(entry())
    follower = follow(uri)
    place = Path(f"/proc/{process_of(os.getpid()).pid}")
    assert PASSWORD.encode() not in (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
    assert follower.wait(2) == (3, 0)
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and PASSWORD.encode() in file.read_bytes()]


@pytest.mark.slow
def test_nothing_is_printed_and_the_driver_never_loads_mlflow(tmp_path: Path) -> None:
    """MLflow's first messages come while it is imported and while it makes a database."""
    SweepLog(tmp_path / "runs").start()
    program = (
        "import sys; from pathlib import Path; from orchestrator.tracking.follower import Follower\n"
        f"follower = Follower(Path({str(tmp_path)!r}) / 'runs', 'sqlite:///{tmp_path}/new/mlflow.db')\n"
        "assert follower.wait(120) == (0, 0) and 'mlflow' not in sys.modules; follower.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

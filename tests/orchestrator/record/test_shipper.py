"""The shipper in a process of its own: it is drained before it ends, ends with its driver, and is started again if it dies."""

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

from orchestrator.record.shipper import NICENESS, ShipperProcess
from orchestrator.record.tracker import Tracker
from tests.orchestrator.tracked import finished, history, progress, runs, spec

DRIVER = """
import sys, time
from pathlib import Path
from orchestrator.record.tracker import Tracker
from tests.orchestrator.tracked import progress, spec

tracker = Tracker(sys.argv[1], "demo", Path(sys.argv[2]), own_process=True)
tracker.sweep_started({"name": "demo"})
tracker.trial_started(spec())
for step in (10, 20, 30):
    tracker.trial_progress(spec().key, progress(step))
    if len(sys.argv) > 3:
        tracker.flush(300)
print("ready", flush=True)
time.sleep(600)
"""


def shipper_of(driver: int) -> psutil.Process:
    """The process that ships for the driver with this number."""
    return next(child for child in psutil.Process(driver).children() if "--follow" in child.cmdline())


@pytest.fixture
def tracker(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracker]:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "1")
    made = Tracker(uri, "demo", tmp_path / "runs", own_process=True)
    made.sweep_started({"name": "demo"})
    yield made
    made.close(0)


@pytest.fixture
def kept_driver(uri: str, tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], psutil.Process]]]:
    """Starts a driver in a process group of its own; gives it and its shipper's process."""
    started: list[subprocess.Popen[str]] = []

    def start(*more: str) -> tuple[subprocess.Popen[str], psutil.Process]:
        command = [sys.executable, "-c", DRIVER, uri, str(tmp_path / "runs"), *more]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process, shipper_of(process.pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_everything_is_shipped_once_and_the_process_has_ended(tracker: Tracker, uri: str, tmp_path: Path) -> None:
    trial, process = spec(), shipper_of(os.getpid())
    tracker.trial_started(trial)
    for step in (10, 20, 30):
        tracker.trial_progress(trial.key, progress(step))
    assert tracker.waiting >= 5
    assert tracker.flush(300) == tracker.waiting == 0
    assert process.nice() >= NICENESS
    tracker.trial_ended(finished(trial), tmp_path / "gone")
    assert tracker.close(300) == 1, "nobody waits for what the store has refused: the adapter that is not there"
    assert not process.is_running()
    run = runs(uri)["trial", trial.key]
    assert history(uri, run, "search_score") == [(10, 60.0), (20, 70.0), (30, 80.0)]
    assert run.info.status == "FINISHED"


@pytest.mark.slow
def test_the_sweeps_run_has_mlflows_own_samples_of_the_machine(tracker: Tracker, uri: str) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = runs(uri) if tracker.flush(300) == 0 else {}
        if ("sweep", "demo") in found and "system/cpu_utilization_percentage" in found["sweep", "demo"].data.metrics:
            return
        time.sleep(0.5)
    pytest.fail("no samples")


@pytest.mark.slow
def test_killed_it_is_started_again_and_nothing_is_lost(tracker: Tracker, uri: str, caplog: pytest.LogCaptureFixture) -> None:
    trial = spec()
    tracker.trial_started(trial)
    assert tracker.flush(300) == 0
    shipper_of(os.getpid()).kill()
    for step in (10, 20, 30):
        tracker.trial_progress(trial.key, progress(step))
    assert tracker.close(300) == 0
    assert history(uri, runs(uri)["trial", trial.key], "search_score") == [(10, 60.0), (20, 70.0), (30, 80.0)]
    assert "ended with status -9; starting it again" in caplog.text


@pytest.mark.slow
def test_ctrl_c_and_sigterm_leave_it_to_be_drained(
    kept_driver: Callable[..., tuple[subprocess.Popen[str], psutil.Process]],
) -> None:
    driver, shipper = kept_driver("flushed")
    assert os.getpgid(shipper.pid) != driver.pid, "a terminal's Ctrl-C goes to the driver's group"
    for number in (signal.SIGINT, signal.SIGTERM):
        shipper.send_signal(number)
    time.sleep(0.5)
    assert shipper.is_running()
    assert shipper.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_ends_with_its_driver_and_the_next_one_ships_each_step_once(
    kept_driver: Callable[..., tuple[subprocess.Popen[str], psutil.Process]], uri: str, tmp_path: Path, number: int
) -> None:
    driver, shipper = kept_driver()
    driver.send_signal(number)
    driver.wait()
    shipper.wait(120)

    tracker = Tracker(uri, "demo", tmp_path / "runs")
    tracker.trial_progress(spec().key, progress(30))
    tracker.trial_ended(finished(spec()))
    assert tracker.close(300) == 0
    assert history(uri, runs(uri)["trial", spec().key], "search_score") == [(10, 60.0), (20, 70.0), (30, 80.0)]


def test_the_password_is_on_no_command_line_and_in_no_environment_of_ours(tmp_path: Path) -> None:
    secret = "c0rrect-h0rse"
    shipper = ShipperProcess(tmp_path, f"http://somebody:{secret}@127.0.0.1:9")
    try:
        place = Path(f"/proc/{shipper_of(os.getpid()).pid}")
        assert secret.encode() not in (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
    finally:
        shipper.stop()


def test_a_store_that_is_away_stops_nobody(tmp_path: Path) -> None:
    tracker = Tracker("http://127.0.0.1:9", "demo", tmp_path / "runs", own_process=True)
    tracker.sweep_started({"name": "demo"})
    for step in range(10, 1000, 10):
        tracker.trial_progress(spec().key, progress(step))
    assert tracker.close(2) == 101, "the opening line and every event"


@pytest.mark.slow
def test_nothing_is_printed_and_the_driver_never_loads_mlflow(tmp_path: Path) -> None:
    """MLflow's first words come while it is imported and while it makes a database."""
    program = (
        "import sys; from pathlib import Path; from orchestrator.record.tracker import Tracker\n"
        f"tracker = Tracker('sqlite:///{tmp_path}/new/mlflow.db', 'demo', Path({str(tmp_path)!r}) / 'runs', own_process=True)\n"
        "tracker.sweep_started({'name': 'demo'}); tracker.sweep_ended('finished', {})\n"
        "assert tracker.close(120) == 0 and 'mlflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

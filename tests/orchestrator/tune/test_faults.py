"""What dies, hangs, fills up or eats memory under a sweep, on real processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import ended, kill_at_random, scores_of, starts, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
DISK = "4m"
Drivers = Callable[..., subprocess.Popen[str]]


def stored(folder: Path) -> int:
    """Checkpoints that are on storage."""
    return len(list(folder.glob("test/ray/attempt-*/*/checkpoint_*/manifest.json")))


@pytest.mark.parametrize(
    ("number", "times", "group", "status"),
    [
        (signal.SIGTERM, 1, True, 143),
        (signal.SIGINT, 1, True, 130),
        (signal.SIGINT, 2, True, 130),
        (signal.SIGTERM, 1, False, 143),
        (signal.SIGHUP, 1, True, 129),
    ],
    ids=["SIGTERM to the group", "Ctrl-C", "Ctrl-C twice", "SIGTERM to the driver", "the terminal is closed"],
)
def test_stopped_a_sweep_says_what_is_left_and_how_to_go_on(
    tmp_path: Path, driver: Drivers, number: int, times: int, group: bool, status: int
) -> None:
    process = driver(tmp_path, ranks=[1, 2, 4], seconds=3, session=True)
    wait_for(lambda: stored(tmp_path) >= 1, process)
    for _ in range(times):
        os.killpg(process.pid, number) if group else process.send_signal(number)
        time.sleep(1)
    out, screen = process.communicate(timeout=45)
    assert process.returncode == status, screen
    assert "Stopping: running trials keep their last checkpoints." in screen
    state = read_state(SweepFolder(tmp_path / "test").record)
    assert state.ended is not None
    assert not state.in_phase("running")
    assert any(entry.begun for entry in state.entries.values())
    left = 3 - len(results_of(tmp_path / "test"))
    last = out.strip().splitlines()[-1]
    assert last.startswith(f"{left} trial")
    assert " --resume --tracking-uri " in last

    ended(driver(tmp_path, ranks=[1, 2, 4], seconds=0, session=True))
    assert scores_of(tmp_path / "test") == [61.0, 62.0, 64.0]
    assert any(first > 0 for _, _, first in starts(tmp_path / "log"))


def test_killed_at_random_moments_nothing_is_lost_and_nothing_finished_runs_again(tmp_path: Path) -> None:
    assert len(list(kill_at_random(tmp_path, times=3, draw=random.Random(0)))) == 4


def test_one_trial_that_eats_all_memory_fails_alone_and_a_process_that_is_stopped_for_good_is_ended(
    tmp_path: Path, driver: Drivers
) -> None:
    """A neighbour maps a file of weights that is larger than a trial's share: it costs no memory."""
    how, share = {(1, 0): "maps", (2, 0): "eats", (4, 0): "stops once"}, "{cpu: 1, memory: 1 GiB, heartbeat_minutes: 0.6}"
    process = driver(tmp_path, ranks=[1, 2, 4], behaviour=how, resources=share, seconds=0.5, session=True)
    assert "no sign of life for 1 min 12 s, so its process was ended" in ended(process, 1)
    assert {result.metrics.get("score") for result in results_of(tmp_path / "test").values()} == {61.0, 64.0, None}
    (failed,) = [result for result in results_of(tmp_path / "test").values() if result.status == "failed"]
    assert "tried micro-batches of 16 x 1, 8 x 2, 4 x 4, 2 x 8, 1 x 16" in (failed.error or "")
    assert "resources.memory: 1.0 GiB" in (failed.error or "")
    assert failed.retryable
    stopped, *_ = [int(line.split()[4]) for line in (tmp_path / "log").read_text().splitlines() if line.startswith("start 4 0")]
    wait_for(lambda: not psutil.pid_exists(stopped), seconds=30)


def test_a_disk_that_fills_up_ends_the_sweep_which_goes_on_when_there_is_room(disk: Path, driver: Drivers) -> None:
    """The log, the tracking store and the checkpoints are all on it."""
    process = driver(disk, ranks=[1, 2], seconds=2.0, session=True)
    wait_for(lambda: stored(disk) >= 1, process)
    with (disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(b"0" * 4096)
    shown = ended(process, 1)
    # The log finds no room, or before that each try of a trial, whose failure is on record then.
    assert "cannot be written" in shown or "No space left on device (4 times)" in shown
    assert "Traceback" not in shown
    (disk / "ballast").unlink()
    ended(driver(disk, ranks=[1, 2], session=True))
    assert scores_of(disk / "test") == [61.0, 62.0]


def test_storage_that_becomes_read_only_ends_the_sweep_which_goes_on_when_it_is_mended(
    tmp_path: Path, disk: Path, driver: Drivers
) -> None:
    """Checkpoints alone lie there, by a URI."""
    storage = f"file://{disk}"
    process = driver(tmp_path, ranks=[1, 2], seconds=2.0, session=True, storage=storage)
    wait_for(lambda: bool(list(disk.glob("test/attempt-*/*/checkpoint_*/manifest.json"))), process)
    # Refused while a file is open for writing there.
    wait_for(lambda: not subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True).returncode, process)
    shown = ended(process, 1)
    assert "Read-only file system" in shown
    assert "Traceback" not in shown
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    ended(driver(tmp_path, ranks=[1, 2], session=True, storage=storage))
    assert scores_of(tmp_path / "test") == [61.0, 62.0]

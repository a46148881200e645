"""What a process leaves: its reason in a person's words, and folders of working files that go with it. `test_runner` has those
that die and hang under Ray."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.worker.crash import describe, machine_lost
from orchestrator.worker.surroundings import scratch_folder

GUESSES = (
    "The actor died unexpectedly before finishing this task. Worker unexpectedly exits with a connection error code 2. End of "
    "file. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop "
    "--force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error."
)
UNAVAILABLE = (
    "The actor 60a0fa21 is unavailable: The actor is temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14. "
    "The task may or may not have been executed on the actor."
)
PRESSURE = "2 worker(s) were killed due to the node running low on memory. Memory on the node was 22.9GB / 23.0GB."


@pytest.mark.parametrize(
    ("said", "found", "lost"),
    [
        (GUESSES, "its process died", False),
        (PRESSURE, "memory ran out on its machine", False),
        ("The node has died: worker memory was killed", "the machine it ran on was lost", True),
        (UNAVAILABLE, "the machine it ran on is out of reach", True),
    ],
)
def test_a_lost_process_or_machine_is_told_by_what_ray_knows_not_by_what_it_guesses(said: str, found: str, lost: bool) -> None:
    assert found in describe(RuntimeError(said))
    assert machine_lost(RuntimeError(said)) is lost


HOLD = (
    "from orchestrator.worker.surroundings import scratch_folder\n"
    "with scratch_folder('trial') as folder:\n"
    "    (folder / 'file').write_text('x'); print(folder, flush=True); input()\n"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_a_folder_is_removed_when_it_is_left_and_that_of_a_killed_process_with_the_next(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        theirs = Path(other.stdout.readline().strip())
        with scratch_folder("trial") as folder:
            assert (theirs / "file").exists(), "its process lives"
            assert folder.is_relative_to(tmp_path)
            assert folder.parent.stat().st_mode & 0o777 == 0o700
            (folder / "file").write_text("x")
        assert not folder.exists()
        other.kill()
    assert (theirs / "file").exists()
    with scratch_folder("trial"):
        assert not theirs.exists()


def test_a_folder_that_somebody_else_put_there_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scratch_folder("trial") as folder:
        trap = folder.parent
    (tmp_path / "theirs").mkdir()
    (trap / ".lock").unlink()
    trap.rmdir()
    trap.symlink_to(tmp_path / "theirs")
    with scratch_folder("trial") as folder:
        assert not folder.is_relative_to(tmp_path / "theirs")
        assert folder.parent != trap

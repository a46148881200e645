"""Folders of working files: there while their process lives, gone soon after it was killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.worker.guards import scratch_folder

HOLD = (
    "from orchestrator.worker.guards import scratch_folder\n"
    "with scratch_folder('trial') as folder:\n"
    "    (folder / 'file').write_text('x'); print(folder, flush=True); input()\n"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process and the folder that it holds."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.wait()


def test_a_folder_is_gone_when_it_is_left(tmp_path: Path) -> None:
    with scratch_folder("trial") as folder, scratch_folder("trial") as another:
        assert folder != another
        assert folder.is_relative_to(tmp_path)
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("x")
    assert not folder.exists()


def test_that_of_a_living_process_is_let_be(other: tuple[subprocess.Popen[str], Path]) -> None:
    with scratch_folder("trial"):
        assert (other[1] / "file").exists()


def test_that_of_a_killed_process_is_removed_with_the_next(other: tuple[subprocess.Popen[str], Path]) -> None:
    process, folder = other
    process.kill()
    process.wait()
    assert (folder / "file").exists()
    with scratch_folder("trial"):
        assert not folder.exists()


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

"""Folders for the working files of a process, which are removed however the process ends.

A process that is killed cannot clean up. So a process holds a lock on its folder while it lives, and whoever makes the next
folder on the same machine removes the folders that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GATE = ".lock"


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A new, empty folder among the machine's temporary files, for this user alone; removed on leaving."""
    root = _root()
    # Nobody may clear folders between making this one and locking it.
    with (root / GATE).open("w", encoding="utf-8") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        _clear(root)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _root() -> Path:
    root = Path(tempfile.gettempdir()) / f"craft-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="craft-"))  # another user's, who could read or remove our files
    return root


def _clear(root: Path) -> None:
    for folder in root.iterdir():
        if folder.name == GATE:
            continue
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)

"""Folders for the working files of a process, of which none stays for long, however the process ends.

A process that is killed takes nothing away. So each folder is locked by its process for as long as that lives, and whoever
makes the next one on the same machine removes those that nobody holds any more.
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
    """A new, empty folder of this user's alone among the machine's temporary files; removed on leaving."""
    root = _root()
    # Between making a folder and locking it nobody may clear.
    with (root / GATE).open("w") as gate:
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
        return Path(tempfile.mkdtemp(prefix="craft-"))  # somebody else's, who could read or remove what lies there
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

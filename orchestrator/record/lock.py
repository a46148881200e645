"""A sweep's folder has one driver at a time: a second one is refused, and the message names the first."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from orchestrator.record.folder import SweepFolder


@contextmanager
def one_driver(folder: Path) -> Iterator[None]:
    """Holds the sweep's folder for this process. Calls inside it for the same folder hold it once."""
    folder = folder.absolute()
    # The key names the process because a forked child inherits this table but not the lock.
    held = (os.getpid(), folder)
    if held in _held:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(SweepFolder(folder).lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"{folder} is in use by {_holder(folder)}. Wait for it, stop it with Ctrl-C, or give this sweep another --name."
        ) from None
    driver = SweepFolder(folder).driver
    try:
        driver.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}), encoding="utf-8")
        _held.add(held)
        yield
    finally:
        _held.discard(held)
        driver.unlink(missing_ok=True)
        lock.release()


_held: set[tuple[int, Path]] = set()


def _holder(folder: Path) -> str:
    try:
        holder = json.loads(SweepFolder(folder).driver.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError):
        return "another process"

"""A sweep's folder has one driver at a time: a second one is refused, and the message names the first."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from orchestrator.record.folder import SweepFolder

CLOCK_SECONDS = 2.0
"""How much a process's start may be later than a file that it wrote, by clocks that round."""


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
        holder = holder_of(folder) or "another process"
        raise ValueError(
            f"{folder} is in use by {holder}. Wait for it, stop it with Ctrl-C, or give this sweep another --name."
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


@dataclass(frozen=True)
class Holder:
    """The process that drives a sweep, by its own word. A driver that is killed leaves that behind."""

    pid: int
    host: str
    since: float

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_alive(self) -> bool | None:
        """Whether it runs; None on another machine. A younger process with the same number is another one."""
        if self.host != socket.gethostname():
            return None
        try:
            process = psutil.Process(self.pid)
            return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= self.since + CLOCK_SECONDS
        except psutil.Error:
            return False


def holder_of(folder: Path) -> Holder | None:
    """Returns the driver of the sweep in a folder, alive or not; None without one. It takes no lock: a driver that starts at
    this moment must get it."""
    file = SweepFolder(folder).driver
    try:
        holder = json.loads(file.read_text(encoding="utf-8"))
        return Holder(int(holder["pid"]), str(holder["host"]), file.stat().st_mtime)
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""A sweep's folder has one driver at a time: a second one is refused, and the message names the first."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator.record.folder import SweepFolder


@contextmanager
def one_driver(folder: Path) -> Iterator[None]:
    """Holds the sweep's folder for this process. A call inside another one for the same folder takes no second lock."""
    from filelock import FileLock, Timeout

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
            f"{folder} is in use by {holder_of(folder) or 'another process'}. Wait for it, stop it with Ctrl-C, or give this "
            "sweep another --name."
        ) from None
    driver = SweepFolder(folder).driver
    try:
        holder = Holder(os.getpid(), socket.gethostname(), _read_start(os.getpid()))
        driver.write_text(json.dumps(asdict(holder)), encoding="utf-8")
        _held.add(held)
        yield
    finally:
        _held.discard(held)
        driver.unlink(missing_ok=True)
        lock.release()


_held: set[tuple[int, Path]] = set()


@dataclass(frozen=True)
class Holder:
    """The process that drives a sweep, by its own word. A driver that is killed leaves that behind.

    `start` names the process's start as its system counts it. It tells the process from a younger one with the same number, and
    no clock that is behind, or is set, changes it.
    """

    pid: int
    host: str
    start: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_alive(self) -> bool | None:
        """Whether it runs; None on another machine."""
        if self.host != socket.gethostname():
            return None
        import psutil

        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE and _read_start(self.pid) == self.start
        except (psutil.Error, OSError):
            return False


def _read_start(pid: int) -> str:
    """Returns this machine's boot and the ticks from it to a process's start; without /proc the time of the start."""
    try:
        # The process's name, which may hold blanks, is in brackets.
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {ticks}"
    except FileNotFoundError:
        import psutil

        return str(psutil.Process(pid).create_time())


def holder_of(folder: Path) -> Holder | None:
    """Returns the driver of the sweep in a folder, alive or not; None without one. It takes no lock: a driver that starts at
    this moment must get it."""
    file = SweepFolder(folder).driver
    try:
        holder = json.loads(file.read_text(encoding="utf-8"))
        return Holder(int(holder["pid"]), str(holder["host"]), str(holder["start"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None

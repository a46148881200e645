"""`SweepFolder`: the folder `runs/NAME` of a sweep, and the name of every file and folder in it; and its lock.

These names are a format. No other module spells them. A sweep's folder has one driver at a time: a second one is refused, and
the message names the first.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

EFFECTIVE_FILE = "sweep.yaml"
"""Also the name of that file as an artifact in the tracking store."""
LOG_FILE = "log.jsonl"
SILENT_SECONDS = 300.0
"""A driver reports every 15 s. What it reported of its trials counts for so long; then it is most likely gone."""
FRONT_CSV, FRONT_TEX, FRONT_PNG, FRONT_HTML = "front.csv", "front.tex", "front.png", "front.html"


def sweeps_in(storage: Path) -> list[str]:
    return sorted(path.parent.name for path in storage.glob(f"*/{EFFECTIVE_FILE}")) if storage.is_dir() else []


class SweepFolder:
    """The paths inside a sweep's folder. It makes nothing and asks nothing of the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.effective = path / EFFECTIVE_FILE
        """The effective sweep file: the sweep with every default written out."""
        self.written = path / "written.json"
        """The sweep file as it is written, and the changes of it, by which the sweep runs (`orchestrator.record.options`)."""
        self.record = path / LOG_FILE
        """The events of the sweep, in order (`orchestrator.record.log`)."""
        self.tracking = path / "tracking.json"
        """How far the tracking store is, for people and the driver; nothing is resumed from it."""
        self.log = path / "sweep.log"
        """Messages of libraries, and everything that is printed outside the display."""
        self.lock = path / ".lock"
        """The lock that the driver holds (`orchestrator.record.folder`)."""
        self.driver = path / ".driver.json"
        """The process and the machine of the driver that holds the lock."""
        self.requests = path / "requests"
        """What people ask of the driver (`orchestrator.driver.request`)."""
        self.ray = path / "ray"
        """Checkpoints of the trials, unless the sweep's `storage` names another place for them."""
        self.adapters = path / "adapters"
        """Copies of adapters, by trial key, that the driver cannot read where they are stored."""
        self.scratch = path / "scratch"
        """Working files of the trials that run at the moment, a folder for each attempt."""
        self.page = path / FRONT_HTML
        """The sweep's page, as one file."""

    def relative(self, path: Path | None) -> str | None:
        path, base = path and path.resolve(), self.path.resolve()
        return str(path.relative_to(base) if path.is_relative_to(base) else path) if path else None


@contextmanager
def one_driver(folder: Path) -> Iterator[None]:
    """Holds the sweep's folder for this process."""
    from filelock import FileLock, Timeout

    folder = folder.absolute()
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
        yield
    finally:
        driver.unlink(missing_ok=True)
        lock.release()


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


def is_driven(folder: Path) -> bool:
    """Returns whether a driver runs the sweep in a folder: one on another machine does if its log has grown lately."""
    holder = holder_of(folder.absolute())
    alive = holder.is_alive if holder is not None else False
    return time.time() - SweepFolder(folder).record.stat().st_mtime < SILENT_SECONDS if alive is None else alive

"""The process that follows a sweep's log and keeps its runs in MLflow equal, so that MLflow takes no time from the driver.

    driver  -->  log.jsonl  -->  Mirror, in a process of its own  -->  tracking store

The process is niced, and has the driver's environment and log. It gets the store's address, which may hold a password, through
its standard input, so no list of processes shows it. It is in a process group of its own and ignores SIGTERM and SIGHUP,
because it must live until the driver has waited for it. When its input ends, with the driver or by `Follower.stop`, it ends. A
store that does not answer is asked again without end, with growing delays.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import DamagedLog
from orchestrator.tools.secrets import redact
from orchestrator.tools.signals import SIGNALS

if TYPE_CHECKING:
    from orchestrator.tracking.desired import MakeDesired
    from orchestrator.tracking.mirror import Mirror

log = logging.getLogger(__name__)

STEP_S, LOG_EVERY_S = 0.5, 2.0
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
NICENESS = 10
STOP_S = 4.0
REPLAYS = 3
"""So often a replay reads the whole store to find nothing missing any more."""


class Follower:
    """The driver's end of the process that follows the log of the sweep in `folder`.

    It starts at once, and takes seconds to load MLflow. `look` starts it again if it has died.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        self._folder, self._uri = SweepFolder(folder.absolute()), uri
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths, self._next_start = 0, 0.0
        self.look()

    def look(self) -> None:
        """Starts the process again if it has died; called often."""
        if time.monotonic() < self._next_start or (self._process is not None and self._process.poll() is None):
            return
        if self._process is not None:
            status = self._process.returncode
            log.warning("the process that writes to the tracking store ended with status %d; it is started again", status)
        command = [sys.executable, "-m", "orchestrator.commands.track", str(self._folder.path)]
        self._next_start = time.monotonic() + _pause(self._deaths)
        self._deaths += 1
        self._process = None
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, process_group=0)
            assert self._process.stdin is not None
            os.write(self._process.stdin.fileno(), self._uri.encode() + b"\n")
        except OSError as error:
            log.warning("the process that writes to the tracking store cannot be started: %s", error)

    def wait(self, timeout_s: float) -> int:
        """Waits until the store has the whole log; returns the number of events, and of refused values, that it lacks."""
        end, record = time.monotonic() + timeout_s, self._folder.record
        while (report := Report.read(self._folder, self._uri)).offset < (record.stat().st_size if record.exists() else 0):
            if time.monotonic() >= end:
                break
            self.look()
            time.sleep(0.05)
        return _count_events(record, report.offset) + report.refused

    def stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@dataclass(frozen=True)
class Report:
    """How far the store at `uri` is, as the process last wrote it down for the driver and for people.

    Attributes:
        offset: how many bytes of the log the store has.
        refused: how many values it has refused.
        page: the place of the sweep's front on the page of the store's server; None if the store has nothing of the sweep.
    """

    store: str = ""
    offset: int = 0
    refused: int = 0
    page: str | None = None

    @classmethod
    def read(cls, folder: SweepFolder, uri: str) -> Report:
        try:
            report = cls(**json.loads(folder.tracking.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls()
        return report if report.store == redact(uri) else cls()


def follow(folder: Path, make_desired: MakeDesired) -> None:
    """Follows the log, for the store whose address comes by standard input, until the input ends."""
    os.nice(NICENESS)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    uri = sys.stdin.readline().strip()

    def end_with_driver() -> None:
        sys.stdin.read()
        os._exit(0)  # nothing to tidy: the next process reads what the store has

    threading.Thread(target=end_with_driver, daemon=True).start()
    # MLflow takes seconds to load, and the driver may end meanwhile.
    from orchestrator.tracking.mirror import Mirror
    from orchestrator.tracking.private import watch_machine

    mirror, watched = Mirror(folder, uri, make_desired, log_every=LOG_EVERY_S), False
    for _ in _steps(mirror):
        _write_report(mirror, SweepFolder(folder), uri)
        if mirror.store is not None and mirror.store.replaced:
            return  # the driver starts another process, which opens the new file
        if not watched and mirror.sweep_run is not None:
            watch_machine(mirror.sweep_run.id, uri)
            watched = True
        time.sleep(STEP_S)  # events gather meanwhile


def replay(folder: Path, uri: str, make_desired: MakeDesired, timeout_s: float) -> int:
    """Makes the store at the resolved `uri` equal to the log of a sweep that nothing runs; returns as `Follower.wait`.

    What was sent is read back: a proxy may have answered without an error, and sent nothing on.
    """
    from orchestrator.tracking.mirror import Mirror

    end, record = time.monotonic() + timeout_s, SweepFolder(folder).record
    for _ in range(REPLAYS):
        mirror = Mirror(folder, uri, make_desired, lost=True)
        for _ in _steps(mirror, timeout_s, (DamagedLog,)):
            if mirror.offset >= record.stat().st_size or time.monotonic() >= end:
                break
        not_kept = mirror.store.done if mirror.store else 0
        if not not_kept or time.monotonic() >= end:
            not_kept = 0
            break
    _write_report(mirror, SweepFolder(folder), uri)
    return _count_events(record, mirror.offset) + mirror.refused + not_kept


def _steps(mirror: Mirror, longest: float = PAUSES_S[-1], fatal: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Takes steps without end, with growing delays while the store is away. Raises only the errors that are `fatal`."""
    failures = 0
    while True:
        try:
            mirror.step()
            failures, tries = 0, mirror.stuck
        except fatal:
            raise
        except Exception as error:  # no error of a store, its driver or the network may end the record
            failures = tries = failures + 1
            if failures == 1 and isinstance(error, DamagedLog):
                log.error("%s Until then the store gets nothing more of this sweep.", error)
            elif failures == 1:
                reason = redact(f"{type(error).__name__}: {error}".strip().splitlines()[0])[:300]
                log.warning("tracking store: %s; training continues, and the store gets the rest later", reason)
        if tries:
            time.sleep(min(longest, _pause(tries - 1) * random.uniform(0.75, 1.25)))
        yield


def _count_events(record: Path, offset: int) -> int:
    return record.read_bytes().count(b"\n", offset) if record.exists() else 0


def _pause(failures: int) -> float:
    return PAUSES_S[min(failures, len(PAUSES_S) - 1)]


def _write_report(mirror: Mirror, folder: SweepFolder, uri: str) -> None:
    if mirror.store is None:
        return
    report = json.dumps(asdict(Report(redact(uri), mirror.offset, mirror.refused, mirror.page)))
    aside = folder.tracking.with_name(f".{folder.tracking.name}.{os.getpid()}")
    try:
        if not folder.tracking.exists() or folder.tracking.read_text(encoding="utf-8") != report:
            aside.write_text(report, encoding="utf-8")
            aside.replace(folder.tracking)
    except OSError as error:
        log.warning("%s cannot be written: %s", folder.tracking, error)

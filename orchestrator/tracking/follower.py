"""The driver's end of the process that follows a sweep's log and keeps its runs in MLflow equal, so that MLflow takes no time
from the driver.

    driver  -->  log.jsonl  -->  `orchestrator.review.mirror`, in a process of its own  -->  tracking store

The process has the driver's environment and log. It gets the store's address, which may hold a password, through its standard
input, so no list of processes shows it. It is in a process group of its own, because it must live until the driver has waited
for it. When its input ends, with the driver or by `Follower.stop`, it ends.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from craft.words import plural
from orchestrator.record.folder import SweepFolder
from orchestrator.tools.secrets import redact

log = logging.getLogger(__name__)

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
STOP_S = 4.0


class Lacks(NamedTuple):
    """What a store lacks: the numbers of events that have not arrived, and of values that it refused."""

    events: int
    refused: int = 0


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
        # Without -P, modules in the current folder would replace installed ones.
        command = [sys.executable, "-P", "-m", "orchestrator.review.mirror", str(self._folder.path)]
        self._next_start = time.monotonic() + pause(self._deaths)
        self._deaths += 1
        self._process = None
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, process_group=0)
            assert self._process.stdin is not None
            os.write(self._process.stdin.fileno(), self._uri.encode() + b"\n")
        except OSError as error:
            log.warning("the process that writes to the tracking store cannot be started: %s", error)

    def wait(self, timeout_s: float) -> Lacks:
        """Waits until the store has the whole log, but for what it refused; returns what it lacks."""
        end, record = time.monotonic() + timeout_s, self._folder.record
        while (sent := Sent.read(self._folder, self._uri)).offset < (record.stat().st_size if record.exists() else 0):
            if time.monotonic() >= end:
                break
            self.look()
            time.sleep(0.05)
        return Lacks(count_events(record, sent.offset), sent.refused)

    def stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@dataclass(frozen=True)
class Sent:
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
    def read(cls, folder: SweepFolder, uri: str) -> Sent:
        try:
            report = cls(**json.loads(folder.tracking.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return cls()
        return report if report.store == redact(uri) else cls()


def count_events(record: Path, offset: int) -> int:
    """Returns how many events a log has after its first `offset` bytes."""
    return record.read_bytes().count(b"\n", offset) if record.exists() else 0


def describe_refused(number: int) -> str:
    """Returns that a store refused so many values; the process that sent them has said why."""
    values = f"{number} {plural(number, 'value')}"
    return f"the store refused {values}: messages above or in sweep.log say why; craft-sweeps replay offers them again"


def pause(failures: int) -> float:
    """Returns the seconds to wait after so many failures in a row."""
    return PAUSES_S[min(failures, len(PAUSES_S) - 1)]

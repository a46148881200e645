"""The shipper in a process of its own, so that MLflow takes no time from the interpreter that drives the trials.

    driver   ShipperProcess  --orders-->     serve: Shipper  -->  tracking store
                             <--standing--      |
                 Tracker  -->  journal.jsonl  --+

The journal is the channel of events: the process looks at it again and again, so the driver writes nothing twice. Through two
pipes go lines of JSON: the driver's orders (what to ship, hurry, stop) and the process's answers (how far it is). The store's
address, which may hold a password, travels through the pipe, so no list of processes shows it.

The process runs niced, with the driver's environment and log. It is in a process group of its own and ignores SIGTERM, because
it must live until the driver has drained it; when the driver is gone, however it died, its pipe is at an end and so is the
process. If the process dies, it is started again, and goes on from the cursor.

    python -m orchestrator.record.shipper_process          serves whoever holds its pipes
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from orchestrator.record.folder import SweepFolder
from orchestrator.record.shipper import Shipper, Standing, saved_offset
from orchestrator.tools.journal import Event, read
from orchestrator.tools.quiet import LOG_FORMAT

log = logging.getLogger(__name__)

NICENESS = 10
LOOK_S, HURRIED_LOOK_S = 0.5, 0.05
"""Time between two looks at the journal; the second while somebody waits for the record."""
STOP_S = 4.0
PAUSES_S = (0.5, 2.0, 8.0, 30.0)
LIVED_S = 60.0
"""A process that lived so long died of something new: it is started again at once."""


class ShipperProcess:
    """The driver's end: starts the process, and knows how far it is. It has the methods of `Shipper`."""

    def __init__(self, folder: Path, uri: str, opened: Event, artifact_root: Path | None) -> None:
        self._task = {
            "folder": str(folder),
            "uri": uri,
            "opened": opened,
            "artifact_root": artifact_root and str(artifact_root),
        }
        self._change = threading.Condition()
        self._hurried = self._stopped = False
        place = SweepFolder(folder)
        refused = sum(1 for _ in read(place.refused))
        behind = [end for _, end in read(place.journal, saved_offset(place, uri))]
        # Until the process says better.
        self._standing = Standing(behind[-1] if behind else 0, len(behind) + refused, refused, retrying=bool(refused))
        self._unseen: deque[tuple[int, int]] = deque()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process and returns at once; the process takes seconds to load MLflow."""
        self._launch()
        threading.Thread(target=self._listen, name="tracking-shipper", daemon=True).start()

    @property
    def waiting(self) -> int:
        with self._change:
            return self._waiting()

    @property
    def pid(self) -> int | None:
        """The process's number; None if it could not be started."""
        return self._process.pid if self._process else None

    def added(self, count: int, end: int) -> None:
        """Notes that the journal has grown by `count` events, the last of which ends at byte `end`."""
        with self._change:
            self._unseen.append((count, end))

    def drain(self, timeout_s: float) -> int:
        """Waits until the store has everything, at most `timeout_s` seconds; returns how many events still wait."""
        self._hurry(True)
        with self._change:
            self._change.wait_for(self._settled, timeout_s)
        self._hurry(False)
        return self.waiting

    def stop(self) -> None:
        """Ends the process as soon as its present request returns, or after some seconds in any case."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
            process = self._process
            if process is not None:
                self._tell("stop")
        if process is not None:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _waiting(self) -> int:
        # Events that the process has not seen yet, and those that it has seen and the store has not taken.
        return self._standing.waiting + sum(count for count, _ in self._unseen)

    def _settled(self) -> bool:
        """Whether the store has everything but what it has refused."""
        return self._waiting() <= self._standing.aside and not self._standing.retrying

    def _hurry(self, on: bool) -> None:
        with self._change:
            self._hurried = on
            self._tell("hurry" if on else "rest")

    def _tell(self, order: Any) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # the process is dead; the next one is told anew
                os.write(self._process.stdin.fileno(), json.dumps(order).encode() + b"\n")

    def _launch(self) -> None:
        """Starts a process and tells it what to ship, unless this shipper was stopped meanwhile."""
        command = [sys.executable, "-m", "orchestrator.record.shipper_process"]
        with self._change:
            if self._stopped:
                return
            try:
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
            except OSError as error:
                self._process = None
                log.warning("the process that ships to the tracking store cannot be started: %s", error)
                return
            self._tell(self._task)
            if self._hurried:
                self._tell("hurry")

    def _listen(self) -> None:
        """Takes the answers of one process after the other, until the shipper is stopped."""
        deaths = 0
        while not self._stopped:
            began = time.monotonic()
            if self._process is not None:
                assert self._process.stdout is not None
                self._hear(self._process.stdout)
                status = self._process.wait()
                if not self._stopped:
                    log.warning("the process that ships to the tracking store ended with status %d; starting it again", status)
            deaths = 1 if time.monotonic() - began > LIVED_S else deaths + 1
            with self._change:
                self._change.wait_for(lambda: self._stopped, PAUSES_S[min(deaths, len(PAUSES_S)) - 1])
            self._launch()

    def _hear(self, answers: IO[bytes]) -> None:
        with answers:
            for line in answers:
                with self._change:
                    self._standing = Standing(*json.loads(line))
                    while self._unseen and self._unseen[0][1] <= self._standing.seen:
                        self._unseen.popleft()
                    self._change.notify_all()


def serve() -> None:
    """The process's end: ships what the first order says, until it is told to stop or its driver is gone."""
    os.nice(NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # What libraries print must not come between the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT)
    orders = _orders()
    task: dict[str, Any] = next(orders)
    with one_shipper(Path(task["folder"])):
        root = task["artifact_root"]
        shipper = Shipper(Path(task["folder"]), task["uri"], task["opened"], Path(root) if root else None)
        shipper.start()
        told, pause = None, LOOK_S
        while True:
            shipper.look()
            if (standing := shipper.standing) != told:
                _answer(answers, standing)
                told = standing
            order = orders.send(pause)
            if order == "stop":
                shipper.stop()
                os._exit(0)
            if order is not None:
                shipper.hurry(order == "hurry")
                pause = HURRIED_LOOK_S if order == "hurry" else LOOK_S


def _orders() -> Generator[Any, float, None]:
    """The driver's orders from stdin: the first one whenever it comes; then each one that comes within the seconds sent, or
    None. The process ends when the driver is gone."""
    came, seconds = b"", None
    while True:
        while b"\n" not in came and select.select([0], [], [], seconds)[0]:
            part = os.read(0, 65536)
            if not part:
                os._exit(0)  # nothing to tidy: what the store has not taken is in the journal
            came += part
        line, end, rest = came.partition(b"\n")
        came = rest if end else came
        seconds = yield json.loads(line) if end else None


def _answer(answers: int, standing: Standing) -> None:
    try:
        os.write(answers, json.dumps(standing).encode() + b"\n")
    except BrokenPipeError:
        os._exit(0)


@contextmanager
def one_shipper(folder: Path) -> Iterator[None]:
    """Waits until no other process ships from this folder: one of a driver that was killed may live for a moment longer."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks for folders
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


if __name__ == "__main__":
    serve()

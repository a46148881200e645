"""Carries the journal of a sweep to its tracking store, in order and in batches, until the store has everything.

    driver   Tracker  -->  journal.jsonl  -->  Shipper  -->  tracking store
                |                                 |
                +---- reads ---- tracking.cursor.json

A sweep runs the shipper in a process of its own (`ShipperProcess`), so that MLflow takes no time from the interpreter that
drives the trials. The journal is the channel, and the cursor says how far the store is: one offset a store, which moves only
after the store has taken a batch. A crash repeats at most one batch, which is harmless.

A store that does not answer is asked again without end, with growing pauses. An event that a store answers with a refusal, or
fails at again and again, is set aside in `tracking.refused.jsonl`, so that one bad value cannot hold up the record; the next
session of the sweep offers it again.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from craft.disk import flush, replacing
from craft.words import redact
from orchestrator.record.folder import SweepFolder
from orchestrator.record.mlflow_client import is_lost, is_missing, is_refusal
from orchestrator.record.mlflow_writer import MlflowWriter
from orchestrator.tools.journal import Event, Journal, events_of, read

log = logging.getLogger(__name__)

BATCH = 3000
"""Events in one go, at most. What a trial reports several times within them travels in one request: a store that is behind a
thousand running trials takes four reports in the time of two."""
LOOK_S = 0.5
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
TRIES = 5
NICENESS = 10
STOP_S = 4.0


def saved_offset(folder: SweepFolder, uri: str) -> int:
    """How many bytes of the journal the store at `uri` has taken, by the cursor; 0 if that cannot be."""
    try:
        offset = int(_read_cursor(folder)[redact(uri)]["offset"])
    except (KeyError, TypeError, ValueError):
        return 0
    return offset if 0 <= offset <= _size(folder.journal) else 0


def saved_page(folder: SweepFolder, uri: str) -> str | None:
    """The place of the sweep's front on the page of the MLflow server at `uri`; None if the store has nothing of the sweep."""
    try:
        return str(_read_cursor(folder)[redact(uri)]["page"])
    except (KeyError, TypeError):
        return None


def _read_cursor(folder: SweepFolder) -> dict[str, Any]:
    try:
        return dict(json.loads(folder.cursor.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def count_waiting(folder: SweepFolder, uri: str) -> int:
    """How many events the store has not taken, those that it refused included."""
    return sum(1 for _ in read(folder.journal, saved_offset(folder, uri))) + sum(1 for _ in read(folder.refused))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class Shipper:
    """Ships the journal of the sweep in `folder` to the store at `uri`, in the caller's thread."""

    def __init__(self, folder: Path, uri: str) -> None:
        self._folder, self._path, self._uri = SweepFolder(folder), SweepFolder(folder).journal, uri
        self._offset = saved_offset(self._folder, uri)
        self._offered_again = not _size(self._folder.refused)
        self._failures = 0
        self._writer: MlflowWriter | None = None

    def ship(self, timeout_s: float) -> None:
        """Ships until the store has everything, or so many seconds have passed."""
        end = time.monotonic() + timeout_s
        while self._behind and (left := end - time.monotonic()) > 0:
            self._try(min(left, PAUSES_S[0]))

    def follow(self) -> None:
        """Ships as the journal grows, without end."""
        watches = False
        while True:
            if self._behind:
                self._try(PAUSES_S[min(self._failures, len(PAUSES_S) - 1)] * random.uniform(0.75, 1.25))
            watches = watches or (self._writer is not None and self._writer.watch_machine(self._uri))
            time.sleep(LOOK_S)  # events gather meanwhile

    @property
    def _behind(self) -> bool:
        return self._offset < _size(self._path) or not self._offered_again

    def _try(self, pause: float) -> None:
        """Ships a batch; waits `pause` seconds if the store does not answer."""
        try:
            flush(self._path)
            self._step()
            self._failures = 0
        except Exception as error:  # no error of a store, its driver or the network may end the record
            self._failures += 1
            self._failed(error, pause)

    def _step(self) -> None:
        if self._writer is None:
            self._writer = self._connect()
        if not self._offered_again:
            self._offer_refused()
        batch = list(itertools.islice(read(self._path, self._offset), BATCH))
        if batch:
            self._writer.write([event for event, _ in batch])
            self._taken(batch[-1][1])

    def _failed(self, error: Exception, pause: float) -> None:
        text = redact(f"{type(error).__name__}: {error}".strip().splitlines()[0])[:300]
        if self._failures == 1:
            log.warning("tracking store %s: %s; training goes on, the record waits in %s", redact(self._uri), text, self._path)
        if is_missing(error) and self._failures < TRIES:
            self._writer = None
        if self._writer is not None and self._writer.reconnect():
            self._one_by_one()
        else:
            time.sleep(pause)

    def _one_by_one(self) -> None:
        """Ships the batch that failed event by event, so that a connection that loses requests still gets on.

        An event is set aside if the store refuses it, or fails at it TRIES times while it answers other requests.
        """
        for event, offset in itertools.islice(read(self._path, self._offset), BATCH):
            attempts = 0
            while True:
                assert self._writer is not None
                try:
                    self._writer.write([event])
                    break
                except Exception as error:  # the error's kind, and whether the store answers, decide below
                    if is_missing(error) or not self._writer.reconnect():
                        return
                    # A request that was lost on the way says nothing about the event.
                    attempts += not is_lost(error)
                    if is_refusal(error) or attempts == TRIES:
                        self._set_aside(event, error)
                        break
                    time.sleep(PAUSES_S[min(attempts, len(PAUSES_S) - 1)])
            self._taken(offset)

    def _set_aside(self, event: Event, error: Exception) -> None:
        reason = redact(f"{type(error).__name__}: {error}")[:1000]
        log.error("tracking store refuses a %s event: %s", event.get("kind"), reason)
        with Journal(self._folder.refused) as refused:
            refused.append({**event, "reason": reason})

    def _offer_refused(self) -> None:
        """Offers again, once a session, the events that were set aside; those that are refused again stay aside."""
        assert self._writer is not None
        left = []
        for event, _ in list(read(self._folder.refused)):
            try:
                self._writer.write([event])
            except Exception as error:  # it was refused before; the reason is on file
                log.info("still refused: %s", redact(str(error)))
                left.append(event)
                self._writer.reconnect()
        with replacing(self._folder.refused) as aside, Journal(aside) as refused:
            refused.extend(left)
        self._offered_again = True

    def _connect(self) -> MlflowWriter:
        writer = MlflowWriter(self._uri, next(events_of(self._path, "opened")), self._folder.path)
        if not writer.knows_sweep:
            self._offset = 0  # a new store, or somebody emptied or replaced it: it gets the whole record
        return writer

    def _taken(self, offset: int) -> None:
        assert self._writer is not None
        self._offset = offset
        taken = {redact(self._uri): {"offset": offset, "page": self._writer.page}, "saved": int(time.time())}
        try:
            flush(self._path)  # after a power cut the cursor must not point behind the journal's end
            with replacing(self._folder.cursor) as aside:
                aside.write_text(json.dumps(_read_cursor(self._folder) | taken), encoding="utf-8")
        except OSError as error:
            # Without a new cursor the next session repeats this batch, which is harmless.
            log.warning("the tracking cursor cannot be saved: %s", error)


class ShipperProcess:
    """The driver's end of a shipper that is a process: `python -m orchestrator.tracking replay --follow`.

    The process is niced, and has the driver's environment and log. It gets the store's address, which may hold a password,
    through its standard input, so no list of processes shows it. It is in a process group of its own and ignores SIGTERM,
    because it must live until the driver has waited for it; when its input ends, with the driver or by `stop`, it ends.
    If it dies, it is started again, and continues from the cursor.
    """

    def __init__(self, folder: Path, uri: str) -> None:
        """Starts the process and returns at once; the process takes seconds to load MLflow."""
        self._folder, self._uri = SweepFolder(folder), uri
        self._process: subprocess.Popen[bytes] | None = None
        self._deaths, self._next = 0, 0.0
        self.look()

    def look(self) -> None:
        """Starts the process again if it has died; called often."""
        if time.monotonic() < self._next or (self._process is not None and self._process.poll() is None):
            return
        if self._process is not None:
            log.warning(
                "the process that ships to the tracking store ended with status %d; starting it again", self._process.returncode
            )
        command = [sys.executable, "-m", "orchestrator.tracking", "replay", "--follow", str(self._folder.path)]
        self._next = time.monotonic() + PAUSES_S[min(self._deaths, len(PAUSES_S) - 1)]
        self._deaths += 1
        self._process = None
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, process_group=0)
            assert self._process.stdin is not None
            os.write(self._process.stdin.fileno(), self._uri.encode() + b"\n")
        except OSError as error:
            log.warning("the process that ships to the tracking store cannot be started: %s", error)

    def ship(self, timeout_s: float) -> None:
        """Waits until the store has everything, at most so many seconds."""
        end = time.monotonic() + timeout_s
        while saved_offset(self._folder, self._uri) < _size(self._folder.journal) and time.monotonic() < end:
            self.look()
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends the process; what the store has not taken stays in the journal."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def follow(folder: Path) -> None:
    """What the process runs: ships to the store that its input names, until the input ends."""
    os.nice(NICENESS)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    uri = sys.stdin.readline().strip()

    def end_with_driver() -> None:
        sys.stdin.read()
        os._exit(0)  # nothing to tidy: what the store has not taken is in the journal

    threading.Thread(target=end_with_driver, daemon=True).start()
    Shipper(folder, uri).follow()

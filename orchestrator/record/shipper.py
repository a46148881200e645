"""The thread that carries a journal to the tracking store, in order and in batches, until the store has everything.

A sweep runs it in a process of its own (`orchestrator.record.shipper_process`).

The cursor (`tracking.cursor.json`, one offset a
store) moves only after the store has taken a batch, so a crash repeats at most one batch, which is harmless. A store that does
not answer is asked again without end, with growing pauses: the events are in the journal, which this thread flushes to the disk
before each try. An event that a store answers with a refusal, or fails at again and again, is set aside in
`tracking.refused.jsonl`, so that one bad value cannot hold up the record; the next session of the sweep offers it again.
"""

from __future__ import annotations

import itertools
import json
import logging
import random
import threading
import time
from pathlib import Path
from typing import NamedTuple

from craft.disk import flush, replacing
from craft.words import redact
from orchestrator.record.folder import SweepFolder
from orchestrator.record.mlflow_client import is_lost, is_missing, is_refusal
from orchestrator.record.mlflow_writer import MlflowWriter
from orchestrator.tools.journal import Event, Journal, read

log = logging.getLogger(__name__)

BATCH = 3000
"""Events in one go, at most. What a trial reports several times within them travels in one request: a store that is behind a
thousand running trials takes four reports in the time of two."""
LINGER_S = 0.5
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
TRIES = 5


class Standing(NamedTuple):
    """How far a shipper is.

    Attributes:
        seen: bytes of the journal that it knows of.
        waiting: how many of the events in them the store has not taken.
        aside: how many of these it has refused, so that nobody waits for them.
        retrying: whether events that an earlier session set aside are still to be offered again.
    """

    seen: int
    waiting: int
    aside: int
    retrying: bool


def saved_offset(folder: SweepFolder, uri: str) -> int:
    """How many bytes of the journal the store at `uri` has taken, by the cursor; 0 if that cannot be."""
    try:
        offset = int(json.loads(folder.cursor.read_text(encoding="utf-8"))[redact(uri)])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    size = folder.journal.stat().st_size if folder.journal.exists() else 0
    return offset if 0 <= offset <= size else 0


class Shipper(threading.Thread):
    """Ships the journal of the sweep in `folder` to the store at `uri`.

    `waiting` counts the events that the store has not taken yet.
    """

    def __init__(self, folder: Path, uri: str, opened: Event, artifact_root: Path | None) -> None:
        super().__init__(name="tracking-shipper", daemon=True)
        self._folder, self._path, self._uri = SweepFolder(folder), SweepFolder(folder).journal, uri
        self._opened, self._artifact_root = opened, artifact_root
        self._change = threading.Condition()
        self._closing = self._stopped = False
        self._offset = self._seen = saved_offset(self._folder, uri)
        self._refused = [event for event, _ in read(self._folder.refused)]
        self._retry_refused = bool(self._refused)
        self._waiting = 0
        self._writer: MlflowWriter | None = None
        self.look()

    @property
    def waiting(self) -> int:
        return self._waiting + len(self._refused)

    @property
    def standing(self) -> Standing:
        with self._change:
            return Standing(self._seen, self.waiting, len(self._refused), self._retry_refused)

    def look(self) -> None:
        """Looks how far the journal has grown."""
        ends = [end for _, end in read(self._path, self._seen)]
        if ends:
            self.added(len(ends), ends[-1])

    def added(self, count: int, end: int) -> None:
        """Tells the thread that the journal has grown by `count` events, the last of which ends at byte `end`."""
        with self._change:
            self._waiting += count
            self._seen = end
            self._change.notify_all()

    def hurry(self, on: bool) -> None:
        """Whether somebody waits for the record: then the thread gathers no events first, and pauses only briefly."""
        with self._change:
            self._closing = on
            self._change.notify_all()

    def drain(self, timeout_s: float) -> int:
        """Waits until the store has everything, at most `timeout_s` seconds; returns how many events still wait."""
        self.hurry(True)
        with self._change:
            self._change.wait_for(lambda: not self._waiting and not self._retry_refused, timeout_s)
        self.hurry(False)
        return self.waiting

    def stop(self) -> None:
        """Ends the thread as soon as its present request returns; the thread never outlives the process."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        self.join(timeout=2.0)

    def run(self) -> None:
        failures = 0
        while not self._stopped:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._stopped or self._retry_refused)
                if not self._closing:
                    self._change.wait_for(lambda: self._stopped or self._closing, LINGER_S)
            if self._stopped:
                return
            try:
                flush(self._path)
                self._step()
                failures = 0
            except Exception as error:  # no error of a store, its driver or the network may end the record
                failures += 1
                self._failed(error, failures)

    def _step(self) -> None:
        if self._writer is None:
            self._writer = self._connect()
        if self._retry_refused:
            self._offer_refused()
        batch = list(itertools.islice(read(self._path, self._offset), BATCH))
        if batch:
            self._writer.write([event for event, _ in batch])
            self._taken(len(batch), batch[-1][1])

    def _failed(self, error: Exception, failures: int) -> None:
        text = redact(f"{type(error).__name__}: {error}".strip().splitlines()[0])[:300]
        if failures == 1:
            log.warning("tracking store %s: %s; training goes on, the record waits in %s", redact(self._uri), text, self._path)
        if is_missing(error) and failures < TRIES:
            self._writer = None
        if self._writer is not None and self._writer.reconnect():
            self._one_by_one()
            return
        pause = 0.5 if self._closing else PAUSES_S[min(failures, len(PAUSES_S)) - 1] * random.uniform(0.75, 1.25)
        self._pause(pause)

    def _pause(self, seconds: float) -> None:
        with self._change:
            self._change.wait_for(lambda: self._stopped, seconds)

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
                    if self._stopped or is_missing(error) or not self._writer.reconnect():
                        return
                    # A request that was lost on the way says nothing about the event.
                    attempts += not is_lost(error)
                    if is_refusal(error) or attempts == TRIES:
                        self._set_aside(event, error)
                        break
                    self._pause(PAUSES_S[min(attempts, len(PAUSES_S) - 1)])
            self._taken(1, offset)

    def _set_aside(self, event: Event, error: Exception) -> None:
        reason = redact(f"{type(error).__name__}: {error}")[:1000]
        log.error("tracking store refuses a %s event: %s", event.get("kind"), reason)
        self._refused.append(event)
        with Journal(self._folder.refused) as refused:
            refused.append({**event, "reason": reason})

    def _offer_refused(self) -> None:
        """Offers again, once a session, the events that were set aside; those that are refused again stay aside."""
        assert self._writer is not None
        left = []
        for event in self._refused:
            try:
                self._writer.write([event])
            except Exception as error:  # it was refused before; the reason is on file
                log.info("still refused: %s", redact(str(error)))
                left.append(event)
                self._writer.reconnect()
        with replacing(self._folder.refused) as aside, Journal(aside) as refused:
            refused.extend(left)
        with self._change:
            self._refused, self._retry_refused = left, False
            self._change.notify_all()

    def _connect(self) -> MlflowWriter:
        writer = MlflowWriter(self._uri, self._opened, self._folder.path, self._artifact_root)
        if self._offset and not writer.knows_sweep:
            # Somebody emptied or replaced the store: it gets the whole record.
            with self._change:
                self._offset = 0
                self._waiting = sum(1 for _, end in read(self._path) if end <= self._seen)
        return writer

    def _taken(self, count: int, offset: int) -> None:
        self._offset = offset
        self._save_offset()
        with self._change:
            self._waiting -= count
            self._change.notify_all()

    def _save_offset(self) -> None:
        path = self._folder.cursor
        try:
            known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except ValueError:
            known = {}
        try:
            flush(self._path)  # after a power cut the cursor must not point behind the journal's end
            with replacing(path) as aside:
                aside.write_text(
                    json.dumps({**known, redact(self._uri): self._offset, "saved": int(time.time())}), encoding="utf-8"
                )
        except OSError as error:
            # Without a new cursor the next session repeats this batch, which is harmless.
            log.warning("the tracking cursor cannot be saved: %s", error)

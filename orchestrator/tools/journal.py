"""An append-only file of events: one JSON object a line, on the disk before `extend` returns unless its writer wants otherwise.

One process writes; any number of processes read, from a byte offset on. A line counts once its newline is there: readers ignore
a half-written line, and the next writer cuts it away. The last field of each line, `crc32`, is the checksum of the text before
it, which shows that a disk or an editor has changed a line. A sweep's log is such a file: it outlives driver and tracking
server.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from craft.disk import flush

Event = dict[str, Any]
CHECKSUM = b',"crc32":"%08x"}'
SUFFIX = len(CHECKSUM % 0)


class DamagedLog(ValueError):
    """A line of a log is not what was written."""


class Journal:
    """The writing end. `path` is made if absent; close it."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            ValueError: another process has the file open for writing.
            OSError: the file cannot be made.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            self._size = _repair(self._file)
            flush(path.parent)
        except BaseException:
            os.close(self._file)
            raise

    def extend(self, events: Iterable[Event], *, sync: bool = True) -> int:
        """Writes events: all of them or, after an OSError (a full disk), none. Returns the offset behind them.

        Args:
            sync: whether to wait for the disk. Without it a write survives the death of the process, and that of the machine
                once somebody has flushed the file (`craft.disk.flush`) or the system has, within about half a minute.
        """
        payload = b"".join(_line(event) for event in events)
        if not payload:
            return self._size
        try:
            _write_all(self._file, payload, self._size)
            if sync:
                os.fsync(self._file)
        except OSError:
            # Half a batch must not stay: readers would see it, and its events would be written again later.
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(payload)
        return self._size

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{self.path} is being written by another process; stop that sweep first") from error
        except OSError:
            # Some network file systems have no locks; there nothing but the folder's own lock keeps a second writer away.
            return


def read(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yields the JSON texts of the complete events from byte `offset` on, each with the offset behind it; none if the file does
    not exist. A line without its newline is ignored.

    Raises:
        DamagedLog: a line has another checksum than its text.
    """
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        stream.seek(offset)
        for line in stream:
            if not line.endswith(b"\n"):
                return
            text = line[: -SUFFIX - 1]
            if line[-SUFFIX - 1 : -1] != CHECKSUM % zlib.crc32(text):
                raise damage(path, offset, "its text and its checksum differ")
            offset += len(line)
            yield text + b"}", offset


def damage(path: Path, offset: int, why: str) -> DamagedLog:
    """Returns the error for the line that begins at byte `offset`."""
    with path.open("rb") as stream:
        number = stream.read(offset).count(b"\n") + 1
    return DamagedLog(
        f"{path}, line {number} is damaged: {why}. Restore the file from a copy. Without one, remove the line "
        f"(sed -i {number}d {shlex.quote(str(path))}) and continue the sweep with --resume: the result of a trial is also in "
        "its last checkpoint, so a finished trial is not trained again"
    )


def _line(event: Event) -> bytes:
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")[:-1]
    return text + CHECKSUM % zlib.crc32(text) + b"\n"


def _write_all(file: int, payload: bytes, offset: int) -> None:
    view = memoryview(payload)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def _repair(file: int) -> int:
    """Cuts away a last line without its newline; returns the size that stays."""
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - 64 * 1024)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(file, end)
        os.fsync(file)
    return end

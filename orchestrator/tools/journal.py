"""An append-only file of events: one JSON object a line, on the disk before `extend` returns unless its writer wants otherwise.

One process writes; any number of processes read, from a byte offset on. A line counts once its newline is there: readers ignore
a half-written line, and the next writer cuts it away. The last field of each line, `crc32`, is the checksum of the text before
it, begun with the checksum of the line before: it shows that a disk or an editor has changed a line, and that lines were
removed, moved, doubled or merged. A sweep's log is such a file: it outlives driver and tracking server.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from craft.disk import flush

Event = dict[str, Any]
CHECKSUM = b',"crc32":"%08x"}\n'
SUFFIX = len(CHECKSUM % 0)
ENDING = re.compile(rb',"crc32":"([0-9a-f]{8})"}\n')
BOM = b"\xef\xbb\xbf"
CLEAN = r"sed -i -e '1s/^\xEF\xBB\xBF//' -e 's/[[:space:]]*$//' -e '/^$/d'"
"""Takes away what programs add around lines."""


class DamagedLog(ValueError):
    """The lines of a log are not those that were written."""


class Journal:
    """The writing end. `path` is made if absent; close it."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            self._size = _repair(self._file)
            self._last = _stated(os.pread(self._file, SUFFIX, max(0, self._size - SUFFIX)))
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
        lines, last = list[bytes](), self._last
        for event in events:
            text = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")[:-1]
            last = zlib.crc32(text, last)
            lines.append(text + CHECKSUM % last)
        if not (payload := b"".join(lines)):
            return self._size
        try:
            _write_all(self._file, payload, self._size)
            if sync:
                os.fsync(self._file)
        except OSError:
            # Half a batch must not stay: readers would see it, and its events would be written again later.
            os.ftruncate(self._file, self._size)
            raise
        self._size, self._last = self._size + len(payload), last
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
        DamagedLog: a line has another checksum than its text behind the line before.
    """
    try:
        stream = path.open("rb")
    except FileNotFoundError:
        return
    with stream:
        last = _checksum_before(stream, offset)
        for line in stream:
            if not line.endswith(b"\n"):
                return
            text = line[:-SUFFIX]
            last = zlib.crc32(text, last)
            if line[-SUFFIX:] != CHECKSUM % last:
                raise damage(path, offset, "its checksum does not match its text and the line before")
            offset += len(line)
            yield text + b"}", offset


def damage(path: Path, offset: int, why: str) -> DamagedLog:
    """Returns the error for the line that begins at byte `offset`, with a command that leaves the lines before it."""
    file = shlex.quote(str(path))
    with path.open("rb") as stream:
        before, last = stream.read(offset), _checksum_before(stream, offset)
        rest = stream.read()
    if added := _added(rest, last):
        return DamagedLog(f"{path} was rewritten by a program that added {added}. Take that away again: {CLEAN} {file}")
    lines, number = rest.splitlines(keepends=True), before.count(b"\n") + 1
    if number == 1 and not any(_follows(line, _stated(previous[-SUFFIX:])) for previous, line in pairwise(lines)):
        why += ", and so it is with every other line: a program has rewritten the file"
    events = Counter(name.decode() for name in re.findall(rb'^\{"event": ?"(\w+)"', rest, re.MULTILINE))
    lost = ", ".join(f"{count} {name}" for name, count in events.most_common()) or "no event"
    return DamagedLog(
        f"{path}, line {number} is damaged, or lines are missing before it: {why}. Restore the file from a copy. Without one, "
        f"cut it behind the last whole line (truncate -s {offset} {file}) and continue the sweep with --resume. That loses "
        f"{len(lines)} lines ({lost}). A finished trial is not trained again: its result is also in its last checkpoint. "
        "What was applied or requested there has to be asked for again"
    )


def _added(rest: bytes, last: int) -> str | None:
    """Returns what a program has added around lines that are otherwise as they were written behind the checksum `last`."""
    line = next(filter(None, (each.rstrip() for each in rest.removeprefix(BOM).splitlines())), b"") + b"\n"
    if rest.startswith(line) or not _follows(line, last):
        return None
    end = rest.removeprefix(BOM).removeprefix(line[:-1])
    added = {"a byte order mark": rest.startswith(BOM), "CRLF line ends": end.startswith(b"\r"), "blanks or empty lines": True}
    return next(name for name, present in added.items() if present)


def _follows(line: bytes, last: int) -> bool:
    return line[-SUFFIX:] == CHECKSUM % zlib.crc32(line[:-SUFFIX], last)


def _stated(ending: bytes) -> int:
    """Returns the checksum at the end of a line; 0 where there is none, as before the first line."""
    checksum = ENDING.fullmatch(ending)
    return int(checksum[1], 16) if checksum else 0


def _checksum_before(stream: IO[bytes], offset: int) -> int:
    """Moves to byte `offset`; returns the checksum of the line that ends there."""
    stream.seek(max(0, offset - SUFFIX))
    return _stated(stream.read(min(offset, SUFFIX)))


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

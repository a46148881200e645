"""The log of a sweep: its events, one a line of `log.jsonl`, an append-only file. It outlives driver and tracking server.

One driver writes it; any number of processes read, from a byte offset on, and replay it (`State.after`). A line counts once its
newline is there: readers ignore a half-written line, and the next writer cuts it away. The last field of each line, `crc32`, is
the checksum of the text before it, begun with the checksum of the line before: it shows that a disk or an editor has changed a
line, and that lines were removed, moved, doubled or merged. The first event, `Opened`, has the number of the log's format: it
grows with each change after which other versions cannot read the log.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import mmap
import os
import re
import shlex
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from craft import __version__
from craft.disk import flush
from orchestrator.record.events import FORMAT, Event, Opened, Reported
from orchestrator.record.state import NO_METRICS, State, fold
from orchestrator.tools.secrets import redacted

logger = logging.getLogger(__name__)

CHECKSUM = b',"crc32":"%08x"}\n'
SUFFIX = len(CHECKSUM % 0)
ENDING = re.compile(rb',"crc32":"([0-9a-f]{8})"}\n')
BOM = b"\xef\xbb\xbf"
CLEAN = r"sed -i -e '1s/^\xEF\xBB\xBF//' -e 's/[[:space:]]*$//' -e '/^$/d'"
"""Takes away what programs add around lines."""
REPORTED = b'{"event":"Reported"'
LEADING = 200
"""A line of a trial's report has its key in so many bytes."""


class DamagedLog(ValueError):
    """The lines of a log are not those that were written."""


class OtherVersion(DamagedLog):
    """Another version of this program has written a log."""


class Log:
    """The writing end of the log at `path`, which is made if absent. Close it.

    Events that the disk does not take (it is full) wait in memory, in order, and are tried again at each `append`. `trouble` is
    the disk's error while it refuses.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.trouble: OSError | None = None
        self._waiting: list[Event] = []
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:  # besides the folder's lock, whose file somebody may have removed
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{path} is being written by another process; stop that sweep first") from error
            except OSError as error:
                if error.errno != errno.ENOSYS:  # Lustre may have no flock; filelock has another lock there
                    raise
            self._size = _repair(self._file)
            self._last = _stated(os.pread(self._file, SUFFIX, max(0, self._size - SUFFIX)))
            flush(path.parent)
        except BaseException:
            os.close(self._file)
            raise

    def append(self, *events: Event) -> bool:
        """Writes what waits and these events, and waits for the disk if one is durable; False while the disk refuses."""
        self._waiting += events
        try:
            durable = any(event.durable for event in self._waiting)
            self.write((redacted(event.to_json()) for event in self._waiting), sync=durable)
        except OSError as error:
            logger.error("%s cannot be written: %s; %d events wait in memory", self.path, error, len(self._waiting))
            self.trouble = error
            return False
        self._waiting, self.trouble = [], None
        return True

    def write(self, lines: Iterable[Mapping[str, Any]], *, sync: bool = True) -> int:
        """Writes lines: all of them or, after an OSError (a full disk), none. Returns the offset behind them.

        Args:
            sync: whether to wait for the disk. Without it a write survives the death of the process, and that of the machine
                once somebody has flushed the file (`craft.disk.flush`) or the system has, within about half a minute.
        """
        written, last = list[bytes](), self._last
        for line in lines:
            text = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")[:-1]
            last = zlib.crc32(text, last)
            written.append(text + CHECKSUM % last)
        if not (payload := b"".join(written)):
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
            self.append()
            os.close(self._file)
            self._file = -1


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[Event, int]]:
    """Yields the events from byte `offset` on, each with the offset behind it; nothing if there is no log.

    Raises:
        DamagedLog: a line is damaged or no event, or another version has written the log.
    """
    if offset == 0:
        _check_version(path)
    for text, behind in read(path, offset):
        try:
            event = Event.from_json(text)
        except ValueError as error:
            raise damage(path, offset, str(error)) from error
        yield event, behind
        offset = behind


def _check_version(path: Path) -> None:
    """Raises OtherVersion if the log begins with an `Opened` of another format, however that writes its lines."""
    try:
        with path.open("rb") as stream:
            opened = json.loads(stream.readline())
    except (OSError, ValueError, RecursionError):
        return
    if not isinstance(opened, dict) or opened.get("event") != Opened.__name__ or opened.get("format") == FORMAT:
        return
    writer = f"version {opened['version']}" if "version" in opened else "an older version"
    raise OtherVersion(
        f"{path} was written by {writer} of craft-sweeps, in another format ({opened.get('format', 'without a number')}). This "
        f"is version {__version__}, which reads format {FORMAT}: use that other version, or give this sweep another --name"
    )


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
    size, end = os.fstat(file).st_size, 0
    if size:
        with mmap.mmap(file, size, access=mmap.ACCESS_READ) as text:
            end = text.rfind(b"\n") + 1
    if end != size:
        os.ftruncate(file, end)
        os.fsync(file)
    return end


def read_points(path: Path, keys: Collection[str]) -> dict[str, dict[str, dict[int, float]]]:
    """Returns what trials reported: by key, metric and step."""
    points: dict[str, dict[str, dict[int, float]]] = {}
    for text, _ in read(path):
        if text.startswith(REPORTED) and any(key.encode() in text[:LEADING] for key in keys):
            event = Event.from_json(text)
            assert isinstance(event, Reported)
            for row in event.rows if event.key in keys else ():
                for name in row.keys() - NO_METRICS:
                    points.setdefault(event.key, {}).setdefault(name, {})[int(row["step"])] = row[name]
    return points


def read_state(path: Path) -> State:
    return fold(event for event, _ in read_events(path))

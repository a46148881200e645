"""The log of a sweep: its events, one a line of `log.jsonl`. One driver writes it; every reader folds it (`state.fold`).

Its first event, `Opened`, has the number of the log's format: it grows with each change after which other versions cannot read
the log.

A snapshot of the state is next to the log, so that a reader folds only what is new since the last reader. It says of how many
bytes of the log it is, and has their checksum: a log that was changed by hand, or restored, is folded from its start again. So
is one whose snapshot was written by another version of this folder's code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from craft import __version__
from craft.disk import replacing
from orchestrator.record.events import FORMAT, Event, Opened, Reported
from orchestrator.record.state import NO_METRICS, State
from orchestrator.tools.journal import DamagedLog, Journal, damage, read
from orchestrator.tools.secrets import redacted

WORTH_BYTES = 1_000_000
"""So much of a log takes longer to fold than to read back."""
BLOCK = 1 << 20
HERE = Path(__file__).parent


def load_snapshot(log: Path) -> tuple[State, int]:
    """Returns the state after the first bytes of the log, and how many these are; an empty state and 0 without a snapshot."""
    with suppress(OSError, ValueError, KeyError, TypeError), _place(log).open("rb") as stream:
        head = json.loads(stream.readline())
        if head["code"] == code_digest(HERE) and head["crc32"] == _checksum(log, head["bytes"]):
            return _adapter().validate_json(stream.read()), int(head["bytes"])
    return State(), 0


def save_snapshot(log: Path, state: State, end: int) -> None:
    """Writes the state after the log's first `end` bytes, if the folder may be written."""
    head = json.dumps({"code": code_digest(HERE), "bytes": end, "crc32": _checksum(log, end)})
    with suppress(OSError), replacing(_place(log)) as aside:
        plain = _adapter().dump_python(state)  # `dump_json` would write null for NaN
        aside.write_text(f"{head}\n{json.dumps(plain, default=list)}", encoding="utf-8")


def _place(log: Path) -> Path:
    return log.with_name(f".{log.stem}.state")


@cache
def _adapter() -> TypeAdapter[State]:
    return TypeAdapter(State)


@cache
def code_digest(folder: Path) -> str:
    """Returns a digest of the code in a folder: what other code has computed may be different."""
    files = sorted(folder.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _checksum(log: Path, end: int) -> int:
    """Returns the checksum of the log's first `end` bytes; -1 if it has fewer."""
    total, remaining = 0, end
    with log.open("rb") as stream:
        while remaining and (block := stream.read(min(BLOCK, remaining))):
            total, remaining = zlib.crc32(block, total), remaining - len(block)
    return -1 if remaining else total


logger = logging.getLogger(__name__)

REPORTED = b'{"event":"Reported"'
LEADING = 200
"""A line of a trial's report has its key in so many bytes."""


class OtherVersion(DamagedLog):
    """Another version of this program has written a log."""


class Log:
    """The writing end of the log at `path`. Close it.

    Events that the disk does not take (it is full) wait in memory, in order, and are tried again at each `flush`. `trouble` is
    the disk's error while it refuses.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal = Journal(path)
        self._waiting: list[Event] = []
        self.trouble: OSError | None = None

    def append(self, *events: Event) -> bool:
        """Writes events, and waits for the disk if one is durable; False while the disk refuses."""
        self._waiting += events
        return self.flush()

    def flush(self) -> bool:
        """Writes what waits; False while the disk refuses."""
        if not self._waiting:
            return True
        try:
            durable = any(event.durable for event in self._waiting)
            self._journal.extend((redacted(event.to_json()) for event in self._waiting), sync=durable)
        except OSError as error:
            logger.error("%s cannot be written: %s; %d events wait in memory", self.path, error, len(self._waiting))
            self.trouble = error
            return False
        self._waiting, self.trouble = [], None
        return True

    def close(self) -> None:
        self.flush()
        self._journal.close()


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


class LiveState:
    """The state of a log that grows: each `read` folds what is new, the first one since the last snapshot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.state, self.offset = load_snapshot(path)
        self._saved = self.offset

    def read(self) -> bool:
        """Folds the events that are new; returns whether there were any."""
        start_offset = self.offset
        for event, behind in read_events(self._path, self.offset):
            self.state, self.offset = self.state.after(event), behind
        if self.offset - self._saved > WORTH_BYTES:
            save_snapshot(self._path, self.state, self.offset)
            self._saved = self.offset
        return self.offset != start_offset


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
    """Returns the state of a sweep after all of its log."""
    live = LiveState(path)
    live.read()
    return live.state

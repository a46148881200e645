"""The log of a sweep: its events, one a line of `log.jsonl`. One driver writes it; every reader folds it (`state.fold`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from craft.words import redacted
from orchestrator.state.events import Event
from orchestrator.state.state import State, fold
from orchestrator.tools.journal import Journal, read

logger = logging.getLogger(__name__)


class DamagedLog(ValueError):
    """A line of a log is no event."""


class Log:
    """The writing end of the log at `path`. Close it.

    Events that the disk does not take (it is full) wait in memory, in order, and are tried again at each `flush`. `trouble` is
    the disk's error while it refuses.

    Raises:
        ValueError: another process writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal = Journal(path, sync=False)
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
        DamagedLog: a line is no event.
    """
    for line, behind in read(path, offset):
        try:
            event = Event.from_json(line)
        except ValueError as error:
            raise DamagedLog(f"{path}: the line that ends at byte {behind} is {error}. Remove that line.") from error
        yield event, behind


def read_state(path: Path) -> State:
    """Returns the state of a sweep after all of its log."""
    return fold(event for event, _ in read_events(path))

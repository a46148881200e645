"""`LogFollower`: a sweep's log, folded as it grows, with what its runs in MLflow need and State does not keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.state.events import Event, Opened, Reported, SessionEnded, Started
from orchestrator.state.log import read_events
from orchestrator.state.state import State, new_rows


class LogFollower:
    """The log at `path`, read up to byte `offset`.

    Attributes:
        end: the state in which the last session that has ended was left.
        began: when the sweep, each configuration and each trial first started, by name, id and key, in seconds since 1970.
        rows: rows of metrics that a trial reported, each with its time, in order; whoever has sent them removes them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        self.state = State()
        self.end: State | None = None
        self.began: dict[str, float] = {}
        self.rows: dict[str, list[tuple[float, dict[str, Any]]]] = {}
        self._last = 0.0

    def read(self) -> None:
        """Reads the events that are new."""
        for event, offset in read_events(self._path, self.offset):
            self._fold(event)
            self.offset = offset

    def close(self) -> None:
        """Takes a session that the log leaves open for interrupted: its driver is gone."""
        if self.state.started is not None and self.state.ended is None:
            self._fold(SessionEnded(status="interrupted", time=self._last))

    def _fold(self, event: Event) -> None:
        if isinstance(event, Reported) and (entry := self.state.entries.get(event.key)):
            rows = new_rows(entry, event.rows)
            if rows and rows[-1]["step"] == event.rows[-1]["step"]:
                rows[-1]["epoch"] = event.epoch
            self.rows.setdefault(event.key, []).extend((row.get("time", event.time), row) for row in rows)
        elif isinstance(event, Started):
            for entry in map(self.state.entries.get, event.keys):
                for name in (entry.trial.configuration, entry.key) if entry else ():
                    self.began.setdefault(name, event.time)
        elif isinstance(event, Opened):
            self.began[event.sweep] = event.time
        self.state, self._last = self.state.after(event), event.time
        if isinstance(event, SessionEnded):
            self.end = self.state

"""`SessionLog`: a session's end of the sweep's log. What happens is written, changes the state, and is shown."""

from __future__ import annotations

import threading

from orchestrator.driver.display import Display
from orchestrator.record.folder import SweepFolder
from orchestrator.search.scheduler import PromotionScheduler
from orchestrator.state.events import Applied, Decided, Ended, Event, Proposed, Requested
from orchestrator.state.log import Log, read_events
from orchestrator.state.state import State

DECISIVE = (Ended, Proposed, Decided, Applied, Requested)
"""Events after which other trials may be wanted."""


class SessionLog:
    """The log in a sweep's folder, folded, for one session.

    Attributes:
        state: how the sweep stands.
        changes: how many decisive events there were in this session.
        lock: held while an event is taken.
    """

    def __init__(self, folder: SweepFolder, display: Display, scheduler: PromotionScheduler | None) -> None:
        """
        Args:
            scheduler: gets each event of earlier sessions.
        """
        self.folder, self.display, self.lock = folder, display, threading.RLock()
        self.state, self.changes = State(), 0
        for event, _ in read_events(folder.record):
            self.state = self.state.after(event)
            if scheduler is not None:
                scheduler.on_report(event, self.state)
        self._log: Log | None = None
        self._before = frozenset(key for key, entry in self.state.entries.items() if entry.finished)

    def open(self) -> None:
        """Opens the log for writing."""
        self._log = Log(self.folder.record)

    def record(self, *events: Event) -> None:
        """Records events: writes them to the log, changes the state by them, and shows them."""
        with self.lock:
            assert self._log is not None, "the session has not begun"
            self._log.append(*events)
            if self._log.trouble is not None:
                self.display.trouble(f"{self.folder.record} cannot be written ({self._log.trouble.strerror}); trying again")
            for event in events:
                self.state = self.state.after(event)
                self.changes += isinstance(event, DECISIVE)
                self.display.show(event, self.state)

    def flush(self) -> bool:
        """Retries pending writes; returns whether none is left."""
        assert self._log is not None
        return self._log.flush()

    def close(self) -> None:
        """Closes the log."""
        if self._log is not None:
            self._log.close()

    @property
    def new(self) -> frozenset[str]:
        """Keys of the trials that finished in this session."""
        return frozenset(key for key, entry in self.state.entries.items() if entry.finished) - self._before

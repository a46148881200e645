"""One sweep of the tracking store, kept up to date: the store's copy of its log, folded as it grows."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dashboards.frames import Frames
from orchestrator.state.log import LiveState
from orchestrator.state.state import State


class LogSource(Protocol):
    """What a feed asks of `dashboards.store.Store`."""

    def log(self, run_id: str) -> Path: ...


@dataclass
class Feed:
    """One sweep, kept up to date.

    Attributes:
        run_id: of the sweep's own run in the store, which has its log.
        revision: grows whenever something that a page shows has changed; 0 before the first look.
        look_cost: how many seconds the last look for changes took.
        trouble: why it could not be read at the last look; empty if it was.
        log: this machine's copy of the log.
    """

    store: LogSource
    name: str
    experiment_id: str
    run_id: str
    revision: int = 0
    look_cost: float = 0.0
    trouble: str = ""
    log: Path | None = None
    _live: LiveState | None = None
    _frames: Frames | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> bool:
        """Looks for changes and returns whether there were any."""
        with self._lock:
            began = time.monotonic()
            self.log = self.store.log(self.run_id)
            if self._live is None:
                self._live = LiveState(self.log)
            changed = self._live.read() or self._frames is None
            if changed:
                self._frames = self.snapshot()[1].after(self._live.state)
                self.revision += 1
            self.look_cost, self.trouble = time.monotonic() - began, ""
            return changed

    def snapshot(self) -> tuple[int, Frames]:
        """Returns the revision and the sweep's tables at the last look; empty ones before the first."""
        return self.revision, self._frames or Frames(self.name, State(), self.experiment_id)

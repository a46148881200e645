"""One sweep of the tracking store, kept up to date: the store's copy of its log, replayed as it grows."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dashboards.frames import Frames
from orchestrator.state.log import LiveState
from orchestrator.state.state import State

log = logging.getLogger(__name__)

REST = 20
"""Between two looks pass at least so many times what the last one took: many running trials must not keep a store busy."""


class LogSource(Protocol):
    """What a feed asks of `dashboards.store.Store`."""

    def log(self, run_id: str) -> Path: ...

    def hide(self, error: object) -> str: ...


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
    _looked: float = float("-inf")
    _live: LiveState | None = None
    _frames: Frames | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_s(self, every_s: float) -> float:
        """Returns the seconds between two looks for changes, as things are."""
        return max(every_s, REST * self.look_cost)

    def look(self, every_s: float) -> None:
        """Looks for changes if the last look was long enough ago; what goes wrong is `trouble`."""
        with self._lock:
            if time.monotonic() - self._looked < self.wait_s(every_s):
                return
            try:
                self._refresh()
            except Exception as error:  # a store that is away now may be back at the next look
                reason, cause = self.store.hide(error), f"The tracking store cannot be read: {type(error).__name__}"
                self.trouble = reason if isinstance(error, ValueError) else f"{cause}: {reason}"  # a ValueError is a sentence
                log.warning("%s", self.trouble)
            self._looked = time.monotonic()

    def refresh(self) -> bool:
        """Looks for changes now, and returns whether there were any."""
        with self._lock:
            return self._refresh()

    def _refresh(self) -> bool:
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
        """Returns the revision and the sweep's rows at the last look; empty ones before the first."""
        return self.revision, self._frames or Frames(self.name, State(), self.experiment_id)

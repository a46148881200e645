"""One sweep's runs, kept up to date with the tracking store.

The first `Feed.refresh()` reads everything, page by page and configurations first, so that a page has something to draw while
thousands of trials are still to be read. Later ones ask only for what can have changed: runs that are going, and runs that
started or ended since the last look. Now and then they ask for everything, because a store that gets its record late,
after an outage, has new runs with old times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from dashboards.frames import Frames, RunRow, build_frames
from orchestrator.results import tags

OVERLAP_MS = 10_000  # how far before the last seen start or end a look begins: writers' clocks differ a little
FULL_EVERY_S = 60.0


@dataclass(frozen=True)
class Wanted:
    """Which runs to read: those of a kind, those still running, those that started or ended since a moment.

    A run that meets any of the given conditions is wanted. Moments are milliseconds since 1970.
    """

    kind: str | None = None
    running: bool = False
    started_since: int | None = None
    ended_since: int | None = None

    def filters(self) -> list[str]:
        """Returns MLflow's filters, one for each condition, because its filter language has no `or`."""
        filters = [f"tags.`{tags.KIND}` = '{self.kind}'"] if self.kind else []
        filters += ["attributes.status = 'RUNNING'"] if self.running else []
        filters += [f"attributes.start_time >= {self.started_since}"] if self.started_since is not None else []
        return filters + ([f"attributes.end_time >= {self.ended_since}"] if self.ended_since is not None else [])


class RunSource(Protocol):
    """What a feed asks of `dashboards.store.Store`."""

    def pages(self, experiment_id: str, wanted: Wanted) -> Iterator[list[RunRow]]: ...
    def search(self, experiment_id: str, wanted: Wanted) -> list[RunRow]: ...


@dataclass
class Feed:
    """One sweep's runs, kept up to date. `revision` grows whenever something that a page shows has changed, and `look_cost` is
    how many seconds the last look for changes took.

    Until the first look is over `complete` is False and the tables hold what has been read so far.
    """

    store: RunSource
    name: str
    experiment_id: str
    revision: int = 0
    complete: bool = False
    look_cost: float = 0.0
    _rows: dict[str, RunRow] = field(default_factory=dict)
    _frames: Frames | None = None
    _last_full: float = 0.0
    _full_cost: float = 0.0
    _reading: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self, *, full: bool = False) -> bool:
        """Looks for changes and returns whether there were any. The first look reads everything."""
        with self._reading:
            # a full look may never take more than a twentieth of the time
            due = time.monotonic() - self._last_full > max(FULL_EVERY_S, 20 * self._full_cost)
            if not (full or due) and self.complete:
                began = time.monotonic()
                rows = self.store.search(self.experiment_id, self._changeable())
                self.look_cost = time.monotonic() - began
                return self._take(rows)
            began = time.monotonic()
            before = self.revision
            seen: set[str] = set()
            # the sweep's own run and its configurations first: the front needs no more, and they are few
            for kind in ("sweep", "configuration", "trial"):
                for page in self.store.pages(self.experiment_id, Wanted(kind=kind)):
                    seen.update(row.run_id for row in page)
                    self._take(page)
            self._drop(seen)
            self._last_full, self._full_cost = time.monotonic(), time.monotonic() - began
            if not self.complete:
                self.complete = True
                self.revision += 1
            return self.revision != before

    def _take(self, rows: Iterable[RunRow]) -> bool:
        with self._lock:
            changed = {row.run_id: row for row in rows if self._rows.get(row.run_id) != row}
            if changed:
                self._rows.update(changed)
                self._frames = None
                self.revision += 1
            return bool(changed)

    def _drop(self, seen: set[str]) -> None:
        """Drops runs that were deleted in MLflow."""
        with self._lock:
            gone = self._rows.keys() - seen
            if gone:
                self._rows = {run_id: row for run_id, row in self._rows.items() if run_id in seen}
                self._frames = None
                self.revision += 1

    @property
    def readable(self) -> bool:
        """Whether there is something to show: configurations, or the whole sweep where it has none."""
        return self.complete or any(row.tags.get(tags.KIND) == tags.CONFIGURATION_KIND for row in list(self._rows.values()))

    def _changeable(self) -> Wanted:
        started = max((row.started or 0 for row in self._rows.values()), default=0) - OVERLAP_MS
        ended = max((row.ended or 0 for row in self._rows.values()), default=0) - OVERLAP_MS
        return Wanted(running=True, started_since=started, ended_since=ended)

    def snapshot(self) -> tuple[int, Frames]:
        """Returns the revision and the sweep's tables at the last look; the tables are built once for each revision."""
        with self._lock:
            if self._frames is None:
                self._frames = build_frames(self.name, self.experiment_id, self._rows.values())
            return self.revision, self._frames

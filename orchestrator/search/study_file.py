"""The file of a study: Optuna's journal, written so that no crash leaves it unreadable.

Optuna's own backend appends to whatever is there: half a line left by a crash or a full disk would be joined by the next line,
and every later reader would stop there. A process killed while it writes also leaves its lock behind. Here half a line is cut
away before the next line is written (`orchestrator.tools.journal`), and a lock that nobody renews is soon taken over. Optuna
waits for the disk after each of a suggestion's ten lines; here the caller says when the disk must have them (`settle`). Format
and lock file are Optuna's, so `optuna-dashboard` can read and write the same file beside a running sweep.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from orchestrator.tools.journal import Journal

STALE_SECONDS = 5
"""A lock is held for one write, so an older one belongs to a process that has died."""


class StudyFile(JournalFileBackend):
    """A study's journal at `path`, which is made if absent."""

    def __init__(self, path: Path) -> None:
        Journal(path).close()  # cuts away a line that is half written
        lock = Path(f"{path}.lock")
        if lock.is_symlink() and not lock.exists():
            lock.unlink()  # a link to the folder's former place: Optuna would wait for it for ever
        self._path, self._writing = path, JournalFileOpenLock(str(path), STALE_SECONDS)
        super().__init__(str(path), self._writing)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Writes all of them or, after an OSError, none."""
        rest = memoryview("".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode())
        self._writing.acquire()
        try:
            with self._path.open("ab", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                try:
                    while rest:
                        rest = rest[file.write(rest) :]
                except OSError:
                    file.truncate(size)
                    raise
        finally:
            self._writing.release()

    def settle(self) -> None:
        """Returns when everything written is on the disk."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())

"""The file of a study: Optuna's journal with the manners of this project's own, so that no crash leaves it unreadable.

Optuna appends to its journal as it comes: half a line that a crash or a full disk left behind would be joined by the next one,
and every later reader would stop there. And a process killed while it writes leaves its lock behind. Here half a line is cut
away before the next one is written (`orchestrator.tools.journal`), and a lock that nobody renews is soon taken over. Optuna
waits for the disk after each of a suggestion's ten lines; here whoever writes says when the disk must have them.
`optuna-dashboard` reads and writes the same file beside a running sweep: format and lock file are Optuna's.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from orchestrator.tools.journal import Journal

STALE_SECONDS = 5
"""A lock is held for one write; one as old as this is of a process that is no more."""


class StudyFile(JournalFileBackend):
    """A study's journal at `path`, which is made if absent."""

    def __init__(self, path: Path) -> None:
        Journal(path).close()  # cuts away what was left half written
        lock = Path(f"{path}.lock")
        if lock.is_symlink() and not lock.exists():
            lock.unlink()  # Optuna's link to where the study was before its folder was moved; it would wait for it without end
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
        """Returns when the disk has all that was written."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())

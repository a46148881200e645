"""The ledger of a sweep: which trials have ended, and how. The one thing a resume trusts.

One line a result in `ledger.jsonl`, on the disk before anything else hears of it, so that whatever happens to the process, the
machine or the tracking store, a trial in the ledger never runs again. It is a journal (`orchestrator.tools.journal`), with its
manners: a line torn by a crash is as if never written. One sweep folder has one driver at a time: `one_driver` holds the lock
and says who has it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from orchestrator.plan.trial import TrialResult
from orchestrator.tools.journal import Journal, read

LEDGER_FILE = "ledger.jsonl"
LOCK_FILE = ".lock"
DRIVER_FILE = ".driver.json"


class FolderInUse(ValueError):
    """Another driver works on the sweep's folder."""


class Ledger:
    """Results of trials in `folder/ledger.jsonl`; the last line of a key is the one that holds."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LEDGER_FILE
        self._journal: Journal | None = None

    def results(self) -> dict[str, TrialResult]:
        """The latest result of every trial that ever ended, by key.

        Raises:
            ValueError: a line is whole but no trial's result: the file was edited, or written by another version.
        """
        results: dict[str, TrialResult] = {}
        for event, offset in read(self.path):
            try:
                result = TrialResult.from_json(event)
            except TypeError as error:
                raise ValueError(
                    f"{self.path}: the line that ends at byte {offset} is no trial's result ({error}). Remove that line: "
                    "the trial it stood for then runs again."
                ) from error
            results[result.key] = result
        return results

    def finished(self) -> dict[str, TrialResult]:
        """Those with nothing left to run: finished, stopped early, or failed by their own fault."""
        return {key: result for key, result in self.results().items() if result.settled}

    def add(self, result: TrialResult) -> None:
        """Writes a result; returns when the disk has it.

        Raises:
            OSError: the disk did not take it (full, read-only); the file is then as it was before.
        """
        if self._journal is None:
            self._journal = Journal(self.path)
        self._journal.append(result.to_json())

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None


@contextmanager
def one_driver(folder: Path) -> Iterator[None]:
    """Holds the sweep's folder for this process; inside another one of the same folder it changes nothing.

    Raises:
        FolderInUse: another process holds it; the message names it.
    """
    folder = folder.absolute()
    # By process: a forked child has this table too, but not the lock.
    held = (os.getpid(), folder)
    if held in _held:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderInUse(
            f"{folder} is in use by {_holder(folder)}. Wait for it, stop it with Ctrl-C, or give this sweep another --name."
        ) from None
    driver = folder / DRIVER_FILE
    try:
        driver.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        _held.add(held)
        yield
    finally:
        _held.discard(held)
        driver.unlink(missing_ok=True)
        lock.release()


_held: set[tuple[int, Path]] = set()


def _holder(folder: Path) -> str:
    try:
        holder = json.loads((folder / DRIVER_FILE).read_text())
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError):
        return "another process"

"""The ledger of a sweep: which trials have ended, and how. A resume trusts nothing else.

Each result is one line in `ledger.jsonl`, on the disk before anything else hears of it: whatever happens to the process, the
machine or the tracking store, a trial in the ledger never runs again. The file is a journal (`orchestrator.tools.journal`), so
readers never see a line that a crash cut short. `orchestrator.record.lock` keeps a second writer away.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.record.folder import SweepFolder
from orchestrator.state.entry import TrialResult
from orchestrator.tools.journal import Journal, read


class Ledger:
    """Results of trials in `folder/ledger.jsonl`; the last line of a key counts."""

    def __init__(self, folder: Path) -> None:
        self.path = SweepFolder(folder).ledger
        self._journal: Journal | None = None

    def results(self) -> dict[str, TrialResult]:
        """The latest result of every trial that has ended, by key."""
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
        """The results of trials with nothing left to run: finished, stopped early, or failed by their own fault."""
        return {key: result for key, result in self.results().items() if result.settled}

    def reopen_failed(self) -> int:
        """Marks every failed trial as one to run again, by a new line; returns how many there are.

        The marks outlast this session, so that the next one goes on with them. Earlier lines stay as they are.
        """
        failed = [result for result in self.results().values() if result.status == "failed"]
        for result in failed:
            if not result.retryable:
                self.add(replace(result, retryable=True, notes=[*result.notes, "to be run again: --retry-failed"]))
        return len(failed)

    def add(self, result: TrialResult) -> None:
        """Writes a result; returns when the disk has it."""
        if self._journal is None:
            self._journal = Journal(self.path)
        self._journal.append(result.to_json())

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

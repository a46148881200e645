"""An engine of one process, in place of Ray where Ray is not what is tested: it runs one job after another, in this process.

A job runs from its newest checkpoint, which is found by its key, to its end, or until it has to leave: at its next message.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from craft.results import Train
from orchestrator.commands import session
from orchestrator.driver.display import SweepOutcome
from orchestrator.driver.driver import Driver
from orchestrator.plan.trial import Job
from orchestrator.record.checkpoints import attempts
from orchestrator.tools.signals import Stop
from orchestrator.worker.preparation import Shared
from orchestrator.worker.surroundings import WorkerSettings
from orchestrator.worker.worker import work


class MustLeave(Exception):
    """A job has to leave its place."""


class LocalEngine:
    """Runs the jobs of a driver. Its storage is a folder of this machine."""

    def __init__(self, driver: Driver, train: Train | None = None, shared: Shared | None = None) -> None:
        self._driver = driver
        self._attempt = max(attempts(driver.storage), default=0) + 1
        self._numbers: Counter[str] = Counter()
        checked = shared.checked if shared is not None else None
        self._settings = WorkerSettings(driver.storage, str(driver.folder.scratch), 1, train=train, shared=checked)

    def run(self) -> None:
        """Runs jobs until nothing remains or the session is to end."""
        driver = self._driver
        while driver.is_open and not driver.is_ending:
            driver.tick()
            if (job := driver.next_job()) is not None:
                self.start(job)
            elif driver.is_over:
                driver.end_waiting()

    def start(self, job: Job) -> None:
        self._driver.record_start(job.key)
        try:
            work(job.key, json.dumps(job.to_json()), self._settings, lambda *message: self._receive(job.key, *message))
        except MustLeave:
            self._driver.record_leave(job.key)

    def _receive(self, key: str, message: dict[str, Any], folder: Path | None) -> None:
        checkpoint = None
        if folder is not None:
            checkpoint = f"checkpoint_{self._numbers[key]:06d}"
            self._numbers[key] += 1
            shutil.copytree(folder, Path(self._driver.storage) / f"attempt-{self._attempt}" / key / checkpoint)
        must_leave = self._driver.receive(self._attempt, key, message, checkpoint)
        self._driver.tick()
        if must_leave and "results" not in message:
            raise MustLeave


@contextmanager
def without_ray() -> Iterator[None]:
    """Lets sessions inside run their jobs in this process."""

    def drive(
        driver: Driver, _: Stop, train: Train | None = None, shared: Shared | None = None, **options: Any
    ) -> SweepOutcome:
        with driver.display:
            LocalEngine(driver, train, shared).run()
            trouble = driver.stop()
        return driver.outcome(trouble, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "drive", drive)
        for module in ("run_job", "surroundings"):  # a process of tests is large, and has no next trial
            patch.setattr(f"orchestrator.worker.{module}.free_memory", lambda: None)
        yield

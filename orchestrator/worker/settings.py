"""What a worker is told of the sweep, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from craft.spec import RunSpec
from orchestrator.plan.trial import Train

Report = Callable[[dict[str, Any], Path | None], None]
"""Takes plain metrics and a checkpoint's folder, which is on the sweep's storage when it returns."""


@dataclass(frozen=True)
class WorkerSettings:
    """What every trial of an attempt shares.

    `gpu` is the share of a GPU that each process of a trial holds.
    `shared` surrounds each trial's run: it refuses a machine with other data, and asks the hub for nothing that is there.
    `scratch` is a folder for the trials' working files where driver and workers share a disk; a temporary one otherwise.
    """

    storage: str
    scratch: str | None
    threads: int
    heartbeat_seconds: float | None = None
    memory_bytes: int | None = None
    train: Train | None = None
    gpu: float = 0.0
    shared: Callable[[RunSpec], AbstractContextManager[None]] | None = None

    def surrounded(self, run: RunSpec) -> AbstractContextManager[None]:
        """What a trial runs in; entering it reads the data."""
        return self.shared(run) if self.shared else nullcontext()

"""What a worker is told of the sweep, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.plan.trial import Train

Report = Callable[[dict[str, Any], Path | None], None]
"""Takes plain metrics and a checkpoint's folder, which is on the sweep's storage when it returns."""


@dataclass(frozen=True)
class WorkerSettings:
    """What every trial of an attempt shares.

    `gpu` is the share of a GPU that each process of a trial holds.
    `shared` surrounds each trial: it sees to it that the machine has what trials share.
    `scratch` is a folder for the trials' working files where driver and workers share a disk; a temporary one otherwise.
    """

    storage: str
    scratch: str | None
    threads: int
    heartbeat_seconds: float | None = None
    memory_bytes: int | None = None
    train: Train | None = None
    gpu: float = 0.0
    shared: Callable[[], AbstractContextManager[None]] | None = None

    def surrounded(self) -> AbstractContextManager[None]:
        """What a process of a trial runs in; entering it may take as long as preparing the machine."""
        return self.shared() if self.shared else nullcontext()

"""Runs in several processes on this machine: forked, so that they need no imports."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from craft.results import RunResult
from craft.settings import Way
from craft.spec import RunSpec
from craft.trainer.together import Crew, Part, follow, train_together
from craft.trainer.training import train_run

SECONDS = 60.0


def train_several(
    spec: RunSpec, folder: Path, count: int, way: Way = "replicate", train: Callable[..., RunResult] = train_run, **calls: Any
) -> RunResult:
    """Trains `spec` in `count` processes, of which this one is the first; the others have `folder/RANK`."""
    calls = {"report": lambda _progress: None, "resume_from": None, "on_step": lambda _step, _total: None} | calls
    with ProcessPoolExecutor(max(1, count - 1), multiprocessing.get_context("fork")) as pool:

        def start(part: Part) -> Future[None]:
            return pool.submit(_follow, part, train, folder / str(part.rank))

        run = train_together(train, Crew([start] * (count - 1)), way, SECONDS)
        return run(spec, folder / "0", **calls)


def _follow(part: Part, train: Callable[..., RunResult], folder: Path) -> None:
    follow(part, partial(train), folder, lambda _step, _total: None, part.meeting.open_store())

"""Runs in several processes on this machine.

All are forked from one that a server of forks makes: it is in no group and has trained nothing, because torch refuses to train
in a fork of a process that has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from craft.results import RunResult, Train
from craft.settings import Way
from craft.spec import RunSpec
from craft.trainer.together import Crew, Part, follow, train_together
from craft.trainer.training import train_run
from tests.craft.trainer.same import train_watched

SECONDS = 300.0
"""How long a process waits for the others: four of them on two busy cores need more than a minute."""
SERVER = get_context("forkserver")
SERVER.set_forkserver_preload([__name__, "craft.trainer.training"])
Points = list[dict[str, float]]


class Forked:
    """`craft.trainer.together.Crew` of forked processes; each one has `folder/RANK`."""

    host = "127.0.0.1"

    def __init__(self, count: int, train: Train, folder: Path) -> None:
        self.followers, self._train, self._folder = count - 1, train, folder
        self._pools: list[ProcessPoolExecutor] = []

    def start(self, parts: Sequence[Part]) -> list[Future[None]]:
        self._pools = [ProcessPoolExecutor(1, get_context("fork")) for _ in parts]
        return [
            pool.submit(_follow, part, self._train, self._folder / str(part.rank))
            for pool, part in zip(self._pools, parts, strict=True)
        ]

    def explain(self, rank: int, death: BaseException) -> str:
        return f"its process died ({death})"

    def stop(self) -> None:
        for pool in self._pools:
            for process in (pool._processes or {}).values():
                process.kill()
            pool.shutdown()


def train_several(
    spec: RunSpec, folder: Path, count: int, way: Way = "replicate", train: Train = train_run, **calls: Any
) -> tuple[RunResult, Points]:
    """Trains `spec` in `count` processes. Returns the result and the points of all reports."""
    with ProcessPoolExecutor(1, SERVER) as pool:
        return pool.submit(_lead, spec, folder, count, way, train, calls).result()


def _lead(spec: RunSpec, folder: Path, count: int, way: Way, train: Train, calls: dict[str, Any]) -> tuple[RunResult, Points]:
    crew: Crew = Forked(count, train, folder)
    run = train_together(train, crew, way, SECONDS)
    calls = {"resume_from": None, "on_step": lambda _step, _total: None} | calls
    with _gloo_on_one_gpu():
        return train_watched(spec, folder / "0", run, **calls)


def _follow(part: Part, train: Train, folder: Path) -> None:
    try:
        with _gloo_on_one_gpu():
            follow(part, train, folder, lambda _step, _total: None, part.meeting.open_store())
    except Exception:
        os._exit(1)


def _gloo_on_one_gpu() -> AbstractContextManager[object]:
    """Exchanges tensors on a GPU by gloo where all processes share it, because NCCL takes one process a GPU."""
    start = torch.distributed.init_process_group
    if torch.cuda.device_count() != 1:
        return nullcontext()
    return patch.object(torch.distributed, "init_process_group", lambda _backend, **calls: start("cpu:gloo,cuda:gloo", **calls))

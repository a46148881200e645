"""One training in several processes: `train_together` in the first of them, `follow` in each other one.

first    opens a store, gives every other process its `Part`, waits until all are there, trains
others   join, train the same, and report nothing
any      fails: its error stays at the store, the connections break, and the first raises that error
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from craft.processes import Meeting, find_cause, joined, make_store
from craft.results import Leave, RunPrevented, RunResult, Train
from craft.settings import Way
from craft.spec import RunSpec
from craft.watch import watch

_PRESENT = "present"
_LOOK_SECONDS = 0.05
_GRACE_SECONDS = 5.0


@dataclass(frozen=True)
class Part:
    """What one of the processes that follow the first gets for a try."""

    run: RunSpec
    cuts: Sequence[int]
    resume_from: Path | None
    meeting: Meeting
    rank: int


class Crew(Protocol):
    """The `followers` of a trial's first process, new ones in every try."""

    followers: int

    @property
    def host(self) -> str:
        """An address of the first one's machine: that of loopback if all are on it."""

    def start(self, parts: Sequence[Part]) -> Sequence[Future[None]]:
        """Starts a process for each part; a future ends with its `follow`, and has an error if the process died."""

    def explain(self, rank: int, death: BaseException) -> str:
        """Says why the process of a rank died, by the error of its future."""

    def stop(self) -> None:
        """Ends all processes that were started."""


def train_together(train: Train, crew: Crew, way: Way, seconds: float) -> Train:
    """Returns `train` as the first of several processes runs it; each waits so many seconds for the others."""

    def run(spec: RunSpec, directory: Path, *, resume_from: Path | None, cuts: Sequence[int] = (), **calls: Any) -> RunResult:
        count = 1 if way == "layers" else crew.followers + 1
        store = make_store(crew.host, seconds)
        meeting = Meeting(crew.host, store.port, count, way, seconds, secrets.token_bytes(32))
        try:
            futures = crew.start([Part(spec, cuts, resume_from, meeting, rank) for rank in range(1, count)])
            try:
                _await_all(store, meeting, futures)
                with joined(meeting, 0, store):
                    return train(spec, directory, resume_from=resume_from, cuts=cuts, **calls)
            except Leave:
                raise
            except Exception as error:
                raise _find_reason(error, store, meeting, futures, crew) from error
        finally:
            crew.stop()

    return run


def follow(part: Part, train: Train, directory: Path, on_step: Callable[[int, int], None], store: Any) -> None:
    """Trains as one of the processes that follow the first. An error is left at the store, too.

    After an error the process is to end at once: its connections may stay open until it does, and the others wait for it.
    """
    store.add(_PRESENT, 1)
    calls: dict[str, Any] = {"report": lambda _progress: None, "resume_from": part.resume_from, "cuts": part.cuts}
    with joined(part.meeting, part.rank, store):
        train(part.run, directory, on_step=on_step, **calls)


def _await_all(store: Any, meeting: Meeting, futures: Sequence[Future[None]]) -> None:
    """Waits until all processes are there. Raises the error of one that will not come."""
    until = time.monotonic() + meeting.seconds
    while (present := store.add(_PRESENT, 0)) < len(futures):
        watch()
        if (cause := find_cause(store, meeting)) is not None:
            raise cause
        if any(future.done() for future in futures) or time.monotonic() > until:
            raise RunPrevented(f"{present + 1} of {len(futures) + 1} processes of the trial are there")
        time.sleep(_LOOK_SECONDS)


def _find_reason(error: Exception, store: Any, meeting: Meeting, futures: Sequence[Future[None]], crew: Crew) -> Exception:
    """Returns why the processes ended: an error of one of them, or that one has died or does not answer.

    A process that hangs is ended by its heartbeat, a quarter of `meeting.seconds` after the others have waited in vain.
    """
    if not _is_broken(error) and not isinstance(error, RunPrevented):
        return error
    until = time.monotonic() + meeting.seconds / 4 + _GRACE_SECONDS
    while time.monotonic() < until and not all(future.done() for future in futures):
        watch()
        time.sleep(_LOOK_SECONDS)
    for rank, future in enumerate(futures, 1):
        name = f"process {rank + 1} of {len(futures) + 1}"
        if not future.done():
            return RunPrevented(f"{name} does not answer")
        if (death := future.exception()) is not None and find_cause(store, meeting, rank) is None:
            return RunPrevented(f"{name}: {crew.explain(rank, death)}")
    return RunPrevented(f"the processes of the trial lost their connection: {error}") if _is_broken(error) else error


def _is_broken(error: Exception) -> bool:
    """Returns whether an exchange broke: the consequence of what happened in another process."""
    return isinstance(error, torch.distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))

"""A sign of life from work that takes minutes and has no steps: `tick` after each decomposition.

A worker, whose timer ends a silent process, listens while a model is prepared and a method is built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from filelock import FileLock, Timeout

_listener: ContextVar[Callable[[], None] | None] = ContextVar("craft_tick", default=None)


@contextmanager
def ticking(listener: Callable[[], None]) -> Iterator[None]:
    """Calls `listener` at every `tick` of this thread inside the block."""
    reset_token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(reset_token)


def tick() -> None:
    """Reports that work continues: the caller has done something since its last tick, or waits for a process that lives."""
    listener = _listener.get()
    if listener is not None:
        listener()


@contextmanager
def locked(path: Path, patience_s: float, turn_s: float = 1.0) -> Iterator[None]:
    """Holds the lock file `path`. Waits and ticks while another process holds it, and raises OSError after `patience_s`."""
    lock, began = FileLock(path), time.monotonic()
    while not lock.is_locked:
        try:
            lock.acquire(timeout=turn_s)
        except Timeout as error:
            if time.monotonic() - began > patience_s:
                raise OSError(str(error)) from error
            tick()
    try:
        yield
    finally:
        lock.release()

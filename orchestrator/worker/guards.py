"""What watches a trial's process: the heartbeat, its standard error."""

from __future__ import annotations

import faulthandler
import functools
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Heartbeat:
    """Ends the process with a stack of every thread on stderr, if it is not beaten for `seconds`.

    The timer is the interpreter's own and needs no Python to run, so a library that hangs with the lock held is ended too.
    """

    def __init__(self, seconds: float | None, stderr: int) -> None:
        self.seconds, self.stderr = seconds, stderr
        self._armed = 0.0

    def beat(self) -> None:
        # Setting the timer starts a thread, so not at every one of many fast steps.
        if self.seconds and time.monotonic() - self._armed > min(1.0, self.seconds / 10):
            self._armed = time.monotonic()
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=self.stderr)

    def stop(self) -> None:
        if self.seconds:
            self._armed = 0.0
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def stderr_to(path: Path) -> Iterator[int]:
    sys.stderr.flush()
    saved = os.dup(2)
    with path.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 2)
        try:
            yield 2
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)


@functools.cache
def _freeze_libraries() -> None:
    """Takes what is there before the first trial, which is libraries, out of the garbage collector's sight for good.

    They hold some hundred thousand objects: a collection that looks at them all takes a tenth of a second, twice a trial.
    """
    gc.freeze()


def free_memory() -> None:
    """Gives back what a run has left lying, on a GPU too, where its neighbours can have it."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        with suppress(RuntimeError):  # a GPU in a bad state refuses this too; what has happened is the news
            torch.cuda.empty_cache()


def begin_with(threads: int) -> None:
    """Forgets the trial before, and uses the cores that this one was given."""
    import torch

    free_memory()
    _freeze_libraries()
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()

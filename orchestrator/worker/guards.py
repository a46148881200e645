"""The surroundings of a trial's process: its heartbeat, its standard error, its memory, its folder of working files."""

from __future__ import annotations

import faulthandler
import fcntl
import functools
import gc
import os
import shutil
import sys
import tempfile
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


def prepare_process(threads: int) -> None:
    """Frees the memory of the previous trial, and limits torch to the cores of this one."""
    import torch

    free_memory()
    _freeze_libraries()
    torch.set_num_threads(threads)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def process_age() -> float:
    """Returns the seconds since this process was started; 0 where the system does not say."""
    try:
        ticks = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return 0.0


GATE = ".lock"


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Makes a new, empty folder among the machine's temporary files, for this user alone, and removes it on leaving.

    A process that is killed cannot clean up. So a process holds a lock on its folder while it lives, and the next one on the
    same machine removes the folders that nobody holds.
    """
    root = _root()
    # Nobody may clear folders between making this one and locking it.
    with (root / GATE).open("w", encoding="utf-8") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        _clear(root)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _root() -> Path:
    root = Path(tempfile.gettempdir()) / f"craft-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="craft-"))  # another user's, who could read or remove our files
    return root


def _clear(root: Path) -> None:
    for folder in root.iterdir():
        if folder.name == GATE:
            continue
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)

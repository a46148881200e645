"""What surrounds a trial in each of its processes: its settings, its heartbeat, its standard error, its memory, its folder of
working files.

A trial in several processes calls `together` in the first one, `follow_first` in each other one. A process that hangs is ended
after h = heartbeat_minutes; the others wait for it for 0.8 h, so that the first says why.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from craft.results import Leave, Train
from craft.spec import RunSpec
from craft.watch import watching
from orchestrator.plan.trial import PlannedTrial
from orchestrator.plan.ways import Gpu, choose_way
from orchestrator.worker.share import limit_gpu_memory, limit_host_memory, require_gpu

if TYPE_CHECKING:
    from craft.trainer.together import Crew, Part


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


@cache
def spare_modules() -> None:
    """Takes what the imports of this process have made out of garbage collection: a pass over it takes 0.2 s."""
    gc.collect()
    gc.freeze()


def free_memory() -> None:
    """Gives back what a run has left lying, on a GPU too, where its neighbours can have it."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        with suppress(RuntimeError):  # a GPU in a bad state refuses this too; what has happened is the news
            torch.cuda.empty_cache()


LOCK = ".lock"


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Makes a new, empty folder among the machine's temporary files, for this user alone, and removes it on leaving.

    A process that is killed cannot clean up. So a process holds a lock on its folder while it lives, and the next one on the
    same machine removes the folders that nobody holds.
    """
    root = _root()
    with FileLock(root / LOCK):  # nobody may clear folders between making this one and locking it
        for other in filter(Path.is_dir, root.iterdir()):
            with suppress(Timeout), FileLock(other / LOCK, timeout=0):
                shutil.rmtree(other, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
        lock = FileLock(folder / LOCK)
        lock.acquire()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _root() -> Path:
    root = Path(tempfile.gettempdir()) / f"craft-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        return Path(tempfile.mkdtemp(prefix="craft-"))  # another user's, who could read or remove our files
    return root


STDERR_FILE = "stderr.log"


@dataclass(frozen=True)
class WorkerSettings:
    """The settings that all trials of an attempt share, and the share of a trial's processes.

    `gpu` is the share of a GPU that each process of a trial holds; it sees `visible` GPUs, those of the other processes too.
    `crew` are the other processes of the trial, if it has several.
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
    visible: int = 1
    crew: Crew | None = None
    shared: Callable[[RunSpec], AbstractContextManager[None]] | None = None

    def surrounded(self, run: RunSpec) -> AbstractContextManager[None]:
        """Returns the context in which a trial runs; entering it reads the data."""
        return self.shared(run) if self.shared else nullcontext()

    def require_gpu(self) -> Gpu | None:
        """Returns the process's GPU after a product on it, or None if it has none; a stand-in for the training needs none."""
        return require_gpu(self.visible) if self.gpu and self.train is None else None


@contextmanager
def guarded(settings: WorkerSettings, name: str) -> Iterator[tuple[Path, Heartbeat]]:
    """Limits the memory and the cores of this process and watches over it, with a scratch folder for `name`."""
    import torch

    with _scratch(settings, name) as scratch, stderr_to(scratch / STDERR_FILE) as stderr:
        train_of(settings.train)  # imports what trains
        spare_modules()
        torch.set_num_threads(settings.threads)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        heartbeat = Heartbeat(settings.heartbeat_seconds, stderr)
        try:
            limit_gpu_memory(settings.gpu)
            with limit_host_memory(settings.memory_bytes):
                yield scratch, heartbeat
        finally:
            heartbeat.stop()
            free_memory()


def stderr_left(scratch: Path, name: str) -> Path | None:
    """Returns what the last process called `name` wrote to stderr, if it died; `scratch` is that of its settings."""
    return next(scratch.glob(f"{name}-*/{STDERR_FILE}"), None)


@contextmanager
def _scratch(settings: WorkerSettings, name: str) -> Iterator[Path]:
    with ExitStack() as stack:
        if settings.scratch is None:
            folder = stack.enter_context(scratch_folder(name))
        else:
            root = Path(settings.scratch)
            for earlier in root.glob(f"{name}-*"):
                shutil.rmtree(earlier, ignore_errors=True)
            root.mkdir(parents=True, exist_ok=True)
            # A folder for each attempt: the process of an interrupted one may end, and remove its own, after the next began.
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
            # A process that dies never comes to this, so that its stderr stays for the driver to read.
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "run").mkdir()
        yield folder


_WAIT = 0.8
_WITHOUT_HEARTBEAT = 7 * 24 * 3600.0


def together(trial: PlannedTrial, settings: WorkerSettings, gpu: Gpu | None) -> Train:
    """Returns what runs the training of a trial whose first process this is."""
    from craft.trainer.together import train_together

    assert settings.crew is not None
    way = choose_way(trial.run, trial.resources, gpu.bytes).way if gpu else trial.resources.parallel or "replicate"
    seconds = _WAIT * settings.heartbeat_seconds if settings.heartbeat_seconds else _WITHOUT_HEARTBEAT
    return train_together(train_of(settings.train), settings.crew, way, seconds)


def follow_first(key: str, part: Part, settings: WorkerSettings, why_leave: Callable[[], str | None]) -> None:
    """Trains a trial with the process that has begun it. An error is left for that process, too."""
    from craft.processes import leave_cause
    from craft.trainer.together import follow

    store = part.meeting.open_store()
    try:
        with guarded(settings, process_name(key, part.rank)) as (scratch, heartbeat):
            settings.require_gpu()

            def on_step(_step: int, _total: int) -> None:
                heartbeat.beat()
                if why := why_leave():
                    raise Leave(why)

            heartbeat.beat()
            with watching(lambda *_: heartbeat.beat()), settings.surrounded(part.run):
                follow(part, train_of(settings.train), scratch / "run", on_step, store)
    except Exception as error:
        leave_cause(store, part.meeting, part.rank, error)
        raise


def train_of(stand_in: Train | None) -> Train:
    """Returns what runs a training: `craft.trainer.training.train_run` if there is no stand-in."""
    if stand_in is not None:
        return stand_in
    from craft.trainer.training import train_run

    return train_run


def process_name(key: str, rank: int) -> str:
    """Returns the name of a process's scratch folder."""
    return f"{key}.{rank}" if rank else key

"""A trial inside a warm worker process: found its checkpoint, cleaned of the trial before it, watched, and reported.

A worker keeps its process (and torch, transformers, the CUDA context) from trial to trial, so each trial begins by putting back
what the one before may have changed. Two guards surround it: a limit on memory, so that a greedy trial runs out alone, and a
timer that ends the process if no evaluation comes for too long, even when it hangs inside a library. What the process writes to
stderr goes to a file in the trial's scratch folder, whose end is the reason shown when it dies. No Ray here: reports go
through a function.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from craft.results import Progress
from orchestrator.checkpoints import ADAPTER_FOLDER, RESULT_FILE, newest_whole, seal, stored_result
from orchestrator.trial import Train, TrialResult, TrialSpec, run_trial

STDERR_FILE = "stderr.log"

Report = Callable[[dict[str, Any], Path | None], None]
"""Takes plain metrics and a checkpoint's folder, which is on the sweep's storage when it returns."""


@dataclass(frozen=True)
class WorkerSettings:
    """What every trial of an attempt shares.

    `scratch` is a folder for the trials' working files where driver and workers share a disk; a temporary one otherwise.
    """

    storage: str
    scratch: str | None
    threads: int
    heartbeat_seconds: float | None = None
    memory_bytes: int | None = None
    train: Train | None = None


def work(trial: str, settings: WorkerSettings, report: Report) -> None:
    """Runs the trial given as JSON to its end, reporting progress with checkpoints and at last its result.

    Raises:
        Exception: a fault of the machine, after which the trial should be started again.
    """
    spec = TrialSpec.from_json(json.loads(trial))
    with _scratch(settings, spec.key) as scratch, _stderr_to(scratch / STDERR_FILE) as stderr, _memory_limit(settings):
        _clean_state(settings.threads, spec.run.seed)
        heartbeat = _Heartbeat(settings.heartbeat_seconds, stderr)
        try:
            _run(spec, settings, report, scratch, heartbeat)
        finally:
            heartbeat.stop()
            gc.collect()


def _run(spec: TrialSpec, settings: WorkerSettings, report: Report, scratch: Path, heartbeat: _Heartbeat) -> None:
    heartbeat.beat()
    checkpoint, broken = newest_whole(settings.storage, spec.key, scratch / "fetched")
    ended = stored_result(checkpoint) if checkpoint else None
    if ended is not None:
        # It had finished and stored all of it; only the driver died before writing the result down.
        report({"result": ended}, checkpoint)
        return

    def on_progress(progress: Progress) -> None:
        heartbeat.stop()
        if progress.checkpoint is not None:
            seal(progress.checkpoint)
        report(_payload(progress), progress.checkpoint)
        heartbeat.beat()

    result, adapter = run_trial(spec, scratch / "run", on_progress, checkpoint, settings.train)
    heartbeat.stop()
    if broken:
        note = f"{broken} damaged checkpoint{'s were' if broken > 1 else ' was'} passed over on resuming"
        result = TrialResult(**{**asdict(result), "notes": [*result.notes, note]})
    report({"result": result.to_json()}, _final_checkpoint(scratch, result, adapter))


def _payload(progress: Progress) -> dict[str, Any]:
    """What the driver gets of an evaluation; metrics also stand at the top, where schedulers look."""
    content = {
        "step": progress.step,
        "total_steps": progress.total_steps,
        "epoch": progress.epoch,
        "metrics": progress.metrics,
        "points": progress.points,
        "time": time.time(),
    }
    return {**progress.metrics, "step": progress.step, "epoch": progress.epoch, "progress": content}


def _final_checkpoint(scratch: Path, result: TrialResult, adapter: Path | None) -> Path | None:
    if result.status != "finished" or adapter is None:
        return None
    final = scratch / "final"
    final.mkdir()
    shutil.copytree(adapter, final / ADAPTER_FOLDER)
    (final / RESULT_FILE).write_text(json.dumps(result.to_json()))
    seal(final)
    return final


@contextmanager
def _scratch(settings: WorkerSettings, key: str) -> Iterator[Path]:
    if settings.scratch is None:
        folder = Path(tempfile.mkdtemp(prefix=f"craft-{key}-"))
    else:
        folder = Path(settings.scratch) / key
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    (folder / "run").mkdir()
    try:
        yield folder
    finally:
        # A process that dies never comes here, so that its stderr stays for the driver to read.
        shutil.rmtree(folder, ignore_errors=True)


class _Heartbeat:
    """Ends the process with a stack of every thread on stderr, if it is not beaten for `seconds`.

    The timer is the interpreter's own and needs no Python to run, so a library that hangs with the lock held is ended too.
    """

    def __init__(self, seconds: float | None, stderr: int) -> None:
        self.seconds, self.stderr = seconds, stderr

    def beat(self) -> None:
        if self.seconds:
            faulthandler.dump_traceback_later(self.seconds, exit=True, file=self.stderr)

    def stop(self) -> None:
        if self.seconds:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def _stderr_to(path: Path) -> Iterator[int]:
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


@contextmanager
def _memory_limit(settings: WorkerSettings) -> Iterator[None]:
    if settings.memory_bytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (settings.memory_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


_first_environment: dict[str, str] = {}
_first_torch: dict[str, Any] = {}


def _clean_state(threads: int, seed: int) -> None:
    """Puts the process back to how its first trial found it, and seeds what draws random numbers."""
    import numpy as np
    import torch

    if not _first_environment:
        _first_environment.update(os.environ)
        _first_torch.update(
            dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            precision=torch.get_float32_matmul_precision(),
        )
    for name in os.environ.keys() - _first_environment.keys():
        del os.environ[name]
    os.environ.update(_first_environment)
    torch.set_default_dtype(_first_torch["dtype"])
    torch.use_deterministic_algorithms(_first_torch["deterministic"])
    torch.set_float32_matmul_precision(_first_torch["precision"])
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None:
        accelerate.AcceleratorState._reset_state(reset_partial_state=True)

"""Runs a trial inside a warm worker process: from its newest checkpoint, under guards, with a report of each evaluation.

A worker keeps its process (and torch, transformers, the CUDA context) from trial to trial; `craft.trainer.process` makes sure
that a run leaves the process as it found it. Three guards surround the trial: limits on the memory of host and GPU, so that a
greedy trial runs out alone, and a timer that ends the process if no step is done for too long, even when it hangs inside a
library. What the process writes to stderr goes to a file in the trial's scratch folder, whose end is the reason shown when it
dies. No Ray here: reports go through a function.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from craft.factors.ticking import ticking
from craft.results import PREDICTIONS_FOLDER, Leave, Outlook, Progress
from craft.spec import RECOVERY, RunSpec
from craft.trainer.checkpoint import MANIFEST_FILE, add_file, write_folder
from craft.trainer.pace import report_outlooks
from orchestrator.plan.trial import Ended, Train, Trial, result_of_size
from orchestrator.record.checkpoints import (
    ADAPTER_FOLDER,
    EVALUATIONS_FILE,
    PREDICTIONS_FILE,
    RESULT_FILE,
    SIZES_FOLDER,
    newest_whole,
    stored_evaluations,
    stored_result,
    stored_sizes,
)
from orchestrator.state.entry import TrialResult
from orchestrator.worker.fences import fence_gpu, fenced_host
from orchestrator.worker.gpus import require_gpu
from orchestrator.worker.guards import Heartbeat, begin_with, free_memory, process_age, scratch_folder, stderr_to
from orchestrator.worker.run_trial import run_trial, size_of

STDERR_FILE = "stderr.log"

_TRIALS = itertools.count()
"""Numbers the trials of this process. The start of its first one is that of the process."""

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


def work(
    key: str,
    trial: str,
    settings: WorkerSettings,
    report: Report,
    must_leave: Callable[[], str | None] = lambda: None,
) -> None:
    """Runs the trial given as JSON to its end, reporting progress with checkpoints and at last its result.

    Args:
        key: the trial's name with the driver.
        must_leave: says why the trial has to leave its machine; asked after every optimizer step.
    """
    try:
        spec = Trial.from_json(json.loads(trial))
    except ValueError as error:
        report({"result": _foreign(key, str(error)).to_json()}, None)
        return
    if spec.key != key:
        report({"result": _foreign(key, f"it calls this trial {spec.key}").to_json()}, None)
        return
    with _scratch(settings, spec.key) as scratch, stderr_to(scratch / STDERR_FILE) as stderr:
        begin_with(settings.threads)
        heartbeat = Heartbeat(settings.heartbeat_seconds, stderr)
        try:
            fence_gpu(settings.gpu)
            with fenced_host(settings.memory_bytes):
                _run(spec, settings, report, scratch, heartbeat, must_leave)
        finally:
            heartbeat.stop()
            free_memory()


def _run(
    spec: Trial,
    settings: WorkerSettings,
    report: Report,
    scratch: Path,
    heartbeat: Heartbeat,
    must_leave: Callable[[], str | None],
) -> None:
    began = time.monotonic() - (process_age() if next(_TRIALS) == 0 else 0.0)
    heartbeat.beat()
    checkpoint, broken = newest_whole(settings.storage, spec.key, scratch / "fetched")
    ended = stored_result(checkpoint) if checkpoint else None
    # A driver that died between a checkpoint and its word of it received none of these; one that knows them ignores them.
    evaluations = stored_evaluations(checkpoint) if checkpoint else []
    for evaluation in evaluations:
        report(evaluation | {"progress": evaluation["progress"] | {"again": True}}, None)
    if checkpoint is not None and ended is not None:
        # It had finished and stored all of it; only the driver died before writing the result down, or the file asks for more.
        sizes = stored_sizes(checkpoint)
        missing = [one for one in spec.sizes if one.key not in sizes]
        if missing:
            with ticking(heartbeat.beat), settings.surrounded(spec.run):
                checkpoint = _cut_stored(checkpoint, missing, scratch)
            sizes = stored_sizes(checkpoint)
            heartbeat.stop()
        report(_last_report(ended, [*sizes.values()]), checkpoint)
        return

    if checkpoint is None and spec.run.warm_start is not None:
        adapter = _source(settings.storage, spec.run.warm_start.run, scratch / "source")
        if adapter is None:
            why = f"the run that it starts from ({spec.run.warm_start.run}) left no adapter: it failed, or its storage is gone"
            report({"result": TrialResult(spec.key, "failed", error=why, retryable=True).to_json()}, None)
            return
        begin = spec.run.warm_start.model_copy(update={"adapter": str(adapter)})
        spec = replace(spec, run=spec.run.model_copy(update={"warm_start": begin}))

    def on_progress(progress: Progress) -> None:
        heartbeat.stop()
        if not progress.metrics:  # nothing was scored: the checkpoint of a trial that leaves
            _report_leaving(progress, evaluations, report)
            return
        evaluations.append(_payload(progress))
        if progress.checkpoint is not None:
            add_file(progress.checkpoint, EVALUATIONS_FILE, json.dumps(evaluations))
        report(evaluations[-1], progress.checkpoint)
        heartbeat.beat()

    def on_outlook(outlook: Outlook) -> None:
        heartbeat.stop()
        report({"outlook": asdict(outlook)}, None)
        heartbeat.beat()

    def on_step(step: int, total_steps: int) -> None:
        heartbeat.beat()
        if why := must_leave():
            raise Leave(why)

    if settings.gpu and settings.train is None:  # a stand-in needs none
        require_gpu()
    # Preparing the machine and building the method take long for a large model, and have no steps.
    with ticking(heartbeat.beat), report_outlooks(on_outlook), settings.surrounded(spec.run):
        end = run_trial(spec, scratch / "run", on_progress, on_step, checkpoint, settings.train)
    heartbeat.stop()
    if broken:
        note = f"{broken} damaged checkpoint{'s were' if broken > 1 else ' was'} passed over on resuming"
        end = replace(end, result=replace(end.result, notes=[*end.result.notes, note]))
    if "phases" in (facts := end.result.facts):
        facts["phases"] = {"start": time.monotonic() - began - sum(facts["phases"].values())} | facts["phases"]
    cuts = [one.result.to_json() for one in end.sizes]
    report(_last_report(end.result.to_json(), cuts), _final_checkpoint(scratch, end, evaluations))


def _last_report(result: dict[str, Any], sizes: list[dict[str, Any]]) -> dict[str, Any]:
    return {"result": result} | ({"sizes": sizes} if sizes else {})


def _cut_stored(checkpoint: Path, missing: Sequence[Trial], scratch: Path) -> Path:
    """The last checkpoint of a finished trial, with the sizes that it lacks."""
    from craft.trainer.cutting import Cut
    from craft.trainer.rescoring import cut_and_score

    adapter, cuts = checkpoint / ADAPTER_FOLDER, []
    for one in missing:
        cut = Cut(parameters=size_of(one), recovery=RECOVERY)
        _, size = cut_and_score(adapter, cut, scratch / "run" / one.key)
        cuts.append(Ended(result_of_size(one.key, size), size.adapter))

    def fill(folder: Path) -> None:
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
        (folder / MANIFEST_FILE).unlink()  # the checkpoint's own; each adapter keeps its seal
        for end in cuts:
            _keep(end, folder / SIZES_FOLDER / end.result.key)

    return write_folder(scratch / "final", fill)


def _report_leaving(progress: Progress, evaluations: list[dict[str, Any]], report: Report) -> None:
    if progress.checkpoint is not None:
        add_file(progress.checkpoint, EVALUATIONS_FILE, json.dumps(evaluations))
    report({"left_at": progress.step}, progress.checkpoint)


def _source(storage: str, key: str, scratch: Path) -> Path | None:
    """The adapter that the finished trial `key` has left on storage, as a local folder."""
    checkpoint, _ = newest_whole(storage, key, scratch)
    if checkpoint is None or stored_result(checkpoint) is None or not (checkpoint / ADAPTER_FOLDER).is_dir():
        return None
    return checkpoint / ADAPTER_FOLDER


def _foreign(key: str, why: str) -> TrialResult:
    error = (
        f"the worker runs another version of this code than the driver ({why}): install the same on every machine, then resume"
    )
    return TrialResult(key, "failed", error=error, retryable=True)


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


def _final_checkpoint(scratch: Path, end: Ended, evaluations: list[dict[str, Any]]) -> Path | None:
    if end.result.status != "finished" or end.adapter is None:
        return None

    def fill(folder: Path) -> None:
        _keep(end, folder)
        for one in end.sizes:
            _keep(one, folder / SIZES_FOLDER / one.result.key)
        (folder / EVALUATIONS_FILE).write_text(json.dumps(evaluations), encoding="utf-8")

    return write_folder(scratch / "final", fill)


def _keep(end: Ended, folder: Path) -> None:
    """Copies an adapter with what stands next to it, and writes its result."""
    assert end.adapter is not None
    shutil.copytree(end.adapter, folder / ADAPTER_FOLDER)
    predictions = end.adapter.parent / PREDICTIONS_FILE
    if predictions.is_file():  # the outputs behind the score: what a served adapter must answer again
        shutil.copy(predictions, folder)
    answers = end.adapter.parent / PREDICTIONS_FOLDER
    if answers.is_dir():
        shutil.copytree(answers, folder / PREDICTIONS_FOLDER)
    (folder / RESULT_FILE).write_text(json.dumps(end.result.to_json()), encoding="utf-8")


def stderr_left(scratch: Path, key: str) -> Path | None:
    """What the last process of a trial wrote to stderr, if it died; `scratch` is that of its settings."""
    return next(scratch.glob(f"{key}-*/{STDERR_FILE}"), None)


@contextmanager
def _scratch(settings: WorkerSettings, key: str) -> Iterator[Path]:
    with ExitStack() as stack:
        if settings.scratch is None:
            folder = stack.enter_context(scratch_folder(key))
        else:
            root = Path(settings.scratch)
            for earlier in root.glob(f"{key}-*"):
                shutil.rmtree(earlier, ignore_errors=True)
            root.mkdir(parents=True, exist_ok=True)
            # A folder for each attempt: the process of an interrupted one may end, and remove its own, after the next began.
            folder = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=root))
            # A process that dies never comes to this, so that its stderr stays for the driver to read.
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "run").mkdir()
        yield folder

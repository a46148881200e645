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
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from craft.plugins import PluginError, load_inherited
from craft.results import PREDICTIONS_FOLDER, Leave, Outlook, Progress, RunResult
from craft.scoring.predictions import PREDICTIONS_FILE
from craft.spec import BUDGET, RECOVERY, RunSpec
from craft.trainer.checkpoint import MANIFEST_FILE, add_file, write_folder
from craft.trainer.pace import report_outlooks
from craft.watch import watching
from orchestrator.plan.trial import Job, Outcome, PlannedTrial, TrialResult, result_of_cut
from orchestrator.plan.ways import Gpu
from orchestrator.record.checkpoints import (
    ADAPTER_FOLDER,
    CUTS_FOLDER,
    EVALUATIONS_FILE,
    RESULT_FILE,
    newest_whole,
    stored_cuts,
    stored_evaluations,
    stored_result,
)
from orchestrator.worker.run_job import Failed, in_batches_that_fit, note_smaller_batches, run_job, size_of
from orchestrator.worker.share import GpuFailed
from orchestrator.worker.surroundings import Heartbeat, WorkerSettings, guarded, together

_TRIALS = itertools.count()
"""Numbers the trials of this process. The start of its first one is that of the process."""

GPU_SECONDS, GPU_PAUSE_SECONDS = 600.0, 5.0
"""For so long a trial in one process tries a GPU that fails, with such pauses."""

Report = Callable[[dict[str, Any], Path | None], None]
"""Takes plain metrics and a checkpoint's folder, which is on the sweep's storage when it returns."""


def work(
    key: str,
    job: str,
    settings: WorkerSettings,
    report: Report,
    why_leave: Callable[[], str | None] = lambda: None,
) -> None:
    """Runs the job given as JSON to its end, reporting progress with checkpoints and at last the results of its trials."""
    try:
        load_inherited()
        todo = Job.from_json(json.loads(job))
        why = f"it calls this trial {todo.key}" if todo.key != key else ""
    except PluginError as error:
        report(_prevented(key, str(error)), None)
        return
    except (ValueError, KeyError, TypeError) as error:
        why = str(error)
    if why:
        version = (
            f"the worker runs another version of this code than the driver ({why}): install the same on every machine, then "
            "resume. Own methods, tasks and metrics are known to workers if the sweep file names their module under `plugins`"
        )
        report(_prevented(key, version), None)
        return
    with guarded(settings, key) as (scratch, heartbeat):
        _Attempt(todo, settings, report, scratch, heartbeat, why_leave).run()


def _prevented(key: str, why: str) -> dict[str, Any]:
    """Returns the report of a job that could not begin."""
    return {"results": [TrialResult(key, "failed", error=why, retryable=True).to_json()]}


def _process_age() -> float:
    import psutil

    return time.time() - float(psutil.Process().create_time())


class _Attempt:
    """One run of a job in this process, from its newest whole checkpoint."""

    def __init__(
        self,
        job: Job,
        settings: WorkerSettings,
        report: Report,
        scratch: Path,
        heartbeat: Heartbeat,
        why_leave: Callable[[], str | None],
    ) -> None:
        self._job, self._settings, self._report, self._scratch = job, settings, report, scratch
        self._heartbeat, self._why_leave = heartbeat, why_leave
        self._reported = time.monotonic()
        self._evaluations: list[dict[str, Any]] = []
        self._began = time.monotonic() - (_process_age() if next(_TRIALS) == 0 else 0.0)

    def run(self) -> None:
        job, storage = self._job, self._settings.storage
        self._beat()
        checkpoint, broken = newest_whole(storage, job.key, self._scratch / "fetched")
        # A driver that died between a checkpoint and its report received none of these; one that knows them ignores them.
        self._evaluations = stored_evaluations(checkpoint) if checkpoint else []
        for evaluation in self._evaluations:
            self._report(evaluation | {"progress": evaluation["progress"] | {"again": True}}, None)
        if checkpoint is not None and stored_result(checkpoint) is not None:
            # It had finished and stored all of it; only the driver died before writing it down, or the file asks for more cuts.
            self._report_stored(checkpoint)
            return
        if checkpoint is None and (start := job.training.run.warm_start) is not None:
            adapter = _source(storage, start.run, self._scratch / "source")
            if adapter is None:
                why = f"the run that it starts from ({start.run}) left no adapter: it failed, or its storage is gone"
                self._report(_prevented(job.key, why), None)
                return
            started = start.model_copy(update={"adapter": str(adapter)})
            training = replace(job.training, run=job.training.run.model_copy(update={"warm_start": started}))
            job = replace(job, training=training)
        self._train(job, checkpoint, broken)

    def _train(self, job: Job, checkpoint: Path | None, broken: int) -> None:
        settings = self._settings
        gpu = self._require_gpu()
        train = settings.train if settings.crew is None else together(job.training, settings, gpu)
        # Preparing the machine and building the method take long for a large model, and have no steps.
        with (
            watching(self._beat),
            report_outlooks(lambda outlook: self._send({"outlook": asdict(outlook)})),
            settings.surrounded(job.training.run),
        ):
            outcomes = run_job(job, self._scratch / "run", self._on_progress, self._on_step, checkpoint, train)
        self._heartbeat.stop()
        result = outcomes[0].result
        if broken:
            note = f"{broken} damaged checkpoint{'s were' if broken > 1 else ' was'} passed over on resuming"
            result = replace(result, notes=[*result.notes, note])
        if "phases" in (facts := result.facts):
            facts["phases"] = {"start": time.monotonic() - self._began - sum(facts["phases"].values())} | facts["phases"]
        outcomes = [replace(outcomes[0], result=result), *outcomes[1:]]
        results = [outcome.result.to_json() for outcome in outcomes]
        self._report({"results": results}, _final_checkpoint(self._scratch, outcomes, self._evaluations))

    def _require_gpu(self) -> Gpu | None:
        """Returns the process's GPU. One that fails is kept and tried for a while: each waiting trial would get it and fail."""
        until = time.monotonic() + (GPU_SECONDS if self._settings.crew is None else 0.0)
        while True:
            try:
                return self._settings.require_gpu()
            except GpuFailed as error:
                if time.monotonic() >= until:
                    raise
                self._send({"outlook": asdict(Outlook(str(error), 0.0, None))})
            time.sleep(GPU_PAUSE_SECONDS)
            self._on_step(0, 0)

    def _report_stored(self, checkpoint: Path) -> None:
        """Reports the results in the last checkpoint of a finished job, after cutting what it lacks."""
        missing = [cut for cut in self._job.cuts if cut.key not in stored_cuts(checkpoint)]
        failed = list[TrialResult]()
        if missing:
            self._require_gpu()
            with watching(self._beat), self._settings.surrounded(self._job.training.run):
                checkpoint, failed = _cut_stored(checkpoint, missing, self._scratch, self._job.training.run)
            self._heartbeat.stop()
        results = [stored_result(checkpoint), *stored_cuts(checkpoint).values(), *(result.to_json() for result in failed)]
        self._report({"results": results}, checkpoint)

    def _on_progress(self, progress: Progress) -> None:
        self._heartbeat.stop()
        if progress.metrics:
            names = ("step", "total_steps", "epoch", "metrics", "points")
            self._evaluations.append({"progress": {name: getattr(progress, name) for name in names} | {"time": time.time()}})
        if progress.checkpoint is not None:
            add_file(progress.checkpoint, EVALUATIONS_FILE, json.dumps(self._evaluations))
        if not progress.metrics:  # nothing was scored: the checkpoint of a trial that leaves
            self._report({"left_at": progress.step}, progress.checkpoint)
            return
        self._report(self._evaluations[-1], progress.checkpoint)
        self._heartbeat.beat()

    def _send(self, message: dict[str, Any]) -> None:
        self._heartbeat.stop()
        self._report(message, None)
        self._reported = time.monotonic()
        self._heartbeat.beat()

    def _beat(self, *_: Any) -> None:
        """Beats, and gives the driver, which ends a process without a sign of life, one where nothing else is reported."""
        self._heartbeat.beat()
        if self._heartbeat.seconds and time.monotonic() - self._reported > self._heartbeat.seconds / 2:
            self._send({"alive": True})

    def _on_step(self, step: int, total_steps: int) -> None:
        self._beat()
        if why := self._why_leave():
            raise Leave(why)


def _cut_stored(
    checkpoint: Path, missing: Sequence[PlannedTrial], scratch: Path, run: RunSpec
) -> tuple[Path, list[TrialResult]]:
    """Cuts a finished adapter. Returns a checkpoint that has the cuts too, and the results of those that failed.

    Memory that runs out is answered by smaller batches, as in `run_job`; a fault of the machine is raised.
    """
    from craft.trainer.adapter_folder import read_record
    from craft.trainer.cuts import cut_and_score

    trained = RunSpec.model_validate(read_record(checkpoint / ADAPTER_FOLDER)["spec"])  # it may have needed smaller batches
    outcomes, failed, tried = list[Outcome](), list[TrialResult](), [trained.training]
    for trial in missing:
        place, to = scratch / "run" / trial.key, f"{BUDGET}{size_of(trial)}"

        def cut(run: RunSpec, place: Path = place, to: str = to) -> RunResult:
            shutil.rmtree(place, ignore_errors=True)  # what did not fit left half of it
            return cut_and_score(checkpoint / ADAPTER_FOLDER, to, place, recovery=RECOVERY, spec=run)[1]

        try:
            size = in_batches_that_fit(run.model_copy(update={"training": tried[-1]}), tried, cut)
            outcomes.append(Outcome(result_of_cut(trial.key, size, note_smaller_batches(tried)), size.adapter))
        except Failed as error:
            notes = note_smaller_batches(tried)
            failed.append(TrialResult(trial.key, "failed", error=error.why, notes=notes, retryable=error.no_memory))

    def fill(folder: Path) -> None:
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
        (folder / MANIFEST_FILE).unlink()  # the checkpoint's own; each adapter keeps its seal
        for outcome in outcomes:
            _keep(outcome, folder / CUTS_FOLDER / outcome.result.key)

    return write_folder(scratch / "final", fill), failed


def _source(storage: str, key: str, scratch: Path) -> Path | None:
    checkpoint, _ = newest_whole(storage, key, scratch)
    if checkpoint is None or stored_result(checkpoint) is None or not (checkpoint / ADAPTER_FOLDER).is_dir():
        return None
    return checkpoint / ADAPTER_FOLDER


def _final_checkpoint(scratch: Path, outcomes: Sequence[Outcome], evaluations: list[dict[str, Any]]) -> Path | None:
    training, *cuts = outcomes
    if training.result.status != "finished" or training.adapter is None:
        return None

    def fill(folder: Path) -> None:
        _keep(training, folder)
        for cut in cuts:
            if cut.adapter is not None:
                _keep(cut, folder / CUTS_FOLDER / cut.result.key)
        (folder / EVALUATIONS_FILE).write_text(json.dumps(evaluations), encoding="utf-8")

    return write_folder(scratch / "final", fill)


def _keep(outcome: Outcome, folder: Path) -> None:
    assert outcome.adapter is not None
    shutil.copytree(outcome.adapter, folder / ADAPTER_FOLDER)
    predictions = outcome.adapter.parent / PREDICTIONS_FILE
    if predictions.is_file():  # the outputs behind the score: what a served adapter must answer again
        shutil.copy(predictions, folder)
    answers = outcome.adapter.parent / PREDICTIONS_FOLDER
    if answers.is_dir():
        shutil.copytree(answers, folder / PREDICTIONS_FOLDER)
    (folder / RESULT_FILE).write_text(json.dumps(outcome.result.to_json()), encoding="utf-8")

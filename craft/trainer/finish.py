"""The end of a run: scores of the best weights, their adapter, and the adapters that are cut from it.

best weights  ->  reported splits, one test after the other  ->  adapter, result
cuts          ->  the adapter cut to each size  ->  trained on  ->  search and reported splits  ->  its own adapter and result
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from craft.processes import current
from craft.results import CUTS_FOLDER, PREDICTIONS_FOLDER, RunFailed, RunResult
from craft.spec import BUDGET, RECOVERY
from craft.trainer import cuts
from craft.trainer.adapter_folder import restore_trainable, save_adapter
from craft.trainer.checkpoint import write_folder
from craft.trainer.counting import count, optimizer_bytes
from craft.trainer.run import Run


def finish(run: Run) -> RunResult:
    """Scores the reported splits with the selected weights, once, saves them as the adapter, and cuts that."""
    best, steps = run.best, run.loop.step
    assert best.weights is not None, "a run ends with an evaluation"
    if best.step != steps:
        restore_trainable(run.model, best.weights)
    try:
        with run.scoring():
            reported = run.scorer.reported(run.model, run.directory, lambda scores: _keep_predictions(run, scores))
            forgotten = run.forgetting.metrics(run.model) if run.forgetting else {}
            costs = run.meter.costs()
    except ValueError as error:
        raise RunFailed(f"training diverged: {error}") from error
    metrics = best.metrics | reported.metrics | forgotten
    describe = run.spec.row.describe
    if describe is not None:
        metrics |= describe(run.model)
    notes, facts = [*run.notes, *reported.notes], run.facts | best.facts | reported.facts
    facts |= {"resumed_at": run.resumed_at} if run.resumed_at else {}
    if run.loop.optimizer is not None:
        costs["optimizer_bytes"] = optimizer_bytes(run.loop.optimizer)
    counts = replace(count(run.model), **costs)  # type: ignore[arg-type]
    record = {
        "spec": run.spec.model_dump(mode="json"),
        "kind": run.task.kind,
        "labels": list(run.task.labels),
        "metrics": metrics,
        "counts": counts.known(),
        "best_step": best.step,
        "notes": notes,
        "facts": facts,
    }
    with run.meter.phase("store"):
        adapter = save_adapter(run.model, run.directory / "adapter", record)
    seconds = run.seconds_before + time.perf_counter()
    with run.meter.phase("cut"):
        smaller = [_cut(run, size) for size in run.cuts]
    return RunResult(metrics, counts, adapter, best.step, steps, seconds, notes, facts, smaller, run.meter.phases)


def _keep_predictions(run: Run, scores: dict[str, float]) -> None:
    """Seals the predictions of the tests scored so far into the last checkpoint, and reports it."""
    last = run.checkpoint
    if not current().is_first:
        return
    assert last is not None, "a run is scored after its last evaluation"

    def fill(aside: Path) -> None:
        shutil.copytree(last, aside, dirs_exist_ok=True, ignore=shutil.ignore_patterns(PREDICTIONS_FOLDER))
        shutil.copytree(run.directory / PREDICTIONS_FOLDER, aside / PREDICTIONS_FOLDER)

    run.checkpoint = write_folder(run.directory / last.name, fill)
    run.report(run.best.metrics | scores)


def _cut(run: Run, size: int) -> RunResult:
    """Cuts the adapter to `size` parameters, trains it on and scores it, as a second adapter of the model."""
    began, place, whole = time.perf_counter(), run.directory / CUTS_FOLDER / str(size), run.directory / "adapter"
    place.mkdir(parents=True)
    smaller = current().ask_first(lambda: cuts.cut(whole, f"{BUDGET}{size}", RECOVERY))
    with cuts.attached(run.model, smaller.tensors, smaller.config):
        cuts.recover(run.model, smaller.run, smaller.tensors, run.task, run.scorer, run.meter)
        with run.scoring():
            cuts.score(smaller, run.model, run.scorer, place, run.forgetting)
    if current().is_first:
        cuts.write(smaller, whole, place / "adapter")
    return smaller.result(place / "adapter", began)

"""Scores a saved adapter on the splits, and with the settings, of the run in its record: `score_adapter`, `cut_and_score`.

The model is made from the folder alone, so the scores are also a check of what was saved.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from craft.models.compute import compute_device
from craft.models.quiet import quiet_libraries
from craft.results import TEXT_DIGEST, Counts, RunResult
from craft.scoring.choose import make_scorer, splits_of
from craft.scoring.forgetting import BEFORE, Forgetting
from craft.scoring.scorer import Scorer
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter, read_record, write_record
from craft.trainer.checkpoint import rewrite
from craft.trainer.cutting import Cut, cut_adapter
from craft.trainer.memory import name_memory_errors
from craft.trainer.meter import Meter
from craft.trainer.process import isolate_process, run_repeatably
from craft.trainer.recovery import recover


def cut_and_score(
    adapter: Path, cut: Cut, place: Path, *, score: bool = True, base: str | None = None, spec: RunSpec | None = None
) -> tuple[RunSpec, RunResult]:
    """Cuts a finished adapter into `place`/adapter, trains it on and scores it; without `score` it only cuts.

    Args:
        base: as in `score_adapter`.
        spec: as in `cut_adapter`.
    """
    began, folder = time.perf_counter(), place / "adapter"
    place.mkdir(parents=True)
    run = cut_adapter(adapter, cut, folder, spec)
    if score:
        score_adapter(folder, place, base=base, recovers=bool(cut.recovery))
    elif base is not None:
        load_adapter(folder, base)  # refuses a base that it does not fit
    return run, read_cut(folder, began)


def read_cut(folder: Path, began: float) -> RunResult:
    """Reads the result of a cut adapter from its record; `began` is the start of the cut by `time.perf_counter`."""
    record = read_record(folder)
    seconds = time.perf_counter() - began
    counts = Counts(**record["counts"])
    return RunResult(record["metrics"], counts, folder, 0, 0, seconds, record["notes"], record["facts"])


def score_adapter(folder: Path, scratch: Path, *, base: str | None = None, recovers: bool = False) -> dict[str, float]:
    """Scores the adapter in `folder` on the search and the reported splits, and writes the scores into its record.

    Args:
        scratch: gets the outputs behind the scores.
        base: name or folder of the base model here, if it is not the name in the record.
        recovers: whether it was cut just now, and is trained on before.

    Raises:
        ValueError: the data are not here, or differ from those of the run; an output is not finite.
    """
    record = read_record(folder)
    spec = RunSpec.model_validate(record["spec"])
    training = spec.training
    batches = name_memory_errors(f"evaluation batches of {training.eval_batch_size} texts", scoring=True)

    def work(notes: list[str]) -> dict[str, float]:
        nonlocal recovers
        task = spec.task_row
        splits = splits_of(spec, task)
        fingerprint = record["facts"]["data_fingerprint"]
        if fingerprint != splits.fingerprint:
            raise ValueError(
                f"the data of {spec.task} here are not those that the adapter in {folder} was trained on (fingerprint "
                f"{splits.fingerprint[:12]}, not {fingerprint[:12]}), so its score could not be compared with the run's"
            )
        model, tokenizer = load_adapter(folder, base, trains=recovers)
        model.to(compute_device())
        scorer = make_scorer(spec, task, splits, tokenizer, model, _no_tick)
        forgetting, loss_before = None, record["metrics"].get(BEFORE)
        if spec.measure.forgetting is not None and loss_before is not None and task.kind == "generation":
            forgetting = Forgetting(spec.measure.forgetting, tokenizer, model, _no_tick, loss_before=loss_before)
            _refuse_other_text(folder, record["facts"], forgetting.facts)
        if recovers:
            with name_memory_errors(f"micro-batches of {training.batch_size} x {training.max_length} tokens"):
                recover(model, "default", folder, spec, task, scorer, Meter())
            recovers = False
        return score_model(folder, scratch, model, scorer, forgetting, notes)

    with isolate_process(tf32=training.tf32), quiet_libraries(), batches:
        return run_repeatably(work)


def score_model(
    folder: Path,
    scratch: Path,
    model: nn.Module,
    scorer: Scorer,
    forgetting: Forgetting | None = None,
    notes: Sequence[str] = (),
) -> dict[str, float]:
    """Scores a model that has the adapter in `folder`, and writes the scores into its record."""
    record = read_record(folder)
    searched = scorer.search(model)
    reported = scorer.reported(model, scratch, lambda _scores: None)
    record["metrics"] |= searched | (forgetting.metrics(model) if forgetting else {}) | reported.metrics
    record["notes"] += [*reported.notes, *notes]
    record["facts"] |= scorer.searched | reported.facts
    rewrite(folder, lambda aside: write_record(aside, record))
    return dict(record["metrics"])


def _no_tick(_what: str, _done: int, _total: int) -> None:
    """Does nothing."""


def _refuse_other_text(folder: Path, facts: dict[str, Any], here: dict[str, str]) -> None:
    trained = facts.get(TEXT_DIGEST)
    if trained is not None and trained != here[TEXT_DIGEST]:
        raise ValueError(
            f"the text of measure.forgetting has changed since the adapter in {folder} was trained (its SHA-256 is "
            f"{here[TEXT_DIGEST][:12]}, then {trained[:12]}), so the loss before training does not belong to it. "
            "Put the old text back"
        )

"""Runs that are watched or interrupted; whether two ended equal; and the scores of an adapter that is read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from craft.models.compute import compute_device
from craft.results import Leave, RunResult
from craft.scoring.scorer import make_scorer, splits_of
from craft.spec import RunSpec
from craft.trainer.adapter_folder import load_adapter
from craft.trainer.process import isolate_process
from craft.trainer.training import train_run


def same_weights(*files: Path) -> bool:
    left, right = map(load_file, files)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def close_weights(*runs: RunResult, **tolerance: float) -> bool:
    left, right = (load_file(run.adapter / "adapter_model.safetensors") for run in runs)
    return all(torch.allclose(left[name], right[name], **tolerance) for name in left)


def same_run(*runs: RunResult) -> bool:
    """Whether scores and weights are equal, and the files of predictions byte for byte."""
    scores = [(run.metrics, run.best_step) for run in runs]
    weights = [next(run.adapter.glob("[!b]*.safetensors")) for run in runs]
    predictions = [
        {file.name: file.read_bytes() for file in run.adapter.parent.glob("predictions*/*")}
        | {file.name: file.read_bytes() for file in run.adapter.parent.glob("predictions.safetensors")}
        for run in runs
    ]
    return scores[0] == scores[1] and same_weights(*weights) and predictions[0] == predictions[1]


def train_watched(
    spec: RunSpec, folder: Path, train: Callable[..., RunResult] = train_run, **calls: Any
) -> tuple[RunResult, list[dict[str, float]]]:
    """Trains a run; returns its result and the points of all its reports."""
    points: list[dict[str, float]] = []
    return train(spec, folder, report=lambda progress: points.extend(progress.points), **calls), points


def losses_of(points: list[dict[str, float]]) -> list[float]:
    return [point["train_loss"] for point in points]


def leave_at(last: int) -> Callable[[int, int], None]:
    """Makes a run leave its machine after the step `last`."""

    def end_step(step: int, _total: int) -> None:
        if step == last:
            raise Leave("its machine is taken away")

    return end_step


def score_saved(folder: Path, scratch: Path) -> dict[str, float]:
    """The scores of an adapter on the splits of the run in its record, from a model that is made from the folder alone."""
    record = json.loads((folder / "run.json").read_text())
    spec = RunSpec.model_validate(record["spec"])
    with isolate_process(tf32=spec.training.tf32):
        model, tokenizer = load_adapter(folder)
        splits = splits_of(spec, spec.task_row)
        scorer = make_scorer(spec, spec.task_row, splits, tokenizer, model.to(compute_device()))
        return scorer.search(model) | scorer.reported(model, scratch, lambda _scores: None).metrics

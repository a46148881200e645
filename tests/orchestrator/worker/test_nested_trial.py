"""A training of nested ranks inside a worker: its slices' numbers, names and adapters, and what a later worker finds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from craft.results import Counts, Progress, RunResult, SliceResult
from craft.spec import RunSpec
from craft.trainer.checkpoint import verify
from orchestrator.plan.trial import TrialSpec
from orchestrator.worker.settings import WorkerSettings
from orchestrator.worker.worker import work
from tests.orchestrator.nested_sweep import nested_plan, nested_stand_in, training_of


def worked(tmp_path: Path, training: TrialSpec, train: Callable) -> list[dict[str, Any]]:
    """The reports of a worker; its last checkpoint is kept as storage would."""
    settings, reports = WorkerSettings(str(tmp_path / "storage"), str(tmp_path / "scratch"), 1, train=train), []

    def report(metrics: dict[str, Any], folder: Path | None) -> None:
        if folder is not None:
            place = tmp_path / "storage" / "attempt-1" / training.key / f"checkpoint_{len(reports):06d}"
            if not place.exists():
                shutil.copytree(folder, place)
        reports.append(json.loads(json.dumps(metrics)))

    work(training.key, json.dumps(training.to_json()), settings, report)
    return reports


def test_slices_are_reported_and_kept_with_their_adapters_and_told_again(tmp_path: Path) -> None:
    training, slices = training_of(nested_plan(tmp_path))
    log = tmp_path / "log"
    reports = worked(tmp_path, training, nested_stand_in(str(log), {}))
    first, *_, last = reports
    assert first["progress"]["slices"] == {
        slices[0].key: {"search_score": 12.0},
        slices[1].key: {"search_score": 14.0},
    }
    assert [(one["key"], one["metrics"]["score"], one["seconds"]) for one in last["slices"]] == [
        (slices[0].key, 52.0, 5.0),
        (slices[1].key, 54.0, 5.0),
    ]
    assert [one["counts"]["trainable_parameters"] for one in last["slices"]] == [20, 40]
    (kept,) = (tmp_path / "storage" / "attempt-1" / training.key).glob("*/slices")
    for one, rank in zip(slices, (2, 4), strict=True):
        verify(kept / one.key / "adapter")
        assert json.loads((kept / one.key / "adapter" / "run.json").read_text()) == {"rank": rank}
    # The driver died before it wrote any of this down; the next worker tells it again and trains nothing.
    again = worked(tmp_path, training, nested_stand_in(str(log), {}))
    assert again[-1]["result"] == last["result"]
    assert sorted(again[-1]["slices"], key=str) == sorted(last["slices"], key=str)
    assert log.read_text().count("start") == 1


def test_smaller_micro_batches_change_no_name(tmp_path: Path) -> None:
    training, slices = training_of(nested_plan(tmp_path, block="batch_size: 8"))

    def train(spec: RunSpec, directory: Path, *, report: Callable, resume_from: Path | None, on_step: Callable) -> RunResult:
        if spec.training.batch_size == 8:
            raise RuntimeError("CUDA out of memory.")
        keys = [one.key for one in spec.slices[:-1]]
        report(Progress(1, 2, 0.5, {"search_score": 51.0}, slices={key: {"search_score": 50.0} for key in keys}))
        (directory / "adapter").mkdir()
        given = {key: SliceResult({"score": 60.0}, Counts(1, 2, 3, 4), directory / "adapter", 1) for key in keys}
        return RunResult({"score": 70.0}, Counts(10, 2, 100, 40), directory / "adapter", 1, 2, 1.0, slices=given)

    first, last = worked(tmp_path, training, train)
    assert list(first["progress"]["slices"]) == [one["key"] for one in last["slices"]] == [one.key for one in slices]
    assert all("micro-batch" in note for one in last["slices"] for note in one["notes"])

"""Whole runs on a pretended GPU: each method trains, scores, saves, is cut, resumes and runs out of memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from craft import processes
from craft.methods import METHODS
from craft.processes import Group
from craft.results import Leave, Progress
from craft.spec import RECOVERY, RunSpec
from craft.trainer.adapter_folder import read_record
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.trainer.cuts import cut_and_score
from craft.trainer.process import UNREPEATABLE
from craft.trainer.training import train_run
from orchestrator.plan.trial import Job, PlannedTrial
from orchestrator.worker.run_job import run_job
from tests.craft.methods.cases import CASES
from tests.craft.pretended_gpu import gpu as gpus
from tests.craft.pretended_gpu.gpu import pretended
from tests.craft.trainer.same import score_saved

NAMES = [name for name, row in METHODS.items() if row.requires is None]
QUICK = ("craft", "lora")
"""Methods of the quick tests: shared parameters of all layers, and parameters of each module."""
CUT = {name: CASES[name].count * 2 // 5 for name in NAMES if METHODS[name].cutting}
"""A size for each method whose adapters can be cut."""


def spec_of(model: str, method: str, **training: Any) -> RunSpec:
    settings = {
        "batch_size": 8,
        "eval_batch_size": 8,
        "train_examples": 16,
        "eval_examples": 8,
        "max_length": 16,
        "select": "last",
    }
    settings |= {"max_steps": 4, "evaluate_every": "end", "learning_rate": CASES[method].learning_rate}
    parameters = CASES[method].parameters
    return RunSpec(model=model, task="toy/sentiment", method=method, parameters=parameters, training=settings | training)


def bytes_of_embeddings(batch_size: int) -> int:
    """The embeddings of so many texts: what a look-up makes."""
    return batch_size * 16 * 32 * 4


@pytest.mark.parametrize("method", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in NAMES])
def test_a_disturbed_run_has_the_losses_of_the_cpus(method: str, tiny_bert: str, tmp_path: Path) -> None:
    """It leaves after its second step, resumes, runs out of memory, is cut and scored again. Devices that meet are an error."""
    spec, losses = spec_of(tiny_bert, method), dict[str, list[float]](cpu=[], gpu=[])
    checkpoints: list[Path | None] = []

    def leave(step: int, _steps: int) -> None:
        if step == 2:
            raise Leave("its machine is taken away")

    def follow(place: str) -> Callable[[Progress], None]:
        return lambda progress: losses[place].extend(point["train_loss"] for point in progress.points)

    cpu = train_run(spec, tmp_path / "cpu", report=follow("cpu"), cuts=[CUT[method]] if method in CUT else [])
    with pretended() as gpu:
        with pytest.raises(Leave):
            train_run(spec, tmp_path / "left", report=lambda at: checkpoints.append(at.checkpoint), on_step=leave)
        gpu.room = bytes_of_embeddings(4)
        trial = PlannedTrial(spec, "c0ffee", method)
        (ended,) = run_job(Job(trial), tmp_path / "trial", follow("gpu"), resume_from=checkpoints[-1])
        assert ended.adapter is not None, ended.result.error
        metrics = [ended.result.metrics, score_saved(ended.adapter, tmp_path / "trial")]
        if cpu.cuts:
            size = f"parameters:{CUT[method]}"
            metrics.append(cut_and_score(ended.adapter, size, tmp_path / "size", recovery=RECOVERY)[1].metrics)
    assert ended.result.notes[0] == "micro-batches of 4 x 2 and evaluation batches of 4 after memory ran out"
    assert losses["gpu"] == pytest.approx(losses["cpu"], rel=1e-3)
    expected = [cpu.metrics, cpu.metrics, *(size.metrics for size in cpu.cuts)]
    assert [each["search_loss"] for each in metrics] == pytest.approx([each["search_loss"] for each in expected], rel=1e-2)


@pytest.mark.parametrize("method", [pytest.param(name, marks=[] if name == "craft" else pytest.mark.slow) for name in NAMES])
def test_a_model_that_is_built_on_the_cpu_trains_on_the_gpu(
    method: str, tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are models whose base is put into parts; everything that belongs to a weight has to follow it."""
    spec, losses = spec_of(tiny_bert, method, weight_decay=0.1), list[list[float]]()

    def follow(progress: Progress) -> None:
        losses[-1].extend(point["train_loss"] for point in progress.points)

    cuts, sizes = [CUT[method]] if method in CUT else [], list[list[float]]()
    for place in (nullcontext(), pretended()):
        losses.append([])
        with place:
            result = train_run(spec, tmp_path / str(len(losses)), report=follow, cuts=cuts)
        sizes.append([cut.metrics["search_loss"] for cut in result.cuts])
        monkeypatch.setattr(processes, "_current", Group("shard"))
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert sizes[1] == pytest.approx(sizes[0], rel=1e-2)


def test_an_operation_without_a_deterministic_form_is_allowed_and_noted(
    tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "UNORDERED", {"gelu_backward"})
    spec, note = spec_of(tiny_bert, "lora"), f"{UNREPEATABLE}: gelu_backward CUDA has no deterministic form here"
    with pretended():
        result = train_run(spec, tmp_path / "run")
        assert note in result.notes
        assert note in read_record(result.adapter)["notes"]
        again = train_run(spec, tmp_path / "again", resume_from=find_newest_checkpoint(tmp_path / "run"))
        assert again.notes.count(note) == 1, "also where nothing is left to train"


def test_without_cublas_workspace_products_are_noted(tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pretended():
        result = train_run(spec_of(tiny_bert, "lora"), tmp_path / "run")
    assert f"{UNREPEATABLE}: CuBLAS has no deterministic form here" in result.notes


def test_devices_that_meet_are_an_error() -> None:
    with pretended(), pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        torch.ones(3, device="cuda") + torch.ones(3)

"""Whole runs on a pretended GPU: each method trains, scores, saves, is cut, resumes, lacks memory, waits; layers on two.

And what keeps all other tests on the CPU, where `python -m tests.gpu` has nothing to check."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from craft import processes
from craft.methods import METHODS
from craft.models import loading
from craft.models.loading import SPREAD
from craft.processes import Group
from craft.results import Leave
from craft.spec import RECOVERY, RunSpec
from craft.trainer import training
from craft.trainer.adapter_folder import read_record
from craft.trainer.checkpoint import find_newest_checkpoint
from craft.trainer.cuts import cut_and_score
from craft.trainer.loop import Loop
from craft.trainer.process import UNREPEATABLE
from craft.trainer.training import train_run
from orchestrator.plan.trial import Job, PlannedTrial
from orchestrator.worker.run_job import run_job
from tests.conftest import wants_gpus
from tests.craft.conftest import MakeSpec, make_spec
from tests.craft.methods.cases import CASES, marked
from tests.craft.methods.test_families import JOINT, WORDS, out, stirred
from tests.craft.pretended_gpu import gpu as gpus
from tests.craft.pretended_gpu.gpu import pretended
from tests.craft.trainer.same import leave_at, losses_of, score_saved, train_watched
from tests.word_pairs import colours

NAMES = [name for name, row in METHODS.items() if row.requires is None]
CUT = {name: CASES[name].count * 2 // 5 for name in NAMES if METHODS[name].cutting}
"""A size for each method whose adapters can be cut."""


def spec_of(model: str, method: str, **training: Any) -> RunSpec:
    settings = {"eval_batch_size": 8, "train_examples": 16, "eval_examples": 8, "max_length": 16, "select": "last"}
    settings |= {"max_steps": 4, "evaluate_every": "end", "learning_rate": CASES[method].learning_rate}
    return make_spec(model=model, method=method, parameters=CASES[method].parameters, training=settings | training)


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
def test_a_disturbed_run_has_the_losses_of_the_cpus(method: str, tiny_bert: str, tmp_path: Path) -> None:
    """It leaves after its second step, resumes, runs out of memory, is cut and scored again. Devices that meet are an error."""
    spec, checkpoints, reports = spec_of(tiny_bert, method), list[Path | None](), list[dict[str, float]]()
    cpu, points = train_watched(spec, tmp_path / "cpu", cuts=[CUT[method]] if method in CUT else [])
    with pretended() as gpu:
        with pytest.raises(Leave):
            train_run(spec, tmp_path / "left", report=lambda at: checkpoints.append(at.checkpoint), on_step=leave_at(2))
        gpu.room = 4 * 16 * 32 * 4  # the embeddings of four texts: what a look-up makes
        trial = PlannedTrial(spec, "c0ffee", method)
        (ended,) = run_job(Job(trial), tmp_path / "trial", lambda at: reports.extend(at.points), resume_from=checkpoints[-1])
        assert ended.adapter is not None, ended.result.error
        metrics = [ended.result.metrics, score_saved(ended.adapter, tmp_path / "trial")]
        if cpu.cuts:
            size = f"parameters:{CUT[method]}"
            metrics.append(cut_and_score(ended.adapter, size, tmp_path / "size", recovery=RECOVERY)[1].metrics)
    assert ended.result.notes[0] == "micro-batches of 4 x 2 and evaluation batches of 4 after memory ran out"
    assert losses_of(reports) == pytest.approx(losses_of(points), rel=1e-3)
    expected = [cpu.metrics, cpu.metrics, *(size.metrics for size in cpu.cuts)]
    assert [each["search_loss"] for each in metrics] == pytest.approx([each["search_loss"] for each in expected], rel=1e-2)


@pytest.mark.parametrize("method", marked(NAMES, ("craft",)))
def test_a_model_that_is_built_on_the_cpu_trains_on_the_gpu(
    method: str, tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are models whose base is put into parts; everything that belongs to a weight has to follow it."""
    spec, losses = spec_of(tiny_bert, method, weight_decay=0.1), list[list[float]]()
    cuts, sizes = [CUT[method]] if method in CUT else [], list[list[float]]()
    for place in (nullcontext(), pretended()):
        with place:
            result, points = train_watched(spec, tmp_path / str(len(losses)), cuts=cuts)
        losses.append(losses_of(points))
        sizes.append([cut.metrics["search_loss"] for cut in result.cuts])
        monkeypatch.setattr(processes, "_current", Group("shard"))
    assert len(losses[0]) == 4
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert sizes[1] == pytest.approx(sizes[0], rel=1e-2)


@pytest.mark.slow
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


@pytest.mark.slow
def test_without_cublas_workspace_products_are_noted(tiny_bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    with pretended():
        result = train_run(spec_of(tiny_bert, "lora"), tmp_path / "run")
    assert f"{UNREPEATABLE}: CuBLAS has no deterministic form here" in result.notes


def test_devices_that_meet_are_an_error() -> None:
    with pretended(), pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        torch.ones(3, device="cuda") + torch.ones(3)


STEPS = {"max_steps": 6, "batch_size": 4, "eval_batch_size": 8, "train_examples": 24, "eval_examples": 16}


def sentiment(_folder: Path) -> dict[str, Any]:
    return {"task": "toy/sentiment", "training": STEPS}


def answers(folder: Path) -> dict[str, Any]:
    return colours(folder, "exact_match", beams=2, max_new_tokens=4) | {"training": STEPS | {"max_length": 300}}


@pytest.mark.slow
@pytest.mark.parametrize(("base", "task", "share"), [("tiny_llama", answers, 0.8), ("tiny_bert", sentiment, 0.9)])
def test_layers_on_two_gpus_have_the_numbers_of_one(
    base: str,
    task: Callable[[Path], dict[str, Any]],
    share: float,
    tiny_spec: MakeSpec,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Accelerate divides the base, one process computes. `share` is the part of the base that the first GPU may hold, with a
    layer in reserve. bitsandbytes has no kernels for a pretended GPU, so QLoRA's base is not quantized here."""
    model = request.getfixturevalue(base)
    size = (Path(model) / "model.safetensors").stat().st_size
    spec = tiny_spec(model=model, method="qlora", parameters={"rank": 4}, **task(tmp_path))

    def divide(*arguments: Any) -> dict[str, Any]:
        device = arguments[-1]
        spread = {"device_map": device, "max_memory": {0: int(share * size), 1: 10 * size}}
        return spread if device == SPREAD else {"device_map": {"": device}}

    def loop(*arguments: Any, **calls: Any) -> Loop:
        weights = [*arguments[2].named_parameters()]
        places.append(
            [{weight.device.index for name, weight in weights if ("lora_" in name) == ours} for ours in (False, True)]
        )
        return Loop(*arguments, **calls)

    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # other threads do not see the pretended GPUs
    monkeypatch.setattr(loading, "_quantized", divide)
    monkeypatch.setattr(training, "refuse_elsewhere", lambda _method: None)
    monkeypatch.setattr(training, "Loop", loop)
    places, losses, scores = list[list[set[int]]](), list[list[float]](), list[dict[str, float]]()
    for group, count in ((Group(), 1), (Group("layers"), 2)):
        monkeypatch.setattr(processes, "_current", group)
        with pretended(count):
            result, points = train_watched(spec, tmp_path / group.way)
        losses.append(losses_of(points))
        scores.append(result.metrics)
    assert places == [[{0}, {0}], [{0, 1}, {0, 1}]]
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert scores[1] == pytest.approx(scores[0], rel=1e-6, abs=1e-7)  # the error of a likelihood is a small difference


@pytest.mark.slow
@pytest.mark.parametrize("method", JOINT)
def test_what_layers_share_may_stand_on_another_gpu(method: str, tiny_model: Callable[..., Any]) -> None:
    model = stirred(tiny_model("bert"), method)
    expected = out(model)
    with pretended(2):
        model.to("cuda:0")
        model.base_model.parts.to("cuda:1")
        result = model(WORDS.to("cuda:0"))[0]
        result.sum().backward()
        assert all(weight.grad.device.index == 1 for weight in model.base_model.parts.parameters())
        torch.testing.assert_close(result.detach().cpu(), expected.detach())


COUNTED = (4, 8)
"""Of two runs, whose difference is the steps' own."""
FEW: dict[str, Any] = {"batch_size": 4, "train_examples": 64, "max_length": 8, "head_start": "random"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["craft", "lora"])
def test_a_step_waits_where_it_is_logged_alone(method: str, tiny_bert: str, tmp_path: Path) -> None:
    """A run of fewer than a hundred steps logs each of them. Plain Trainer with PEFT's LoRA waits seven times a step."""
    counts = []
    for steps in COUNTED:
        with pretended() as gpu:
            train_run(spec_of(tiny_bert, method, **FEW, max_steps=steps), tmp_path / str(steps))
        counts.append(gpu.waits)
    counts[1].subtract(counts[0])
    waits = {f"{why}: {line}": count / (COUNTED[1] - COUNTED[0]) for (why, line), count in counts[1].items() if count > 0}
    assert {line.rpartition(" ")[2] for line in waits} == {"read_losses"}, waits
    assert sum(waits.values()) <= 2, waits


@pytest.mark.slow
def test_a_recovering_step_waits_once_for_the_adapter(tiny_bert: str, tmp_path: Path) -> None:
    spec = spec_of(tiny_bert, "craft", **FEW, max_steps=20)
    result = train_run(spec, tmp_path / "run")
    with pretended() as gpu:
        cut_and_score(result.adapter, "parameters:100", tmp_path / "cut", recovery=RECOVERY)
    of_cutting = {why: count for (why, line), count in gpu.waits.items() if "methods/cutting.py" in line}
    assert of_cutting == {"copy from the GPU": 1 + RECOVERY * 20}
    assert not any("svd" in why for why, _ in gpu.waits)


def test_tests_and_their_child_processes_see_no_gpu() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert torch.cuda.device_count() == 0


@pytest.mark.parametrize(
    ("marks", "wanted"),
    [
        ("gpu", True),
        ("gpu and not cluster", True),
        ("not slow and not cluster and not browser and not gpu", False),
        ("gpu or slow", False),
    ],
)
def test_gpus_are_seen_by_tests_for_gpus_alone(marks: str, wanted: bool) -> None:
    assert wants_gpus(marks) is wanted


@pytest.mark.slow
def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.gpu"], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("No GPU: torch")

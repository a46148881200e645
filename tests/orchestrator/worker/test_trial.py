"""One trial without Ray: every way a run can end becomes the right result, or is passed to what can try again. Processes that
die and hang are in `tune.test_runner`."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError

from craft.results import Counts, OutOfMemory, RunFailed, RunPrevented, RunResult, is_out_of_memory
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.trainer.checkpoint import CheckpointCorrupt, write_folder
from orchestrator.plan.trial import Job, Outcome, PlannedTrial
from orchestrator.sweepfile.resources import Resources
from orchestrator.worker.crash import describe, machine_lost
from orchestrator.worker.run_job import run_job


def spec(**training: int) -> PlannedTrial:
    run = RunSpec(model="m", task="toy/paraphrase", method="lora", training=TrainingSettings(**training), seed=3)
    return PlannedTrial(run, "c0ffee", "LoRA")


def outcome_of(trial: PlannedTrial, *arguments, **named) -> Outcome:
    (outcome,) = run_job(Job(trial), *arguments, **named)
    return outcome


def raising(error: Exception):
    def train(run: RunSpec, directory: Path, **_) -> RunResult:
        raise error

    return train


MACHINE = [
    OSError(errno.ENOSPC, "No space left on device"),
    ImportError("libcusparse.so.12: cannot open shared object file"),
    RunPrevented("model 'nobody/nothing': the hub did not give it"),
    CheckpointCorrupt("changed since it was found"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge because the input matrix is ill-conditioned"),
    "can't start new thread",
    "unable to write to file </torch_7_1>: No space left on device (28)",
    "CUDA error: device-side assert triggered",
    "The NVIDIA driver on your system is too old (found version 11040)",
    "CUDA unknown error - this may be due to an incorrectly set up environment",
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices()",
    "No CUDA GPUs are available",
    "GET was unable to find an engine to execute this computation",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "hipBLASLt error: HIPBLAS_STATUS_INTERNAL_ERROR",
    "NCCL Error 2: unhandled system error",
    "Triton Error [CUDA]: device kernel image is invalid",
    "Failed to initialize NVML: Driver/library version mismatch",
]
FINAL = [
    RunFailed("the loss is NaN at step 3"),
    ValueError("the loss is NaN at step 3"),
    KeyError("q_proj"),
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "kthvalue CUDA does not have a deterministic implementation",
    "mat1 and mat2 shapes cannot be multiplied (4x8 and 16x2)",
    "linalg.cholesky: The factorization could not be completed because the input is not positive-definite",
    "index 5 is out of bounds for dimension 0 with size 2",
]
MEMORY = [
    MemoryError(),
    OSError(errno.ENOMEM, "x"),
    "CUDA out of memory. Tried to allocate",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "DefaultCPUAllocator: can't allocate memory",
    "std::bad_alloc",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA driver error: out of memory",
    'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1131',
    "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED",
]


@pytest.mark.parametrize("error", [*MACHINE, *FINAL, *MEMORY], ids=repr)
def test_faults_of_the_machine_are_left_to_another_try_and_those_of_the_code_are_final(
    tmp_path: Path, error: Exception | str
) -> None:
    raised = RuntimeError(error) if isinstance(error, str) else error
    assert is_out_of_memory(raised) == (error in MEMORY)
    if error in MACHINE:
        with pytest.raises(type(raised)):
            outcome_of(spec(), tmp_path, lambda p: None, train=raising(raised))
    else:
        end = outcome_of(spec(batch_size=1), tmp_path, lambda p: None, train=raising(raised))
        assert (end.result.status, end.result.retryable, end.adapter) == ("failed", error in MEMORY, None)
        said = str(raised) or "MemoryError"
        if error in FINAL and not isinstance(raised, RunFailed | ValueError):
            said = f"{type(raised).__name__}: {said} (test_trial.py:"
        assert said in str(end.result.error) if error in MEMORY else str(end.result.error).startswith(said)


def test_memory_that_ran_out_is_answered_by_smaller_batches_from_the_last_checkpoint(tmp_path: Path) -> None:
    """An evaluation that ran out of it leaves the micro-batches alone."""
    seen = []

    def train(run: RunSpec, directory: Path, *, resume_from: Path | None, **_) -> RunResult:
        training = run.training
        seen.append((training.batch_size, training.gradient_accumulation, training.eval_batch_size, resume_from))
        if len(seen) == 1:
            write_folder(directory / "checkpoint-5", lambda folder: (folder / "weights").write_text("w") and None)
            raise MemoryError("no more")
        if len(seen) == 2:
            error = OutOfMemory("out of memory with evaluation batches")
            error.scoring = True
            raise error
        (directory / "adapter").mkdir(parents=True)
        return RunResult({"score": 70.0}, Counts(10, 2, 100, 40), directory / "adapter", 4, 6, 1.5, ["a note"], {"device": "x"})

    trial = spec(batch_size=8, gradient_accumulation=2)
    result = outcome_of(trial, tmp_path, lambda p: None, train=train).result
    stored = tmp_path / "checkpoint-5"
    assert seen == [(8, 2, 64, None), (4, 4, 32, stored), (4, 4, 16, stored)]
    assert result.key == trial.key
    assert result.notes == ["micro-batches of 4 x 4 and evaluation batches of 16 after memory ran out", "a note"]


def test_a_trial_that_fits_in_no_size_may_be_tried_again_and_says_what_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=24 * 2**30))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 11 * 2**29)
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    share = replace(spec(batch_size=4, eval_batch_size=2), resources=Resources(gpu=0.25))
    result = outcome_of(share, tmp_path, lambda p: None, train=raising(RuntimeError("CUDA out of memory."))).result
    assert (result.status, result.retryable, result.settled) == ("failed", True, False)
    assert len(emptied) == 2
    for part in ("micro-batches of 4 x 1, 2 x 2, 1 x 4", "0.25 of a GPU of 24.0 GiB", "5.5 GiB", "resources.gpu", "--resume"):
        assert part in (result.error or "")


GUESSES = (
    "The actor died unexpectedly before finishing this task. Worker unexpectedly exits with a connection error code 2. End of "
    "file. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop "
    "--force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error."
)
UNAVAILABLE = (
    "The actor 60a0fa21 is unavailable: The actor is temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14. "
    "The task may or may not have been executed on the actor."
)
PRESSURE = "2 worker(s) were killed due to the node running low on memory. Memory on the node was 22.9GB / 23.0GB."


@pytest.mark.parametrize(
    ("said", "found", "lost"),
    [
        (GUESSES, "its process died", False),
        (PRESSURE, "memory ran out on its machine", False),
        ("The node has died: worker memory was killed", "the machine it ran on was lost", True),
        (UNAVAILABLE, "the machine it ran on is out of reach", True),
    ],
)
def test_a_lost_process_or_machine_is_told_by_what_ray_knows_not_by_what_it_guesses(said: str, found: str, lost: bool) -> None:
    assert found in describe(RuntimeError(said))
    assert machine_lost(RuntimeError(said)) is lost

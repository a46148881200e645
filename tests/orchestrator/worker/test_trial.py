"""One trial without Ray: every way a run can end becomes the right result, or goes on to whoever can try again."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from craft.results import Counts, Progress, RunFailed, RunResult
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.trainer.checkpoint import write_folder
from orchestrator.plan.trial import TrialResult, TrialSpec
from orchestrator.worker.errors import is_transient, out_of_memory
from orchestrator.worker.run_trial import run_trial


def spec(**training: int) -> TrialSpec:
    run = RunSpec(model="m", task="toy/acceptability", method="lora", training=TrainingSettings(**training), seed=3)
    return TrialSpec(run, "c0ffee", "LoRA")


def finished(directory: Path) -> RunResult:
    (directory / "adapter").mkdir(parents=True)
    return RunResult({"score": 70.0}, Counts(10, 2, 100, 40), directory / "adapter", 4, 6, 1.5, ["a note"], {"device": "x"})


def test_a_spec_survives_its_journey_as_json() -> None:
    assert TrialSpec.from_json(spec(batch_size=4).to_json()) == spec(batch_size=4)
    assert TrialSpec.from_json(spec().to_json()).key == spec().key


def test_a_finished_run_gives_its_numbers_and_its_adapter(tmp_path: Path) -> None:
    result, adapter = run_trial(spec(), tmp_path, lambda p: None, train=lambda run, directory, **_: finished(directory))
    assert result == TrialResult(
        spec().key, "finished", {"score": 70.0},
        {"trainable_parameters": 10, "head_parameters": 2, "total_parameters": 100, "adapter_bytes": 40},
        6, 1.5, notes=["a note"], facts={"device": "x", "best_step": 4},
    )  # fmt: skip
    assert adapter == tmp_path / "adapter"


@pytest.mark.parametrize("error", [RunFailed("the loss is NaN at step 3"), ValueError("the loss is NaN at step 3")])
def test_an_error_that_will_come_again_fails_the_trial_with_its_message(tmp_path: Path, error: Exception) -> None:
    result, adapter = run_trial(spec(), tmp_path, lambda p: None, train=raising(error))
    assert (result.status, result.error, result.retryable, adapter) == ("failed", "the loss is NaN at step 3", False, None)


def test_an_unexpected_error_names_its_kind_and_place(tmp_path: Path) -> None:
    result, _ = run_trial(spec(), tmp_path, lambda p: None, train=raising(KeyError("q_proj")))
    assert result.error is not None
    assert result.error.startswith("KeyError: 'q_proj' (test_trial.py:")


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), ConnectionResetError("hub"), RuntimeError("CUDA error: unspecified")],
)
def test_faults_of_the_machine_are_left_to_another_try(tmp_path: Path, error: Exception) -> None:
    assert is_transient(error)
    with pytest.raises(type(error)):
        run_trial(spec(), tmp_path, lambda p: None, train=raising(error))


def test_what_report_raises_passes_through_even_if_it_looks_like_a_users_mistake(tmp_path: Path) -> None:
    def train(run: RunSpec, directory: Path, *, report, **_) -> RunResult:
        report(Progress(1, 2, 0.5, {}))
        raise AssertionError("goes on after a stop")

    def stop(progress: Progress) -> None:
        raise ValueError("storage is gone")

    with pytest.raises(ValueError, match="storage is gone"):
        run_trial(spec(), tmp_path, stop, train=train)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate"), OSError(errno.ENOMEM, "x"),
              RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)  # fmt: skip
def test_memory_that_ran_out_is_recognized(error: Exception) -> None:
    assert out_of_memory(error)


def test_memory_that_ran_out_is_answered_by_smaller_micro_batches_from_the_last_checkpoint(tmp_path: Path) -> None:
    seen = []

    def train(run: RunSpec, directory: Path, *, resume_from: Path | None, **_) -> RunResult:
        seen.append((run.training.batch_size, run.training.gradient_accumulation, resume_from))
        if len(seen) == 1:
            write_folder(directory / "checkpoint-5", lambda folder: (folder / "weights").write_text("w") and None)
            raise MemoryError("no more")
        return finished(directory)

    result, _ = run_trial(spec(batch_size=8, gradient_accumulation=2), tmp_path, lambda p: None, train=train)
    assert seen == [(8, 2, None), (4, 4, tmp_path / "checkpoint-5")]
    assert result.key == spec(batch_size=8, gradient_accumulation=2).key
    assert result.notes == ["micro-batches of 4 x 4 after memory ran out", "a note"]


def test_memory_that_runs_out_twice_fails_the_trial(tmp_path: Path) -> None:
    tries = []

    def train(run: RunSpec, directory: Path, **_) -> RunResult:
        tries.append(run.training.batch_size)
        raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB")

    result, _ = run_trial(spec(batch_size=8), tmp_path, lambda p: None, train=train)
    assert tries == [8, 4]
    assert (result.status, result.retryable) == ("failed", False)
    assert "out of memory" in (result.error or "")
    assert "micro-batches of 4 x 2" in (result.error or "")


def test_a_batch_that_cannot_be_halved_fails_at_once(tmp_path: Path) -> None:
    result, _ = run_trial(spec(batch_size=1), tmp_path, lambda p: None, train=raising(MemoryError("no more")))
    assert (result.status, result.error) == ("failed", "out of memory: no more")


def raising(error: Exception):
    def train(run: RunSpec, directory: Path, **_) -> RunResult:
        raise error

    return train

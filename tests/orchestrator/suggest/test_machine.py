"""The batch is what fits into memory; a training gets its share of the cores, or a GPU."""

from __future__ import annotations

import pytest

from craft.spec import RunSpec
from craft.trainer.counting import estimated_memory
from craft.trainer.probe import Speed
from orchestrator.plan.gpu_shares import CONTEXT_BYTES, Gpu
from orchestrator.suggest.machine import PROCESS_BYTES, measure_machine

GIB = 2**30


@pytest.fixture
def run(tiny_bert: str) -> RunSpec:
    training = {"batch_size": 16, "max_length": 128}
    return RunSpec.model_validate({"model": tiny_bert, "task": "toy/sentiment", "method": "lora", "training": training})


def machine_of(monkeypatch: pytest.MonkeyPatch, memory: int, cores: int = 8, gpus: int = 0) -> None:
    monkeypatch.setattr("orchestrator.suggest.machine.usable_gpus", lambda: [Gpu("a GPU", memory)] * gpus)
    monkeypatch.setattr("orchestrator.suggest.machine.cores", lambda: cores)
    monkeypatch.setattr("craft.trainer.probe.device_memory", lambda: memory)
    monkeypatch.setattr("craft.trainer.probe.measure_speed", lambda run, seconds, threads: Speed(1.0, 0.1, 0.01))


@pytest.mark.parametrize(
    ("memory", "cores", "gpus", "expected"),
    [
        (64 * GIB, 2, 0, (1, 0, 2)),
        (64 * GIB, 32, 0, (4, 0, 8)),  # no more than eight at once
        (3 * GIB, 8, 0, (4, 0, 2)),  # memory for two
        (64 * GIB, 8, 2, (4, 1, 2)),  # a GPU each
    ],
)
def test_the_share_of_a_training(
    memory: int, cores: int, gpus: int, expected: tuple[int, int, int], run: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_of(monkeypatch, memory, cores, gpus)
    machine = measure_machine(run)
    assert (machine.cpu, machine.gpu, machine.at_once) == expected
    assert machine.training.precision == ("bf16-mixed" if gpus else "float32")
    assert machine.batch == 16


def test_less_memory_gives_smaller_batches_of_the_same_step(run: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_of(monkeypatch, estimated_memory(run) // 2 + PROCESS_BYTES)
    machine = measure_machine(run)
    assert machine.training.batch_size < 16
    assert machine.batch == 16


def test_a_model_that_is_too_large_is_refused(run: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_of(monkeypatch, CONTEXT_BYTES + 1000, gpus=1)
    with pytest.raises(ValueError, match="a step of one row needs more than the"):
        measure_machine(run)

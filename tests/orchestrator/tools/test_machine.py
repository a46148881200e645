"""Samples of the machine: of the trial's own GPUs, and about as many however long the trial takes."""

from __future__ import annotations

import socket
from itertools import pairwise

import pytest

from orchestrator.tools.machine import SAMPLES, SystemMetrics
from tests.craft.stand_in_nvml import Board, Machine


@pytest.mark.parametrize("total", [SAMPLES // 2, 10 * SAMPLES, 10 * SAMPLES + 7, 1000 * SAMPLES])
def test_a_trial_of_any_length_has_at_most_so_many_samples(monkeypatch: pytest.MonkeyPatch, total: int) -> None:
    machine = SystemMetrics(every_s=0.0)
    taken: list[int] = []
    monkeypatch.setattr(machine, "_sample", lambda step: (taken.append(step), setattr(machine, "_last_step", step)))
    for step in range(1, total + 1):
        machine.step(step, total)
    assert min(total, SAMPLES // 2) <= len(taken) <= SAMPLES
    gaps = [after - before for before, after in pairwise(taken)]
    assert max(gaps) == min(gaps), "they are spread evenly"


def test_short_steps_are_not_sampled_more_often_than_the_clock_allows() -> None:
    machine = SystemMetrics(every_s=3600.0)
    for step in range(1, 100):
        machine.step(step, 99)
    assert [sample["step"] for sample in machine.take(99)] == [99]


def test_samples_are_of_the_trials_own_gpus_and_say_which(monkeypatch: pytest.MonkeyPatch) -> None:
    boards = {"GPU-a": Board(99, 70 * 10**9), "GPU-b": Board(25, 6 * 10**9)}
    Machine(boards, ["b"]).install(monkeypatch)
    machine = SystemMetrics()
    assert machine.gpus is None
    (sample,) = machine.take(1)
    assert {name: value for name, value in sample.items() if "gpu" in name} == {
        "system/gpu_0_utilization_percentage": 25.0,
        "system/gpu_0_memory_usage_megabytes": 6000.0,
    }
    assert machine.gpus == f"{socket.gethostname()}: GPU-b"


def test_a_trial_without_a_gpu_has_no_gpu_samples() -> None:
    machine = SystemMetrics()
    (sample,) = machine.take(1)
    assert sample["system/process_memory_megabytes"] > 10
    assert not [name for name in sample if "gpu" in name]
    assert machine.gpus is None

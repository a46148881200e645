"""A process reads its own boards, whatever else is in the machine and in whatever order NVML has it."""

from __future__ import annotations

import sys

import pytest
import torch

from craft.nvml import gpu_of, gpus_in_use
from craft.trainer.meter import _energy
from tests.craft.stand_in_nvml import Board, Machine


def test_only_visible_gpus_are_read_each_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    boards = {f"GPU-{name}": Board(utilization=10 * number, used=number * 10**6) for number, name in enumerate("abcd")}
    machine = Machine(boards, ["d", "b"]).install(monkeypatch)
    gpus = gpus_in_use()
    assert [gpu.uuid for gpu in gpus] == ["GPU-d", "GPU-b"]
    assert [gpu.utilization() for gpu in gpus] == [30.0, 10.0]
    assert [gpu.memory_used() for gpu in gpus] == [3e6, 1e6]
    assert set(machine.asked) == {"GPU-d", "GPU-b"}


def test_a_part_of_a_gpu_is_found_though_it_does_not_tell_its_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine({"MIG-7": Board(used=5, millijoules=None)}, ["7"]).install(monkeypatch)
    (gpu,) = gpus_in_use()
    assert (gpu.uuid, gpu.memory_used(), gpu.energy()) == ("MIG-7", 5.0, None)


def test_energy_is_that_of_the_board_that_trains_in_joules(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine({"GPU-a": Board(millijoules=9_000), "GPU-b": Board(millijoules=2_500)}, ["b", "a"]).install(monkeypatch)
    assert _energy() == 2.5


def test_a_gpu_that_nvml_does_not_know_gives_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine({"GPU-a": Board()}, ["elsewhere"]).install(monkeypatch)
    assert gpus_in_use() == []
    assert _energy() is None


def test_without_the_library_there_is_no_reading_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine({"GPU-a": Board()}, ["a"]).install(monkeypatch)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_of(0) is None


def test_a_process_that_has_not_computed_on_a_gpu_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({"GPU-a": Board()}, ["a"]).install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert gpus_in_use() == [] == machine.asked

"""What is measured on a GPU: samples of the run's own boards by UUID, energy, peak memory, step times by the GPU's events."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from craft.nvml import gpu_of, gpus_in_use
from craft.spec import RunSpec
from craft.trainer.training import train_run
from tests.craft.stand_in_nvml import Board, Machine

Figure = Callable[[str], None]


@pytest.fixture
def boards(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """UUIDs of the machine's boards, by nvidia-smi; without a GPU a stand-in's."""
    if device.type == "cpu":
        Machine({"GPU-0-a": Board(7, 2**30, 5000), "GPU-1-b": Board()}, ["0-a"]).install(monkeypatch)
        return ["GPU-0-a", "GPU-1-b"]
    pytest.importorskip("pynvml", reason="no pynvml: pip install -e '.[gpu]'")
    torch.zeros(1, device=device)
    told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return [line.rsplit("UUID: ", 1)[1].rstrip(")") for line in told.splitlines() if "UUID: " in line]


def test_samples_are_of_the_boards_that_torch_computes_on(boards: list[str], figure: Figure) -> None:
    used = gpus_in_use()
    assert len(used) == torch.cuda.device_count()
    assert {gpu.uuid for gpu in used} <= set(boards)
    assert len({gpu.uuid for gpu in used}) == len(used)
    load, memory = used[0].utilization(), used[0].memory_used()
    figure(f"{used[0].uuid}: {load} %, {(memory or 0) / 2**20:.0f} MiB of {len(boards)} boards")
    assert load is not None
    assert memory is not None
    assert memory > 0


def test_energy(boards: list[str], figure: Figure) -> None:
    gpu = gpu_of(0)
    assert gpu is not None
    joules = gpu.energy()
    if joules is None:
        pytest.skip("this board does not tell its energy")
    figure(f"{joules:.0f} J since the driver was loaded, {len(boards)} boards")
    assert joules > 0


def test_costs_of_a_run(device: torch.device, tiny_spec: Callable[..., RunSpec], tmp_path: Path, figure: Figure) -> None:
    counts = train_run(tiny_spec(), tmp_path).counts
    assert counts.step_seconds is not None
    assert counts.peak_memory_bytes is not None
    energy = "no energy" if counts.energy_joules is None else f"{counts.energy_joules:.0f} J"
    figure(f"step {1e3 * counts.step_seconds:.1f} ms, peak {counts.peak_memory_bytes / 2**20:.0f} MiB, {energy}")
    assert 0 < counts.step_seconds < 60
    if device.type == "cuda":
        # The tiny model and its step; a whole process would be hundreds of MiB.
        assert counts.peak_memory_bytes < torch.cuda.get_device_properties(0).total_memory

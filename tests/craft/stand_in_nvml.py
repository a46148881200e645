"""A machine with GPUs for tests: what torch and NVML answer there, in the orders in which each of them numbers the GPUs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest
import torch


class NVMLError(Exception):
    """NVML's own kind of error."""


NVMLError.__module__ = "pynvml"


@dataclass
class Board:
    """One GPU: what NVML reads from it; None where it refuses."""

    utilization: int = 0
    used: int = 0
    millijoules: int | None = 0


@dataclass
class Machine:
    """`boards` by UUID as NVML writes it; `visible` are UUIDs as torch writes them, in torch's order."""

    boards: dict[str, Board]
    visible: list[str]
    asked: list[str] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> Machine:
        def handle(uuid: str) -> Board:
            self.asked.append(uuid)
            if uuid not in self.boards:
                raise NVMLError("Not Found")
            return self.boards[uuid]

        def energy(board: Board) -> int:
            if board.millijoules is None:
                raise NVMLError("Not Supported")
            return board.millijoules

        nvml = ModuleType("pynvml")
        functions = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": handle,
            "nvmlDeviceGetUtilizationRates": lambda board: SimpleNamespace(gpu=board.utilization),
            "nvmlDeviceGetMemoryInfo": lambda board: SimpleNamespace(used=board.used),
            "nvmlDeviceGetTotalEnergyConsumption": energy,
        }
        for name, function in functions.items():
            setattr(nvml, name, function)
        patch.setitem(sys.modules, "pynvml", nvml)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "device_count", lambda: len(self.visible))
        patch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=self.visible[device]))
        return self

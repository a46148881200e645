"""The GPUs of this process, asked through NVIDIA's management library (NVML): load, memory in use, energy.

    cuda:0  --torch-->  UUID  --NVML-->  handle  -->  readings of that board

CUDA numbers the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in an order of its own; NVML numbers all GPUs of the machine.
Only the UUID means the same in both. Every reading is of the whole board, whoever computes on it. Without the library, the
driver or the permission to read there is no reading, and no error.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PREFIXES = ("GPU-", "MIG-")
"""NVML writes a whole GPU's UUID with the first, that of a part of one with the second; torch writes neither."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. `uuid` as NVML writes it, such as `GPU-8f2c…`; `handle` is NVML's."""

    uuid: str
    handle: Any

    def utilization(self) -> float | None:
        """Per cent of the time in which it computed, over the last moments."""
        with _no_answer():
            return float(_pynvml().nvmlDeviceGetUtilizationRates(self.handle).gpu)
        return None

    def memory_used(self) -> float | None:
        """Bytes in use on the board."""
        with _no_answer():
            return float(_pynvml().nvmlDeviceGetMemoryInfo(self.handle).used)
        return None

    def energy(self) -> float | None:
        """Joules since the driver was loaded."""
        with _no_answer():
            return _pynvml().nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1000
        return None


def gpu_of(device: int) -> Gpu | None:
    """The GPU that torch calls `cuda:device`; None where NVML does not know it. It initialises CUDA."""
    import torch

    try:
        uuid = str(torch.cuda.get_device_properties(device).uuid)
    except (AttributeError, RuntimeError, AssertionError):  # another vendor's torch; a driver that does not answer
        return None
    with _no_answer():
        _pynvml().nvmlInit()
        for prefix in PREFIXES:
            with _no_answer():
                return Gpu(prefix + uuid, _pynvml().nvmlDeviceGetHandleByUUID(prefix + uuid))
    return None


def gpus_in_use() -> list[Gpu]:
    """The GPUs that this process sees, once it computes on them; none before it has initialised CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return [gpu for gpu in map(gpu_of, range(torch.cuda.device_count())) if gpu is not None]


@contextlib.contextmanager
def _no_answer() -> Iterator[None]:
    """Passes over NVML's own errors, and those of a machine without it."""
    try:
        yield
    except (ImportError, OSError, AttributeError):
        return
    except Exception as error:
        # NVML's errors are classes of its own that derive from Exception alone.
        if not type(error).__module__.startswith("pynvml"):
            raise


def _pynvml() -> Any:
    import pynvml

    return pynvml

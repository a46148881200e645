"""Load of the machine while a trial trains, under the names by which MLflow shows system metrics.

    system/cpu_utilization_percentage         of the whole machine's cores
    system/system_memory_usage_percentage     of the whole machine's memory
    system/process_cpu_percentage             the trial's own; 100 is one core
    system/process_memory_megabytes           the trial's own resident memory
    system/gpu_N_utilization_percentage, system/gpu_N_memory_usage_megabytes     if NVIDIA's library is installed

MLflow's own monitor would open a connection to the store from every worker. These samples travel with the trial's evaluations
through the journal. They describe the machine and not the method: no result, front or comparison reads them.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import psutil

PREFIX = "system/"
EVERY_S = 10.0
MEGABYTE = 1e6


class SystemMetrics:
    """Samples at steps at least `every_s` seconds apart, and whenever `take` is called.

    A sample has its `step` and its `time` (seconds since 1970), by which MLflow draws it.
    """

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._process = psutil.Process()
        self._gpus = _gpus()
        self._samples: list[dict[str, float]] = []
        # psutil measures from the last call on, so the first call only starts the clock.
        psutil.cpu_percent()
        self._process.cpu_percent()
        self._last = time.monotonic()

    def step(self, step: int) -> None:
        """Call it after every optimizer step. It reads the clock and sometimes takes a sample (under a millisecond)."""
        if time.monotonic() - self._last >= self._every_s:
            self._sample(step)

    def take(self, step: int) -> list[dict[str, float]]:
        """The samples since the last call, and one of this moment."""
        if not self._samples or self._samples[-1]["step"] != step:
            self._sample(step)
        taken, self._samples = self._samples, []
        return taken

    def _sample(self, step: int) -> None:
        self._last = time.monotonic()
        sample = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_percentage": psutil.virtual_memory().percent,
            "process_cpu_percentage": self._process.cpu_percent(),
            "process_memory_megabytes": round(self._process.memory_info().rss / MEGABYTE, 1),
        }
        for number, gpu in enumerate(self._gpus):
            sample |= {f"gpu_{number}_{name}": value for name, value in _of_gpu(gpu).items()}
        self._samples.append(
            {"step": step, "time": time.time(), **{PREFIX + name: float(value) for name, value in sample.items()}}
        )


def _gpus() -> list[Any]:
    """Handles of this machine's NVIDIA GPUs; none if the library or the driver is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # the library has errors of its own, and a machine without GPUs is not an error
        return []


def _of_gpu(gpu: Any) -> dict[str, float]:
    import pynvml

    found = {}
    with contextlib.suppress(pynvml.NVMLError):  # a GPU may refuse one of the two readings
        found["utilization_percentage"] = pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu
    with contextlib.suppress(pynvml.NVMLError):
        found["memory_usage_megabytes"] = round(pynvml.nvmlDeviceGetMemoryInfo(gpu).used / MEGABYTE, 1)
    return found

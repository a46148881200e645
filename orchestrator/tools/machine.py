"""Load of the machine while a trial trains, under the names by which MLflow shows system metrics.

    system/cpu_utilization_percentage         of the whole machine's cores
    system/system_memory_usage_percentage     of the whole machine's memory
    system/process_cpu_percentage             the trial's own; 100 is one core
    system/process_memory_megabytes           the trial's own resident memory
    system/gpu_N_utilization_percentage, system/gpu_N_memory_usage_megabytes     of GPUs, if NVIDIA's library is installed

GPU N is the N-th of those that the trial's process sees; which board that is, `gpus`
says. Its figures are the whole board's. MLflow's own monitor would open a connection to the store from every worker, and it
samples all GPUs of the machine. These samples travel with the trial's evaluations through the journal. They describe the
machine and not the method: no result, front or comparison reads them.
"""

from __future__ import annotations

import socket
import time

import psutil

from craft.nvml import Gpu, gpus_in_use

PREFIX = "system/"
EVERY_S = 10.0
SAMPLES = 200
"""A trial has about so many, however long it takes, and one for each evaluation: thousands of trials share one store."""
MEGABYTE = 1e6


class SystemMetrics:
    """Samples at steps, at most one in `every_s` seconds and SAMPLES over the trial, and whenever `take` is called.

    A sample has its `step` and its `time` (seconds since 1970), by which MLflow draws it.
    """

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._process = psutil.Process()
        self._gpus: list[Gpu] = []
        self._samples: list[dict[str, float]] = []
        # psutil measures from the last call on, so the first call only starts the clock.
        psutil.cpu_percent()
        self._process.cpu_percent()
        self._last = time.monotonic()
        self._last_step = 0

    @property
    def gpus(self) -> str | None:
        """Which GPUs the samples are of: `HOST: UUID, UUID`, in the order of their numbers; None without, and before any."""
        return f"{socket.gethostname()}: {', '.join(gpu.uuid for gpu in self._gpus)}" if self._gpus else None

    def step(self, step: int, total_steps: int) -> None:
        """Call it after every optimizer step. It reads the clock and sometimes takes a sample (under a millisecond)."""
        spaced = (step - self._last_step) * SAMPLES >= total_steps
        if spaced and time.monotonic() - self._last >= self._every_s:
            self._sample(step)

    def take(self, step: int) -> list[dict[str, float]]:
        """The samples since the last call, and one of this moment."""
        if not self._samples or self._samples[-1]["step"] != step:
            self._sample(step)
        taken, self._samples = self._samples, []
        return taken

    def _sample(self, step: int) -> None:
        self._last, self._last_step = time.monotonic(), step
        sample: dict[str, float | None] = {
            "cpu_utilization_percentage": psutil.cpu_percent(),
            "system_memory_usage_percentage": psutil.virtual_memory().percent,
            "process_cpu_percentage": self._process.cpu_percent(),
            "process_memory_megabytes": round(self._process.memory_info().rss / MEGABYTE, 1),
        }
        self._gpus = self._gpus or gpus_in_use()
        for number, gpu in enumerate(self._gpus):
            used = gpu.memory_used()
            sample[f"gpu_{number}_utilization_percentage"] = gpu.utilization()
            sample[f"gpu_{number}_memory_usage_megabytes"] = None if used is None else round(used / MEGABYTE, 1)
        known = {PREFIX + name: float(value) for name, value in sample.items() if value is not None}
        self._samples.append({"step": step, "time": time.time(), **known})

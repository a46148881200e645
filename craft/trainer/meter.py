"""Measures a run: step times, tokens, peak memory, and what its time goes into.

    step seconds      median wall time of an optimizer step with all its micro-batches; tokens a second: those without padding
    peak memory       on CUDA `max_memory_allocated`; on a CPU the peak resident set, Python and its libraries included, while
                      the run lasts, or since the process started where the system cannot reset that mark (other than Linux)

A GPU works behind the host, so a step is timed by two events in its queue, read late: reading one makes the host wait.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from craft.processes import current

_KEPT_STEP_TIMES = 1000


class Meter:
    """Watches one run from before its model is loaded.

    `phases`: seconds of this process by what the run did: load, data, head, decompose, train, score, cut, store.
    """

    def __init__(self) -> None:
        self.step_times: deque[float] = deque(maxlen=_KEPT_STEP_TIMES)
        self.seconds = 0.0
        self.tokens = 0
        self._now: Callable[[], Any] = _event if torch.cuda.is_available() else time.perf_counter
        self._unread: list[tuple[Any, Any]] = []
        self._peak_before = 0
        self.phases: dict[str, float] = {}
        self._phase, self._since = "load", time.perf_counter()
        self.restart()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts the time inside as that of `name`, and not of the phase around it."""
        around = self._turn_to(name)
        try:
            yield
        finally:
            self._turn_to(around)

    def _turn_to(self, name: str) -> str:
        earlier_phase, clock_seconds = self._phase, time.perf_counter()
        self.phases[earlier_phase] = self.phases.get(earlier_phase, 0.0) + clock_seconds - self._since
        self._phase, self._since = name, clock_seconds
        return earlier_phase

    def restart(self) -> None:
        """Counts peak memory from here. What a run did before is shared with other runs."""
        gc.collect()
        self._resettable = True
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            return
        try:
            # What an earlier run in this process freed goes back to the system first, or it would be counted again.
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        except (OSError, AttributeError):
            self._resettable = False

    @contextmanager
    def step(self, tokens: int) -> Iterator[None]:
        """Times a step, and counts `tokens` as its tokens that are no padding."""
        began = self._now()
        yield
        self._unread.append((began, self._now()))
        self.tokens += tokens

    def read(self) -> None:
        """Takes over the times of the steps since the last reading; waits until the GPU has done them."""
        unread, self._unread = self._unread, []
        for began, ended in unread:
            if not isinstance(ended, float):
                ended.synchronize()
            self.step_times.append(ended - began if isinstance(ended, float) else began.elapsed_time(ended) / 1000)
            self.seconds += self.step_times[-1]

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps, so that a resumed run's costs are those of the whole run."""
        self.read()
        times = {"step_times": list(self.step_times), "seconds": self.seconds, "tokens": self.tokens}
        return times | {"peak_memory_bytes": self._peak()}

    def restore(self, state: dict[str, Any]) -> None:
        self.step_times.extend(state["step_times"])
        self.seconds, self.tokens = state["seconds"], state["tokens"]
        self._peak_before = state["peak_memory_bytes"]

    def costs(self) -> dict[str, float]:
        """Returns the fields of `Counts` that are measured here; the peak is that of the process with the highest."""
        self.read()
        costs: dict[str, float] = {"peak_memory_bytes": max(current().gather(self._peak()))}
        if self.step_times:
            costs["step_seconds"] = statistics.median(self.step_times)
            costs["tokens_per_second"] = self.tokens / self.seconds
        return costs

    def _peak(self) -> int:
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
        elif self._resettable:
            lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
            peak = int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024
        else:
            import resource

            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return max(peak, self._peak_before)


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event

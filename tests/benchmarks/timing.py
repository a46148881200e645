"""Shared by the benchmarks: times several ways to do one thing alternately, and gives ratios with their spread.

A machine's speed drifts; a ratio of two times taken one after the other drifts far less. So every round runs each contender
once, in an order that turns with the rounds, and a contender's ratio is the median over rounds of its time over the
baseline's time in the same round. A GPU is timed by two events in its own queue.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """One contender: seconds (median), and its ratio to the baseline (median, quartiles)."""

    name: str
    seconds: float
    ratio: float
    low: float
    high: float


def alternate(
    contenders: Mapping[str, Callable[[], object]], baseline: str, *, rounds: int, warmup: int = 2, device: str = "cpu"
) -> list[Timing]:
    """Runs each contender `warmup` + `rounds` times, alternately, on `cpu` or `cuda`."""
    names = list(contenders)
    for _ in range(warmup):
        for name in names:
            contenders[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                seconds[name].append(timed(contenders[name], device))
    finally:
        if collecting:
            gc.enable()
    return [_timing(name, seconds[name], seconds[baseline]) for name in names]


def _timing(name: str, own: list[float], base: list[float]) -> Timing:
    ratios = sorted(a / b for a, b in zip(own, base, strict=True))
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return Timing(name, statistics.median(own), statistics.median(ratios), low, high)


def timed(run: Callable[[], object], device: str) -> float:
    """Seconds that `run` takes; on a GPU between two events, with nothing else in its queue."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def table(title: str, timings: list[Timing], goals: Mapping[str, float]) -> str:
    """Rows of a text table: contender, milliseconds, ratio, its quartiles, and whether a goal is met."""
    width = max(len(timing.name) for timing in timings)
    lines = [title, f"{'':{width}}  {'ms':>9}  {'ratio':>6}  quartiles"]
    for timing in timings:
        goal = goals.get(timing.name)
        verdict = "" if goal is None else f"  goal {goal:.2f} {'met' if round(timing.ratio, 2) <= goal else 'MISSED'}"
        figures = f"{timing.seconds * 1e3:9.2f}  {timing.ratio:6.3f}  {timing.low:.3f} - {timing.high:.3f}"
        lines.append(f"{timing.name:{width}}  {figures}{verdict}")
    return "\n".join(lines)


def machine(device: str = "cpu") -> str:
    """The device that computes, in words, as tables must name it."""
    if device == "cuda":
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    model = platform.processor() or platform.machine()
    cpuinfo = "/proc/cpuinfo"
    if os.path.exists(cpuinfo):  # noqa: PTH110
        with open(cpuinfo) as lines:  # noqa: PTH123
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {torch.get_num_threads()} of {os.cpu_count()} cores, torch {torch.__version__}"


def arguments(
    description: str | None, models: Sequence[str], *, on_gpu: Sequence[str] = (), **flags: str
) -> argparse.Namespace:
    """Which models, on which device, how quick, how many threads; a CPU measures those in `on_gpu` only if they are named."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=models, default=None)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the contenders compute; cpu if absent")
    parser.add_argument("--quick", action="store_true", help="few rounds: shows that it runs, says little")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--threads", type=int, default=None)
    for flag, text in flags.items():
        parser.add_argument(f"--{flag}", nargs="+", default=None, help=text)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device cuda: torch {torch.__version__} finds no CUDA GPU here. Leave --device out to measure the CPU")
    options.models = options.models or [name for name in models if options.device == "cuda" or name not in on_gpu]
    if options.threads:
        torch.set_num_threads(options.threads)
    return options

"""The plan's lines on GPUs: trials at once, the memory of each, what stays idle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from craft.words import format_bytes, list_some, plural
from orchestrator.plan.plan import Plan
from orchestrator.plan.ways import CONTEXT_BYTES, choose_way
from orchestrator.sweepfile.resources import Resources, times

NAMED = 3
MACHINE_GPUS = 8.0
"""GPUs of a machine, where no machine is known."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch can use: its name and its memory in bytes."""

    name: str
    bytes: int


def usable_gpus() -> list[Gpu]:
    """Returns the GPUs that torch can use in this process, without taking their memory. None if torch or the driver cannot."""
    import torch

    try:
        return [describe_gpu(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    except Exception:  # torch and the driver have many kinds of error: GPUs that cannot be asked cannot be used
        return []


def describe_gpu(index: int) -> Gpu:
    """Returns the GPU that torch calls `cuda:index`."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    return Gpu(properties.name, properties.total_memory)


class GpuLine(NamedTuple):
    """What is said of GPUs, and whether a person should look at it."""

    text: str
    doubt: bool


def gpu_lines(plan: Plan, gpus: Sequence[Gpu], counts: Sequence[float] = ()) -> list[GpuLine]:
    """Returns a line for each share of GPUs that trials ask for: trials at once, the memory of each, GPUs that stay idle.

    Args:
        gpus: those whose memory is known.
        counts: the number of GPUs of each machine; `gpus` are one machine if none is given.
    """
    card, machines = min(gpus, key=lambda gpu: gpu.bytes, default=None), counts or [len(gpus) or MACHINE_GPUS]
    if not any(share.gpu for share in plan.sweep.shares):
        return [idle_line(sum(machines))] if gpus else []
    shares = [share for share in plan.sweep.shares if share.count > 1 or (share.gpu and gpus)]
    return [_line_of(plan, share, card, machines) for share in shares]


def idle_line(gpus: float) -> GpuLine:
    """Returns the line where no trial asks for a GPU and there are some."""
    return GpuLine(f"{gpus:g} {plural(int(gpus), 'GPU')}, all idle: trials ask for none (resources.gpu is 0)", True)


def _line_of(plan: Plan, share: Resources, card: Gpu | None, machines: Sequence[float]) -> GpuLine:
    needs, how = _needs(plan, share, card.bytes if card else None)
    most = max(needs.values(), default=0)
    parts = [f"{share.words()}: about {format_bytes(most)} each"] if most else [share.words()]
    parts += [f"the processes of a trial share its work: {how}"] if how else []
    lacking = []
    if share.gpu and card is not None:
        room = min(share.gpu, 1.0) * card.bytes
        parts[0] += f" of {format_bytes(room)} ({card.name})"
        lacking = [f"{label} ({format_bytes(need)})" for label, need in needs.items() if need + CONTEXT_BYTES > room]
        fit = times(card.bytes, most + CONTEXT_BYTES)
        least = f"resources.gpu {math.floor(1000 / fit) / 1000:g}" if fit and share.gpu <= 1 else "more GPUs or less memory"
        parts += [f"memory may run out for {list_some(lacking, NAMED)}, which need {least}"] if lacking else []
    slots = sum(times(count, share.gpu) for count in machines) if share.gpu else 0
    idle = sum(machines) - slots * share.gpu
    if share.gpu:
        parts.append(f"{slots} at once on {' + '.join(f'{count:g}' for count in machines)} GPUs, {idle:g} idle")
    return GpuLine("; ".join(parts), bool(lacking) or (share.gpu > 1 and idle > 0))


def _needs(plan: Plan, share: Resources, gpu_bytes: int | None) -> tuple[dict[str, int], str]:
    """Returns the bytes that each process of a share's trials takes, by label, and how several processes share a trial."""
    if share.count == 1:
        known = [(row, row.estimated_memory_bytes) for row in plan.trained or plan.probed]
        mine = [(row, need) for row, need in known if plan.sweep.resources_for(plan.sweep.block_at(row.path)) == share]
        return {row.label: need for row, need in mine if need is not None}, ""
    every = [trial for trial in (*plan.trials, *plan.examples) if trial.run.cut_from is None and trial.resources == share]
    firsts = {trial.configuration: trial for trial in reversed(every)}
    choices = {trial.label: choose_way(trial.run, share, gpu_bytes) for trial in reversed(firsts.values())}
    ways = sorted({f"{choice.way} ({choice.reason})" for choice in choices.values()})
    return {label: choice.need for label, choice in choices.items()}, ", ".join(ways)

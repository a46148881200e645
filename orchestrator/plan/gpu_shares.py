"""The plan's lines on GPUs: that no trial uses them, or that trials need more memory than their share has.

Each line names the key to change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from craft.words import format_bytes, list_some
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import PlannedTrial
from orchestrator.plan.ways import CONTEXT_BYTES, Choice, choose_way
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


def idle_lines(shares: Sequence[Resources], gpus: float) -> list[str]:
    """Returns advice if there are GPUs and no trial asks for one."""
    if not gpus or any(share.gpu for share in shares):
        return []
    stand = "1 GPU stands" if gpus == 1 else f"{gpus:g} GPUs stand"
    return [f"{stand} idle: trials ask for none (resources.gpu is 0). Set resources.gpu: 1, or a share such as 0.5 or 0.25"]


def together_lines(plan: Plan, gpus: Sequence[Gpu], machines: Sequence[float] = (MACHINE_GPUS,)) -> list[str]:
    """Returns how trials with several processes share their work, and what such trials leave idle.

    Args:
        gpus: those whose memory is known.
        machines: the numbers of GPUs of machines.
    """
    memory = min((gpu.bytes for gpu in gpus), default=None)
    firsts = {trial.configuration: trial for trial in reversed([*plan.trials, *plan.examples]) if trial.run.cut_from is None}
    groups: dict[tuple[int, str], list[tuple[Choice, PlannedTrial]]] = {}
    for trial in reversed(firsts.values()):
        if trial.resources.count > 1:
            choice = choose_way(trial.run, trial.resources, memory)
            groups.setdefault((trial.resources.count, choice.way), []).append((choice, trial))
    lines = []
    for (count, way), chosen in groups.items():
        labels = list_some([trial.label for _, trial in chosen], NAMED)
        most, trial = max(chosen, key=lambda pair: pair[0].need)
        lacks = memory is not None and trial.resources.gpu and most.need + CONTEXT_BYTES > memory
        room = f", more than a GPU's {format_bytes(memory or 0)}: memory may run out; give more GPUs" if lacks else ""
        each = f"about {format_bytes(most.need)} each"
        lines.append(f"{count} processes train each trial of {labels}: {way}, {each} ({most.reason}){room}")
    return [*lines, *_idle_beside(plan.sweep.shares, machines)]


def _idle_beside(shares: Sequence[Resources], machines: Sequence[float]) -> list[str]:
    """Returns how many GPUs of a machine no trial can have, because trials of several GPUs do not divide their number."""
    requested = [share.gpu for share in shares if share.gpu and not share.across_machines]
    if len(requested) != 1 or requested[0] <= 1:
        return []
    return [
        f"a machine of {gpus:g} GPUs leaves {gpus % requested[0]:g} idle with trials of {requested[0]:g}; "
        f"give a divisor of {gpus:g}"
        for gpus in sorted(set(machines))
        if gpus % requested[0]
    ]


def _part(fit: int) -> float:
    """Returns the share, to three digits, with which `fit` trials fit on a GPU."""
    return math.floor(1000 / fit) / 1000


def memory_lines(plan: Plan, gpus: Sequence[Gpu]) -> list[str]:
    """Returns warnings for configurations whose estimated memory is more than their share of the smallest of `gpus`."""
    if not gpus:
        return []
    gpu = min(gpus, key=lambda configuration: configuration.bytes)
    lacking: dict[float, list[tuple[int, Configuration]]] = {}
    for configuration in plan.trained or plan.probed:
        share, need = plan.sweep.resources_for(plan.sweep.block_at(configuration.path)), configuration.estimated_memory_bytes
        if 0 < share.gpu <= 1 and need is not None and need + CONTEXT_BYTES > share.gpu * gpu.bytes:
            lacking.setdefault(share.gpu, []).append((need, configuration))
    return [_lacking(share, needs, gpu, plan) for share, needs in lacking.items()]


def _lacking(share: float, needs: Sequence[tuple[int, Configuration]], gpu: Gpu, plan: Plan) -> str:
    """Returns a warning for all configurations of one share that may not fit into it."""
    labels = list_some([f"{configuration.label} ({format_bytes(need)})" for need, configuration in needs], NAMED)
    fit = times(gpu.bytes, max(need for need, _ in needs) + CONTEXT_BYTES)
    remedies = [f"give their blocks resources: {{gpu: {_part(fit):g}}}"] if fit else []
    remedies.append("lower batch_size (gradient_accumulation keeps the product)")
    trainings = [
        plan.sweep.training_for("", configuration.training, plan.sweep.block_at(configuration.path))
        for _, configuration in needs
    ]
    if not all(training.gradient_checkpointing for training in trainings):
        remedies.append("set gradient_checkpointing: true")
    if any(training.precision == "float32" for training in trainings):
        remedies.append("set precision: bf16-mixed")
    return (
        f"GPU memory may run out for {labels}: resources.gpu {share:g} of {gpu.name} is "
        f"{format_bytes(share * gpu.bytes)}, of which CUDA itself takes about {format_bytes(CONTEXT_BYTES)}. What helps: "
        f"{'; '.join(remedies)}"
    )

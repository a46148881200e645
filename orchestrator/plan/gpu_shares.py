"""What shares of GPUs come to: GPUs that stand idle, and trials that need more memory than their share has.

The plan, the doctor and the start of a session say the same lines about it. Each line names the key to change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from craft.words import format_bytes
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan
from orchestrator.sweepfile.resources import Resources, times, told
from orchestrator.tools.inventory import capacity

CONTEXT_BYTES = 2**29
"""GPU memory that a process takes beside its tensors: the driver's context and the kernels that it has loaded.

Between 290 and 400 MB were seen with kernels loaded lazily, which is the default since CUDA 12.2
(github.com/pytorch/pytorch: pull request 86509, issues 107667 and 109888). The rest is for cuBLAS and more kinds of kernels.
"""
NAMED = 3
NEGLIGIBLE = 0.02
"""The part of the GPUs that may stand idle without a word: three trials of 0.33 leave 0.01."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that torch can use: its name and its memory in bytes."""

    name: str
    bytes: int


def this_machine(shares: Sequence[Resources], gpus: Sequence[Gpu], cpus: int | None = None) -> dict[str, float]:
    """What this machine has, by Ray's names.

    Args:
        gpus: those that torch can use here.
        cpus: cores to use; all if not given.
    """
    has = capacity() | {"GPU": float(len(gpus))} | ({"CPU": float(cpus)} if cpus else {})
    # Only Ray knows a machine's custom resources; without it they count as enough.
    return has | {name: 1e9 for share in shares for name in share.asked if name not in has}


def idle_lines(shares: Sequence[Resources], machines: Sequence[Mapping[str, float]]) -> list[str]:
    """What to say of GPUs that no trial can use.

    Args:
        shares: the distinct resources that trials get.
        machines: what each machine has, by Ray's names. Their GPUs are such that torch can use them.
    """
    total = sum(machine.get("GPU", 0) for machine in machines)
    with_gpu = [share for share in shares if share.gpu]
    if not total:
        return []
    if not with_gpu:
        stand = "1 GPU stands" if total == 1 else f"{total:g} GPUs stand"
        return [f"{stand} idle: trials ask for none (resources.gpu is 0). Set resources.gpu: 1, or a share such as 0.5 or 0.25"]
    rests = [_rest(share.gpu) for share in with_gpu if 1 - times(1, share.gpu) * share.gpu >= NEGLIGIBLE]
    # Trials of another share may fill what one kind leaves free, so only the kind that uses most is told of.
    used, share = max(((_used(share, machines), share) for share in with_gpu), key=lambda found: found[0])
    if not used or total - used < NEGLIGIBLE * total:
        return rests
    return [*rests, f"{total - used:g} of {total:g} GPUs stand idle while as many trials run as fit: {_why(share, machines)}"]


def _rest(gpu: float) -> str:
    fit = times(1, gpu)
    trials = "1 trial fits" if fit == 1 else f"{fit} trials fit"
    return (
        f"resources.gpu {gpu:g}: {trials} on a GPU and {1 - fit * gpu:.2g} of it stands idle. Set {_part(fit):g}, by which as "
        "many fit"
    )


def _used(share: Resources, machines: Sequence[Mapping[str, float]]) -> float:
    """GPUs in use when as many processes as fit run on `machines`; what a share leaves of a GPU counts as used."""
    return sum(map(share.slots, machines)) / times(1, share.gpu)


def _why(share: Resources, machines: Sequence[Mapping[str, float]]) -> str:
    """Why trials of `share` do not use all GPUs."""
    short = [
        told(name, amount)
        for name, amount in share.asked.items()
        if any(share.fitting(name, machine) < share.fitting("GPU", machine) for machine in machines)
    ]
    return f"each trial asks for {', '.join(short)}, and a machine has too little for all its GPUs. Lower it in resources"


def _part(fit: int) -> float:
    """The share, to three digits, by which `fit` trials fit on a GPU."""
    return math.floor(1000 / fit) / 1000


def memory_lines(plan: Plan, gpus: Sequence[Gpu]) -> list[str]:
    """What to say of configurations whose estimated memory is more than their share of the smallest of `gpus`."""
    if not gpus:
        return []
    gpu = min(gpus, key=lambda one: one.bytes)
    lacking: dict[float, list[tuple[int, Configuration]]] = {}
    for one in plan.configurations or plan.probed:
        share, need = plan.sweep.resources_for(plan.sweep.block_at(one.path)), one.estimated_memory_bytes
        if share.gpu and need is not None and need + CONTEXT_BYTES > share.gpu * gpu.bytes:
            lacking.setdefault(share.gpu, []).append((need, one))
    return [_lacking(share, found, gpu, plan) for share, found in lacking.items()]


def _lacking(share: float, found: Sequence[tuple[int, Configuration]], gpu: Gpu, plan: Plan) -> str:
    """One line for all configurations of one share that may not fit into it."""
    labels = [f"{one.label} ({format_bytes(need)})" for need, one in found[:NAMED]]
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    fit = times(gpu.bytes, max(need for need, _ in found) + CONTEXT_BYTES)
    remedies = [f"give their blocks resources: {{gpu: {_part(fit):g}}}"] if fit else []
    remedies.append("lower batch_size (gradient_accumulation keeps the product)")
    trainings = [plan.sweep.training_for("", one.training, plan.sweep.block_at(one.path)) for _, one in found]
    if not all(training.gradient_checkpointing for training in trainings):
        remedies.append("set gradient_checkpointing: true")
    if any(training.precision == "float32" for training in trainings):
        remedies.append("set precision: bf16-mixed")
    return (
        f"GPU memory may run out for {', '.join(labels)}{more}: resources.gpu {share:g} of {gpu.name} is "
        f"{format_bytes(share * gpu.bytes)}, of which CUDA itself takes about {format_bytes(CONTEXT_BYTES)}. What helps: "
        f"{'; '.join(remedies)}"
    )

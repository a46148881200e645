"""The GPUs that torch can use, and how the processes of a trial share its work (`craft.processes`): chosen by the estimated
memory, or by the file.

replicate   the model fits on one GPU, or the trial has no GPUs
shard       it does not
layers      it does not, and the base is quantized
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from craft.methods import METHODS, shown_method
from craft.methods.by_peft_name import WHOLE
from craft.settings import TrainingSettings, Way
from craft.spec import RunSpec
from craft.words import format_bytes
from orchestrator.sweepfile.resources import Resources

CONTEXT_BYTES = 2**29
"""GPU memory that a process takes beside its tensors: the driver's context and the kernels that it has loaded.

Between 290 and 400 MB were seen with kernels loaded lazily, which is the default since CUDA 12.2
(github.com/pytorch/pytorch: pull request 86509, issues 107667 and 109888). The rest is for cuBLAS and more kinds of kernels.
"""


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
    import torch

    properties = torch.cuda.get_device_properties(index)
    return Gpu(properties.name, properties.total_memory)


class Choice(NamedTuple):
    """A way, the estimated bytes of each process under it, and the reason for it."""

    way: Way
    need: int
    reason: str


def choose_way(run: RunSpec, resources: Resources, gpu_bytes: int | None) -> Choice:
    from craft.trainer.counting import estimated_memory

    def need(way: Way) -> int:
        return estimated_memory(run, way=way, count=resources.count)

    if resources.parallel is not None:
        return Choice(resources.parallel, need(resources.parallel), "as resources.parallel says")
    way: Way = "layers" if METHODS[run.method].quantization else "shard"
    replicated = need("replicate")
    if not resources.gpu:
        return Choice("replicate", replicated, "without GPUs")
    if refused := refusal(run.method, run.parameters, way):
        return Choice("replicate", replicated, refused)
    if gpu_bytes is None:
        needed = (
            f"{way} where a GPU has less than {format_bytes(replicated + CONTEXT_BYTES)}, with {format_bytes(need(way))} each"
        )
        return Choice("replicate", replicated, needed)
    if replicated + CONTEXT_BYTES <= gpu_bytes:
        return Choice("replicate", replicated, "the model fits on one GPU")
    return Choice(way, need(way), f"{format_bytes(replicated)} do not fit on one GPU")


def fit_batches(run: RunSpec, free: float, **changes: Any) -> TrainingSettings | None:
    """Returns the training of a run, with `changes`, in the largest micro-batches whose estimated memory is at most `free`
    bytes; None if one example needs more."""
    from craft.trainer.counting import estimated_memory

    training: TrainingSettings | None = run.training.model_copy(update=changes)
    while training is not None and estimated_memory(run.model_copy(update={"training": training})) > free:
        training = training.in_smaller_batches()
    return training


def refusal(method: str, parameters: Mapping[str, Any], way: Way) -> str | None:
    """Returns why a method cannot be trained in a way, or None if it can."""
    quantized, name = METHODS[method].quantization, shown_method(method, parameters)
    if way == "shard" and quantized:
        return f"{name} has a quantized base, which cannot be put into parts; use parallel: layers or replicate"
    if way == "shard" and parameters.get("peft_type") in WHOLE:
        return (
            f"{name} computes with weights of the base outside of its layers, where they are in parts; use parallel: replicate"
        )
    if way == "layers" and not quantized:
        return f"{name} has no quantized base; use parallel: shard or replicate"
    return None

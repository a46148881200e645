"""A trial's part of a GPU's memory: the fence around it, and the few calls of torch's allocator that it needs.

    gpu: 0.25 of a GPU of 24 GiB   ->   6 GiB  =  0.5 GiB of CUDA context  +  5.5 GiB that torch's allocator may reserve

torch refuses what lies beyond the fence with its out-of-memory error, so a greedy trial runs out alone and its neighbours keep
what is theirs. No CUDA starts here before a fence is set.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from craft.results import Unavailable
from craft.words import format_bytes
from orchestrator.plan.gpu_shares import CONTEXT_BYTES

SEGMENTS = "expandable_segments:True"
"""Memory that one size of tensors has left is used for another size, where a fence leaves no room for both."""


class GpuMemory(Protocol):
    """The memory of this process's GPU."""

    def usable(self) -> bool:
        """Whether there is one that torch can use."""
        ...

    def total(self) -> int:
        """Bytes that the GPU has."""
        ...

    def peak(self) -> int:
        """The most bytes that the allocator has reserved since the trial began."""
        ...

    def limit(self, share: float) -> None:
        """Refuses the process more than this share of the GPU."""
        ...

    def empty(self) -> None:
        """Gives back what the allocator keeps and nobody uses, so that trials on the same GPU can have it."""
        ...


class CudaMemory:
    """`GpuMemory` by `torch.cuda`."""

    def usable(self) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and torch.cuda.is_available()

    def total(self) -> int:
        import torch

        return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory

    def peak(self) -> int:
        import torch

        return torch.cuda.max_memory_reserved()

    def limit(self, share: float) -> None:
        import torch

        torch.cuda.set_per_process_memory_fraction(share)

    def empty(self) -> None:
        import torch

        torch.cuda.empty_cache()


def choose_segments() -> None:
    """Sets the allocator's way with segments for this process, unless the user has set it. To be called before CUDA starts.

    torch 2.13 reads both names and prefers the first.
    """
    if not any(name in os.environ for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")):
        os.environ["PYTORCH_ALLOC_CONF"] = SEGMENTS


@contextmanager
def fenced(share: float, memory: GpuMemory) -> Iterator[None]:
    """Inside, this process has `share` of its GPU; after it, the allocator keeps nothing. A whole GPU needs no fence.

    Raises:
        Unavailable: the share is not even enough for a CUDA context.
    """
    if not (share and memory.usable()):
        yield
        return
    if share < 1:
        memory.limit(_within(share, memory.total()))
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):  # a GPU in a bad state refuses this too; what has happened is the news
            _let_go(memory)
        raise
    _let_go(memory)


def _let_go(memory: GpuMemory) -> None:
    gc.collect()
    memory.empty()
    memory.limit(1.0)


def _within(share: float, total: int) -> float:
    """What is left of a share for torch's allocator."""
    within = share - CONTEXT_BYTES / total
    if within <= 0:
        raise Unavailable(
            f"resources.gpu: {share:g} of this GPU is {format_bytes(share * total)}, and a CUDA context alone takes "
            f"{format_bytes(CONTEXT_BYTES)}: give the trial a larger share"
        )
    return within

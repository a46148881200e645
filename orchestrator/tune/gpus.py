"""The GPUs of the joined cluster, as a process of a trial would find them: asked by a task that holds a share of a GPU."""

from __future__ import annotations

from typing import Any

from orchestrator.plan.gpu_shares import idle_lines
from orchestrator.sweepfile.resources import Resources
from orchestrator.tune.cluster import Answer, ask_each, machines
from orchestrator.worker.gpus import require_gpu, usable_gpus

SLIVER = 0.001
"""A share so small that a task finds room beside whatever runs; Ray then makes one GPU visible to it."""
START_SECONDS = 30.0


def try_gpus(gpu: float, timeout_s: float = 120.0) -> list[Answer]:
    """Multiplies matrices in a task with the share `gpu` of a GPU on every machine that has GPUs by Ray's count.

    The content of an answer is the `Gpu` there; its error is torch's reason.
    """
    return ask_each(require_gpu, timeout_s=timeout_s, gpu=gpu)


def idle(shares: list[Resources]) -> list[str]:
    """What to say of GPUs that stand idle while a sweep runs on the joined cluster.

    Where no trial asks for a GPU, torch is asked first: GPUs that it cannot use are no loss.
    """
    there = machines()
    if not any(one.get("GPU") for one in there):
        return []
    if not any(share.gpu for share in shares):
        there = [answer.resources for answer in ask_each(_sees, timeout_s=START_SECONDS, gpu=SLIVER) if answer.content]
    return idle_lines(shares, there)


def _sees() -> Any:
    return usable_gpus()

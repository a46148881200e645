"""Memory that ran out, in words: the batches that were tried, the share that was not enough, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from craft.settings import TrainingSettings
from craft.words import format_bytes
from orchestrator.sweepfile.resources import Resources


def smaller_sizes(tried: Sequence[TrainingSettings]) -> list[str]:
    """A note for a result: the sizes that a trial ended with, where they are not those that it began with."""
    first, last = tried[0], tried[-1]
    sizes = []
    if last.batch_size != first.batch_size:
        sizes.append(f"micro-batches of {last.batch_size} x {last.gradient_accumulation}")
    if last.eval_batch_size != first.eval_batch_size:
        sizes.append(f"evaluation batches of {last.eval_batch_size}")
    return [f"{' and '.join(sizes)} after memory ran out"] if sizes else []


def no_room(what: str, tried: Sequence[TrainingSettings], resources: Resources) -> str:
    """Why a trial failed that does not fit even in the smallest batches.

    Args:
        what: the last error's own words.
        tried: all the sizes, in order.
    """
    named = what if what.startswith("out of memory") else f"out of memory: {what}"
    steps = ", ".join(dict.fromkeys(f"{one.batch_size} x {one.gradient_accumulation}" for one in tried))
    scored = ", ".join(dict.fromkeys(str(one.eval_batch_size) for one in tried))
    return f"{named} (tried micro-batches of {steps}; evaluation batches of {scored}). {_share(resources)}"


def _share(resources: Resources) -> str:
    import torch

    advice = "; --resume tries it again. In another sweep: training.gradient_checkpointing, or a smaller max_length"
    if resources.gpu and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        has = f"It has {resources.gpu:g} of a GPU of {format_bytes(total)} and reserved"
        has += f" {format_bytes(torch.cuda.max_memory_reserved())} of it"
        return f"{has}: give it more (resources.gpu, a larger GPU, method: qlora){advice}"
    if resources.memory is not None:
        return f"It has resources.memory: {format_bytes(resources.memory)}: give it more, or a larger machine{advice}"
    return f"It has no limit of its own: give it a larger machine, or fewer neighbours (resources.memory){advice}"

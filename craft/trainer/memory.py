"""Memory that runs out: one error for all the ways in which it does, and the smaller batches with which a run may fit.

    step        micro-batch b, b x accumulation = E  ->  the largest divisor of E that is at most b / 2, and so on down to 1
    evaluation  batch of n  ->  n / 2, and so on down to 1

A loss is summed over all of E and divided once (`craft.trainer.loop`), so a run changes by rounding only. No torch here.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from craft.settings import TrainingSettings

_WORDS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad alloc",
    "status alloc failed",  # cuBLAS and cuDNN
    "nvml success",  # torch's check while it words the error, on MIG slices and where NVML is closed
)


CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""What cuBLAS needs in the environment, before CUDA starts, to give equal bits to equal products."""


class OutOfMemory(MemoryError):
    """The host or the GPU has no memory left for this run; `shrink_batches` may make it fit.

    `scoring`: memory ran out in an evaluation, so smaller batches there are enough.
    """

    scoring = False


@contextmanager
def name_memory_errors(purpose: str, *, scoring: bool = False) -> Iterator[None]:
    """Turns the several ways to run out of memory into `OutOfMemory`."""
    try:
        yield
    except OutOfMemory:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        named = OutOfMemory(f"out of memory with {purpose}: {' '.join(str(error).split())[:200]}")
        named.scoring = scoring
        raise named from error


def is_out_of_memory(error: BaseException) -> bool:
    """Says whether host or GPU memory ran out, by the words of torch, Python or the system."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and any(word in str(error).lower().replace("_", " ") for word in _WORDS))
    )


def shrink_batches(training: TrainingSettings, *, scoring: bool = False) -> TrainingSettings | None:
    """Returns the same training in less memory, or None; only evaluations become smaller where `scoring` ran out of it."""
    evaluated = max(1, training.eval_batch_size // 2)
    if scoring:
        return training.model_copy(update={"eval_batch_size": evaluated}) if training.eval_batch_size > 1 else None
    if training.batch_size == 1:
        return None
    effective = training.batch_size * training.gradient_accumulation
    size = next(size for size in range(training.batch_size // 2, 0, -1) if effective % size == 0)
    batches = {"batch_size": size, "gradient_accumulation": effective // size, "eval_batch_size": evaluated}
    return training.model_copy(update=batches)

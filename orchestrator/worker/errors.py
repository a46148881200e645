"""Which errors of a trial are worth another attempt, and what to tell of them."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

from craft.results import RunFailed


def out_of_memory(error: BaseException) -> bool:
    """Whether host or GPU memory ran out, by torch's, Python's or the system's word for it."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and any(word in text for word in _MEMORY_WORDS))
    )


def is_transient(error: BaseException) -> bool:
    """Whether another try, perhaps on another machine, may succeed: input/output errors and a GPU in a bad state."""
    if isinstance(error, OSError):
        return not isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("CUDA error", "NCCL error", "cuDNN error"))


def reason(error: BaseException) -> str:
    """One line for the results' table: the message; for an unexpected kind of error also its kind and where it arose."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, RunFailed | ValueError | MemoryError):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"


_MEMORY_WORDS = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")

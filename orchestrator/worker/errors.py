"""Which errors of a trial are worth another attempt, and what to tell of them.

What is not the trial's fault is never its end: a machine without the model, the data, a device, a library or room on its disk
is answered by another attempt, and by `--resume` when the attempts are used up.
"""

from __future__ import annotations

import errno
import os
import traceback
from pathlib import Path

from safetensors import SafetensorError

from craft.results import Leave, RunFailed, RunPrevented, Unavailable
from craft.trainer.checkpoint import CheckpointCorrupt

OF_THE_MACHINE = (OSError, ImportError, RunPrevented, Unavailable, CheckpointCorrupt)
_MACHINES_WORDS = (
    "can't start new thread",
    *map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EAGAIN)),
    "CUDA error",
    "CUDA driver",
    "NVIDIA driver",
    "No CUDA GPUs",
    "NCCL error",
    "cuDNN error",
    "CUDNN_STATUS",
    "cusolver error",
)


def is_transient(error: BaseException) -> bool:
    """Whether another try, perhaps on another machine, may succeed: what a run needs is missing, or a GPU is in a bad state.

    Torch and safetensors tell what the system refuses (room, threads, files) by errors of their own.
    """
    if isinstance(error, OF_THE_MACHINE):
        return True
    return isinstance(error, RuntimeError | SafetensorError) and any(words in str(error) for words in _MACHINES_WORDS)


def reason(error: BaseException) -> str:
    """One line for the results' table: the message; for an unexpected kind of error also its kind and where it arose."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, RunFailed | Leave | ValueError | MemoryError):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"

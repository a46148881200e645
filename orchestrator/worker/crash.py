"""Why a trial failed, in one line for people, and whether another attempt may succeed.

A lost process is described from what the scheduler knows and what the process left on stderr. A fault of the machine (no model,
data, device, library or room on its disk) never ends a trial: another attempt, or `--resume`, runs it again.
"""

from __future__ import annotations

import errno
import os
import re
import traceback
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from craft.results import Leave, RunFailed, RunPrevented, Unavailable
from craft.trainer.checkpoint import CheckpointCorrupt

TAIL_BYTES = 1 << 16
LOST, TAKEN = "the machine it ran on was lost", "the machine it ran on was taken away"
OUT_OF_REACH = "the machine it ran on is out of reach"


def describe(error: BaseException | None, stderr: Path | None = None) -> str:
    """Returns the reason why a trial failed.

    Args:
        error: what the scheduler got: an error that was raised in the trial (then `cause` holds it), or word of a lost process.
        stderr: the file the process wrote its stderr to, where this machine has it.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return reason(cause)
    text = " ".join(str(error).split()) if error is not None else ""
    # Ray ends every word of a lost process with a list of what it might have been, memory among it.
    text = text.partition("Some common causes include")[0]
    tail = read_tail(stderr)
    hung = re.search(r"Timeout \((\d+):(\d+):(\d+)", tail)
    if hung:
        hours, minutes, seconds = map(int, hung.groups())
        limit = f"{hours * 60 + minutes} min" if hours or minutes else f"{seconds} s"
        return f"no step for {limit}, so its process was ended{_where(tail)}"
    if "node has died" in text or "node died" in text or "NODE_DIED" in text:
        return LOST
    if "preempt" in text.lower():
        return TAKEN
    if "temporarily unavailable" in text:
        return OUT_OF_REACH  # what a machine lost without grace looks like at first: nobody is left there to tell more
    if "memory" in text.lower() and "kill" in text.lower():
        return "killed by the system because memory ran out on its machine"
    last = [line.strip() for line in tail.splitlines() if line.strip()]
    said = f"; it last wrote: {last[-1][:200]}" if last else ""
    if "actor died" in text or "worker died" in text or "Worker unexpectedly exits" in text or "ActorDied" in text:
        return f"its process died{_exit(text)}{said}"
    return (text[:300] or "its process died") + said


def machine_lost(error: BaseException | None) -> bool:
    """Returns whether a trial failed because its machine is gone, which is no fault of the trial."""
    return describe(error) in (LOST, TAKEN, OUT_OF_REACH)


def _exit(text: str) -> str:
    code = re.search(r"exit code[ :]*(-?\d+)", text) or re.search(r"(SIG[A-Z]+)", text)
    return f" ({code[0]})" if code else " (killed, or crashed in native code)"


def _where(stack: str) -> str:
    """Returns where the process hangs: the innermost frame of the thread that was training, or of the first one."""
    threads = re.split(r"^(?:Current thread|Thread) ", stack, flags=re.MULTILINE)
    # Others only watch: the interpreter lists them first.
    training = next((thread for thread in threads if "run_job.py" in thread or "together.py" in thread), stack)
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', training)
    code_frames = [frame for frame in frames if "threading.py" not in frame[0]]
    if not code_frames:
        return ""
    path, line, function = code_frames[0]
    return f"; it was in {function} ({Path(path).name}:{line})"


def read_tail(path: Path | None) -> str:
    """Returns the end of a file of messages; empty if there is none."""
    if path is not None:
        with suppress(OSError), path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode(errors="replace")
    return ""


OF_THE_MACHINE = (OSError, ImportError, RunPrevented, Unavailable, CheckpointCorrupt)
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EAGAIN)
_LIBRARIES = r"(cuda|hip|nccl|rccl|nvml|nvrtc|triton|miopen|cudnn|(cu|hip|roc)(blas|fft|rand|solver|sparse)(lt)?)"
_MACHINES_WORDS = re.compile(
    "|".join(
        (
            "can't start new thread",
            *map(os.strerror, _REFUSED),
            rf"\b{_LIBRARIES}( \w+)?[ :]+error",
            rf"\b{_LIBRARIES}_(status|error)_",
            r"error from (cuda|hip)\w+",
            r"\b(cuda|hip|nvidia|nvml|amd)[\w-]*:? ?(driver|initialization)",
            r"\bno (cuda|hip)[ -]",
            "initialize nvml",
            "unable to find an engine",  # cuDNN, mostly short of memory
            r"linalg\.\w+: .*failed to converge",  # cuSOLVER, where the same matrix converges elsewhere
        )
    ),
    re.IGNORECASE,
)


def is_transient(error: BaseException) -> bool:
    """Returns whether another try, perhaps on another machine, may succeed: a run lacks something, or a GPU is in a bad state.

    Torch and safetensors tell what the system refuses (room, threads, files) by errors of their own.
    """
    if isinstance(error, OF_THE_MACHINE):
        return True
    return isinstance(error, RuntimeError | SafetensorError) and bool(_MACHINES_WORDS.search(str(error)))


def reason(error: BaseException) -> str:
    """Returns one line for the table: the message; for an unexpected kind of error also its kind and where it arose."""
    message = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, RunFailed | Leave | ValueError | MemoryError):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"

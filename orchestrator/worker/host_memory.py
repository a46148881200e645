"""`resources.memory`: a trial that takes more of the host than its share runs out of memory alone, at once.

    RLIMIT_DATA  =  what the process had  +  resources.memory  +  what it has mapped from files and not written

The system refuses what lies beyond the limit before any of it is touched, in torch's and numpy's C code too. A thread that
watches would come too late: while one large object is filled it does not run (docs/measurements/memory.md).

But the limit counts every private mapping that may be written, and safetensors maps files so. The pages of such a file cost
nothing: the system can drop them and read them again, and processes share them. So the limit grows with every file that
torch maps, and shrinks again when the file is let go, or its pages are written and are the process's own from then on.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.worker.settings import WorkerSettings

SETTLE_SECONDS = 30.0
"""How often mapped files are counted anew. It takes some 30 ms."""


class HostLimit:
    """The limit of this process while a trial runs. `settle` is to be called now and then."""

    def __init__(self, share: int) -> None:
        self._share = share
        self._before = resource.getrlimit(resource.RLIMIT_DATA)
        self._own = _data_bytes() - _unwritten_bytes()
        self._settled = 0.0
        self._set(_unwritten_bytes())

    def settle(self) -> None:
        """Counts anew what is mapped from files, if that was not done a moment ago."""
        if time.monotonic() - self._settled > SETTLE_SECONDS:
            self._settled = time.monotonic()
            self._set(_unwritten_bytes())

    def maps(self, nbytes: int) -> None:
        """Makes room for a file that is about to be mapped."""
        self._settled = 0.0
        self._set(_unwritten_bytes() + nbytes)

    def lift(self) -> None:
        """Gives the process the limit that it had before."""
        resource.setrlimit(resource.RLIMIT_DATA, self._before)

    def _set(self, mapped: int) -> None:
        limit, hard = self._own + self._share + mapped, self._before[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


@contextmanager
def memory_limit(settings: WorkerSettings) -> Iterator[Callable[[], None]]:
    """Inside, this process runs out of memory when it allocates more than its share; gives `HostLimit.settle`."""
    if settings.memory_bytes is None:
        yield lambda: None
        return
    # A worker of Ray has a gigabyte mapped before it does anything (stacks of many threads, torch), and a CUDA context maps
    # more: the trial's share begins above all that.
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    limit = HostLimit(settings.memory_bytes)
    from_file = torch.UntypedStorage.from_file

    def mapped(filename: str, shared: bool = False, nbytes: int = 0) -> Any:
        if not shared:
            limit.maps(nbytes)
        return from_file(filename, shared=shared, nbytes=nbytes)

    # torch's only way to map a file: safetensors and torch.load come through here, whatever is read and whoever reads it.
    torch.UntypedStorage.from_file = mapped  # type: ignore[method-assign]
    try:
        yield limit.settle
    finally:
        del torch.UntypedStorage.from_file  # what it inherits takes its place again
        limit.lift()


def _data_bytes() -> int:
    """What RLIMIT_DATA counts."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))


def _unwritten_bytes() -> int:
    with Path("/proc/self/smaps").open(encoding="utf-8") as lines:
        return unwritten_bytes(lines)


def unwritten_bytes(smaps: Iterable[str]) -> int:
    """Bytes that are mapped from files, private and writable, and that nobody has written, from the lines of `smaps`."""
    counted, total = False, 0
    for line in smaps:
        words = line.split(None, 5)
        if not words[0].endswith(":"):
            # 7f00-7f10 rw-p 00000000 fe:00 260386   /path; devices are memory of other kinds
            path = words[5].strip() if len(words) > 5 else ""
            counted = words[1][1] == "w" and words[1][3] == "p" and path.startswith("/") and not path.startswith("/dev/")
        elif counted and words[0] == "Size:":
            total += int(words[1]) * 1024
        elif counted and words[0] in ("Anonymous:", "Swap:"):
            total -= int(words[1]) * 1024
    return total

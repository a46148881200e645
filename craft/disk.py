"""Writing that a crash cannot tear: aside, flushed to the disk, then renamed into place.

Whoever reads sees what was there before, or all of what was written; never a part, and after a power cut neither a name without
its content.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path`, `.STEM.….tmp`, to write a file or a folder to; it takes the place of `path` if the block ends well.

    Raises:
        OSError: the disk does not take it; `path` is then as it was (a folder may be gone), and nothing is left beside it.
    """
    aside = path.with_name(f".{path.stem}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield aside
        for file in aside.rglob("*") if aside.is_dir() else (aside,):
            if file.is_file():
                flush(file)
        if aside.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # a rename replaces no folder that holds something
        aside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(aside) if aside.is_dir() else aside.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some file systems refuse to flush a folder; the rename itself has happened
        flush(path.parent)


def flush(path: Path) -> None:
    """Returns when the disk has the file's content, or the folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

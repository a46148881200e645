"""SHA-256 of large files, each read once: what was computed is kept on this machine by the file's size, inode and times.

    <cache>/digests/<hash of path, size, inode, times>        the SHA-256, in hexadecimal

A file that is written in place changes its times, so its old digest is never found again.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from pathlib import Path

from craft.disk import default_root, replacing
from craft.watch import watch

SMALL = 2**20
"""Files of fewer bytes are read again by each process."""
RECENT_SECONDS = 5.0
"""A file may change twice within the steps of its disk's clock, so the digest of one that has just changed is not kept."""


def file_digests(files: Iterable[Path]) -> list[str]:
    """Returns the SHA-256, in hexadecimal, of each file; several are read at the same time."""
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(file_digest, file) for file in files]
        while wait(futures, timeout=1.0).not_done:
            watch()
        return [future.result() for future in futures]


def file_digest(file: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    stamp = _stamp(file)
    if time.time() - max(stamp[-2:]) / 1e9 < RECENT_SECONDS:
        return _read(file)
    return _remembered(str(file.absolute()), stamp)


@lru_cache(maxsize=1024)
def _remembered(path: str, stamp: tuple[int, ...]) -> str:
    place = default_root() / "digests" / hashlib.sha256(repr((path, stamp)).encode()).hexdigest()[:40]
    if place.is_file():
        return place.read_text(encoding="ascii")
    digest = _read(Path(path))
    if stamp[0] >= SMALL and _stamp(Path(path)) == stamp:
        with contextlib.suppress(OSError):  # it is read again next time
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as aside:
                aside.write_text(digest, encoding="ascii")
    return digest


def _stamp(file: Path) -> tuple[int, ...]:
    status = file.stat()
    return status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _read(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

"""Files on a disk: writing that a crash cannot leave half done, locks, and the SHA-256 of large files, each read once.

What is written goes to a name aside, is flushed to the disk, then renamed into place. A reader sees either the old content or
the whole new content. After a power cut, no name lacks its content.

    <cache>/digests/<hash of path, size, inode, times>        the SHA-256, in hexadecimal

A file that is written in place changes its times, so its old digest is never found again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from pathlib import Path

from filelock import FileLock, Timeout

from craft.watch import watch

_REFUSALS = ("inline_container", "os error", "No space left on device")
"""Words by which torch and safetensors, whose errors are no OSError, say that the disk refuses to be written."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a name next to `path` to write a file or folder to; it replaces `path` if the block succeeds. Raises OSError if the
    disk refuses it; `path` is then as it was, and nothing is left next to it."""
    aside = path.parent / f".{path.stem}.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        try:
            yield aside
        except Exception as error:
            if isinstance(error, OSError) or not any(sign in str(error) for sign in _REFUSALS):
                raise
            raise OSError(errno.EIO, f"the disk, perhaps full, took only a part ({str(error).strip()})", str(path)) from error
        for file in aside.rglob("*") if aside.is_dir() else (aside,):
            if file.is_file():
                flush(file)
        if path.is_dir() and not aside.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file", str(path))
        if not (path.is_dir() and _exchange(aside, path)):
            aside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(aside) if aside.is_dir() else aside.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some file systems refuse to flush a folder; the rename itself has happened
        flush(path.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Exchanges two names, since a rename cannot replace a folder that has content; returns False where `second` is removed
    instead: on systems other than Linux a folder is absent for a moment."""
    with contextlib.suppress(AttributeError, OSError):  # no such function in the C library
        at_fdcwd, exchange = -100, 2
        if ctypes.CDLL(None).renameat2(at_fdcwd, os.fsencode(first), at_fdcwd, os.fsencode(second), exchange) == 0:
            return True
    shutil.rmtree(second)
    return False


@contextlib.contextmanager
def locked(path: Path, patience_s: float) -> Iterator[None]:
    """Holds the lock file `path`. While another process holds it, it waits and calls `watch`; OSError after `patience_s`."""
    lock, began = FileLock(path), time.monotonic()
    while not lock.is_locked:
        try:
            lock.acquire(timeout=1.0)
        except Timeout as error:
            if time.monotonic() - began > patience_s:
                raise OSError(str(error)) from error
            watch()
    try:
        yield
    finally:
        lock.release()


def flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def default_root() -> Path:
    """Returns `CRAFT_CACHE_DIR`, or `~/.cache/craft`."""
    folder = os.environ.get("CRAFT_CACHE_DIR")
    return Path(folder).expanduser().absolute() if folder else Path.home() / ".cache" / "craft"


SMALL = 2**20
"""Files of fewer bytes are read again by each process."""
RECENT_SECONDS = 5.0
"""A file may change twice within the steps of its disk's clock, so the digest of one that has just changed is not kept."""


def file_digests(files: Iterable[Path]) -> list[str]:
    """Returns the SHA-256 of each file; several are read at the same time."""
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(file_digest, file) for file in files]
        while wait(futures, timeout=1.0).not_done:
            watch()
        return [future.result() for future in futures]


def file_digest(file: Path) -> str:
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

"""Shelf: the folder of stored decompositions, what all kinds of them share: its place, bound, order of use, and locks.

::

    <root>/factors/<key>.safetensors     one decomposition
    <root>/factors/<key>.lock            held by the one process that decomposes

The folder's size is bounded for all kinds together: the least recently used files are removed first.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from craft.factors.factor_file import SUFFIX, CorruptFactors, unfinished
from craft.factors.ticking import acquire
from craft.words import parse_bytes

DEFAULT_MAX_BYTES = 20 * 1000**3
LOCK_PATIENCE = 1800.0  # seconds; a host that vanished with the lock must not stop the others for ever
_TURN = 1.0  # seconds between two looks at a lock, and two ticks
_FORGOTTEN = 86400.0  # seconds after which the writer of an unfinished file counts as dead

T = TypeVar("T")
Origin = TypeVar("Origin")


class StoreWarning(UserWarning):
    """The store could not keep a decomposition; what it returns is right nevertheless."""


class Shelf:
    """The folder.

    Attributes:
        root: the cache folder; `CRAFT_CACHE_DIR`, or `~/.cache/craft`, if absent.
        max_bytes: bound on all stored files; `CRAFT_CACHE_MAX_BYTES`, or 20 GB, if absent.
    """

    def __init__(self, root: Path | str | None = None, max_bytes: int | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.max_bytes = max_bytes if max_bytes is not None else max_bytes_from_environment()

    @property
    def folder(self) -> Path:
        return self.root / "factors"

    def path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def files(self) -> list[Path]:
        """Stored decompositions, the least recently used first."""
        found = [(path, stat_of(path)) for path in self.folder.glob(f"*{SUFFIX}")]
        return [path for path, stat in sorted(found, key=lambda pair: pair[1].st_mtime if pair[1] else 0.0) if stat]

    def stored(self, key: str, origin: Origin, read: Callable[[Path], tuple[T, Origin]], warn: bool = False) -> T | None:
        """What `read` finds in the file of `key`; None if there is no file, or not a whole one of this origin.

        Args:
            warn: of a file that is damaged or of another origin; the caller makes it anew.
        """
        path = self.path(key)
        try:
            content, found = read(path)
            if found != origin:
                raise CorruptFactors(f"{path} holds the decomposition of other weights than its name says")
        except FileNotFoundError:
            return None
        except CorruptFactors as error:
            if warn:
                warnings.warn(f"{error}. It is made anew.", StoreWarning, stacklevel=5)
            return None
        return content

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Holds the lock of `key`; ticks while another process holds it.

        Raises:
            OSError: the folder cannot be written, or the lock was not free within `LOCK_PATIENCE`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path(key).with_suffix(".lock"))
        acquire(lock, LOCK_PATIENCE, _TURN)
        try:
            for torn in unfinished(self.folder, key):  # this process holds the lock, so their writers are dead
                torn.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def used(self, key: str) -> None:
        """Marks a file as used now."""
        with contextlib.suppress(OSError):
            os.utime(self.path(key))

    def shrink(self, spare: Path) -> None:
        """Removes the least recently used files until all files together are within the bound."""
        with contextlib.suppress(OSError):
            sizes = {path: stat.st_size for path in self.files() if (stat := stat_of(path))}
            excess = sum(sizes.values()) - self.max_bytes
            for path, size in sizes.items():
                if excess <= 0:
                    break
                if path != spare:
                    path.unlink(missing_ok=True)  # processes that have it open can still read it
                    excess -= size
            for torn in unfinished(self.folder):
                if (stat := stat_of(torn)) and time.time() - stat.st_mtime > _FORGOTTEN:
                    torn.unlink(missing_ok=True)

    def warn_unkept(self, what: str, reason: str) -> None:
        warnings.warn(
            f"{what} cannot be kept in {self.folder}: {reason}. They are right, but every process will compute them again. "
            "Set CRAFT_CACHE_DIR to a folder that can be written, or CRAFT_CACHE_MAX_BYTES to a larger bound.",
            StoreWarning,
            stacklevel=5,
        )


def default_root() -> Path:
    """`CRAFT_CACHE_DIR`, or `~/.cache/craft`."""
    given = os.environ.get("CRAFT_CACHE_DIR")
    return Path(given).expanduser().absolute() if given else Path.home() / ".cache" / "craft"


def max_bytes_from_environment() -> int:
    """`CRAFT_CACHE_MAX_BYTES`, or 20 GB. Raises ValueError where it is no amount."""
    text = os.environ.get("CRAFT_CACHE_MAX_BYTES", "").strip()
    if not text:
        return DEFAULT_MAX_BYTES
    amount = parse_bytes(text)
    if amount is None:
        raise ValueError(f"CRAFT_CACHE_MAX_BYTES is {text!r}: give a number of bytes, or one with a unit, such as 20GB")
    return amount


def stat_of(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None

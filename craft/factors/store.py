"""Store: tensors that are expensive to make, made once and shared by all trials, processes and hosts that see the folder.

    <root>/factors/<SHA-256 of the origin>.safetensors      the tensors and their origin
    <root>/factors/<SHA-256 of the origin>.lock             held by the one process that makes them

An origin is plain data that says what the tensors are made of, such as the SHA-256 of weights (`hash_weights`) and the name of
the algorithm. So a file is either right for a request, or not found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from craft.disk import default_root, locked, replacing
from craft.processes import gather_parts
from craft.watch import watch
from craft.words import parse_bytes

Tensors = Mapping[str, Tensor]

DEFAULT_MAX_BYTES = 20 * 1000**3
LOCK_PATIENCE = 1800.0  # seconds; a host that vanished with the lock must not stop every process for ever
_FORGOTTEN = 86400.0  # seconds after which the writer of an unfinished file counts as dead


class StoreWarning(UserWarning):
    """The store could not keep a file; what it returns is right."""


class Store:
    """Files of tensors, addressed by their origin; the least recently used go where all are more than `max_bytes`.

    Folder and bound are those of the environment (CRAFT_CACHE_DIR, CRAFT_CACHE_MAX_BYTES) unless given.
    """

    def __init__(self, root: Path | str | None = None, max_bytes: int | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.max_bytes = max_bytes if max_bytes is not None else _max_bytes()
        self.makes = 0

    @property
    def folder(self) -> Path:
        return self.root / "factors"

    def files(self) -> list[Path]:
        """Lists the files, the least recently used first."""
        with contextlib.suppress(OSError):
            used = {path: stat.st_mtime for path in self.folder.glob("*.safetensors") if (stat := _stat(path))}
            return sorted(used, key=used.__getitem__)
        return []

    def get(
        self,
        label: str,
        origin: Mapping[str, Any],
        make: Callable[[Tensors | None], Tensors],
        covers: Callable[[Tensors], bool] = bool,
    ) -> Tensors:
        """Returns the tensors of this origin, on the CPU, made at most once for all processes that share the folder.

        `make` gets the stored ones if those do not cover the request.
        """
        source = json.dumps(origin, sort_keys=True)
        path = self.folder / f"{hashlib.sha256(source.encode()).hexdigest()[:40]}.safetensors"
        # Outside inference mode, so that the tensors may take part in autograd.
        with torch.inference_mode(False), torch.no_grad():
            held = _read(path, source)
            if held is None or not covers(held):
                with self._locked(label, path) as is_locked:
                    held = _read(path, source, warn=True) if is_locked else None
                    if held is None or not covers(held):  # no other process was first
                        self.makes += 1
                        held = {name: tensor.detach().cpu().contiguous() for name, tensor in make(held).items()}
                        watch()
                        if is_locked:
                            self._write(label, path, source, held)
        with contextlib.suppress(OSError):
            os.utime(path)
        return held

    @contextlib.contextmanager
    def _locked(self, label: str, path: Path) -> Iterator[bool]:
        """Gives whether the lock of `path` is held: not where the folder cannot be written."""
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(path.with_suffix(".lock"), LOCK_PATIENCE))
                for torn in self.unfinished(path.stem):  # this process holds the lock, so their writers are dead
                    torn.unlink(missing_ok=True)
            except OSError as error:
                self._warn(label, str(error))
                yield False
            else:
                yield True

    def _write(self, label: str, path: Path, source: str, tensors: Tensors) -> None:
        size = sum(tensor.nbytes for tensor in tensors.values())
        if size > self.max_bytes:
            self._warn(label, f"its {size:,} bytes are more than the store may hold ({self.max_bytes:,})")
            return
        try:
            with replacing(path) as aside:
                save_file(dict(tensors), aside, metadata={"origin": source})
        except OSError as error:
            self._warn(label, str(error))
        with contextlib.suppress(OSError):  # the least recently used files go, until all together are within the bound
            file_bytes = {file: stat.st_size for file in self.files() if (stat := _stat(file))}
            excess = sum(file_bytes.values()) - self.max_bytes
            for file, size in file_bytes.items():
                if excess > 0 and file != path:
                    file.unlink(missing_ok=True)  # processes that have it open can still read it
                    excess -= size
            for torn in self.unfinished():
                if (stat := _stat(torn)) and time.time() - stat.st_mtime > _FORGOTTEN:
                    torn.unlink(missing_ok=True)

    def unfinished(self, key: str = "*") -> list[Path]:
        """Lists files that writers of `key` are writing now, or were writing when they were killed."""
        return list(self.folder.glob(f".{key}.*.tmp"))

    def _warn(self, label: str, reason: str) -> None:
        warnings.warn(
            f"{label} cannot be kept in {self.folder}: {reason}. The numbers are right, but every process will compute them "
            "again. Set CRAFT_CACHE_DIR to a folder that can be written, or CRAFT_CACHE_MAX_BYTES to a larger bound.",
            StoreWarning,
            stacklevel=6,
        )


def _max_bytes() -> int:
    text = os.environ.get("CRAFT_CACHE_MAX_BYTES", "").strip()
    amount = parse_bytes(text) if text else DEFAULT_MAX_BYTES
    if amount is None:
        raise ValueError(f"CRAFT_CACHE_MAX_BYTES is {text!r}: give a number of bytes, or one with a unit, such as 20GB")
    return amount


def _read(path: Path, source: str, warn: bool = False) -> Tensors | None:
    """Reads the tensors at `path` if they have this origin, mapped into memory (a write into them stays private)."""
    reason = "it has another origin than its name says"
    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("origin") == source:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (safe_open is no mapping)
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        reason = str(error)
    if warn:
        warnings.warn(f"{path} is not a stored file: {reason}. It is made again.", StoreWarning, stacklevel=6)
    return None


def hash_weights(weights: Sequence[Tensor]) -> str:
    """Returns the SHA-256 of dtype, shape and raw bytes of all weights, in order: a change in place is noticed."""
    gathered = [gather_parts(weight) for weight in weights]  # before any thread, for all processes have one order
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return hashlib.sha256(b"".join(pool.map(_digest, gathered))).hexdigest()


def _digest(weight: Tensor) -> bytes:
    digest = hashlib.sha256(f"{weight.dtype} {tuple(weight.shape)}".encode())
    digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None

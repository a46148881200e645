"""SvdStore: the singular vectors of single weights, made once, then shared as `FactorStore` shares decompositions of stacks.

    W = U S Vᵀ        kept: the r largest and the r smallest of S with their columns of U and V, float32

PiSSA and LoRA-XS begin at the largest, MiLoRA at the smallest. One SVD gives all of them, and it costs seconds to minutes where
the vectors that are kept cost megabytes, so a file holds both ends: `LEAST` components of each, or as many as were asked.
A larger rank decomposes anew. All components of LLaMA3-8B's projections would be 25 GB.

What is stored is what `torch.linalg.svd` gave, bit for bit and with its strides, on the kind of device that the key names.
A method that takes it from here computes the numbers that it would have computed from its own SVD.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from craft.factors.factor_file import CorruptFactors, key_of, read_tensors, write_tensors
from craft.factors.hashing import hash_weights
from craft.factors.shelf import Shelf, default_root, max_bytes_from_environment
from craft.factors.ticking import tick

ALGORITHM = "linalg-svd-1"
"""Names the call and the layout; part of every stored SVD's address. Raise it when results change."""
LEAST = 64
"""Components kept of each end at least, so that most sweeps over ranks decompose once."""

End = Literal["largest", "smallest"]
Components = tuple[Tensor, Tensor, Tensor]
"""U (d_out, r), S (r,) falling, Vᵀ (r, d_in)."""


@dataclass(frozen=True)
class SvdOrigin:
    """What was decomposed.

    Attributes:
        shape: (d_out, d_in).
        dtype: of the weight; the SVD is of its float32 values.
        weights: SHA-256 of its bytes, see `hash_weights`.
        device: `cpu` or `cuda`: their libraries differ in signs and rounding.
        algorithm: `ALGORITHM` of the code that wrote the file.
    """

    shape: tuple[int, int]
    dtype: str
    weights: str
    device: str
    algorithm: str = ALGORITHM

    @cached_property
    def key(self) -> str:
        """40 hexadecimal digits: the file's name without its suffix."""
        return key_of(json.dumps(asdict(self), sort_keys=True))


class SvdStore(Shelf):
    """Singular vectors on disk, addressed by the weight's content.

    Attributes:
        decompositions: how many this object has computed.
    """

    def __init__(self, root: Path | str | None = None, max_bytes: int | None = None) -> None:
        super().__init__(root, max_bytes)
        self.decompositions = 0

    def get(self, weight: Tensor, rank: int, end: End) -> Components:
        """The `rank` largest or smallest components of a weight (d_out, d_in), decomposed at most once for all processes.

        Returns:
            New tensors, float32, on the weight's device.

        Raises:
            ValueError: the rank is above the weight's smaller side.
        """
        if not 1 <= rank <= min(weight.shape):
            sides = " x ".join(map(str, weight.shape))
            raise ValueError(f"a weight of {sides} has {min(weight.shape)} singular values; got rank {rank}")
        d_out, d_in = weight.shape
        origin = SvdOrigin((d_out, d_in), str(weight.dtype), hash_weights([weight]), weight.device.type)
        with torch.no_grad():
            kept = self._read(origin, rank) or self._make(origin, rank, weight)
            self.used(origin.key)
            first = rank if end == "largest" else -rank
            chosen = slice(None, first) if first > 0 else slice(first, None)
            u, s, vt = kept[f"{end}.u"].T[:, chosen], kept[f"{end}.s"][chosen], kept[f"{end}.v"].T[chosen]
            return u.to(weight.device, copy=True), s.to(weight.device, copy=True), vt.to(weight.device, copy=True)

    def _make(self, origin: SvdOrigin, rank: int, weight: Tensor) -> dict[str, Tensor]:
        """Decomposes and stores, unless another process has done so before this one gets the lock."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self.locked(origin.key))
            except OSError as error:
                self.warn_unkept("singular vectors", str(error))
                return self._decompose(rank, weight)
            held = self._read(origin, rank, warn=True)
            if held is not None:
                return held
            made = self._decompose(rank, weight)
            self._keep(origin, made)
        return made

    def _decompose(self, rank: int, weight: Tensor) -> dict[str, Tensor]:
        """Both ends of the spectrum, in the memory order of LAPACK's results: U and Vᵀ by columns."""
        self.decompositions += 1
        u, s, vt = torch.linalg.svd(weight.detach().to(torch.float32), full_matrices=False)
        tick()
        many = min(max(rank, LEAST), len(s))
        ends = {"largest": slice(None, many), "smallest": slice(len(s) - many, None)}
        parts = {f"{end}.{name}": part for end, chosen in ends.items() for name, part in _parts(u, s, vt, chosen).items()}
        return {name: part.to("cpu", copy=True, memory_format=torch.contiguous_format) for name, part in parts.items()}

    def _keep(self, origin: SvdOrigin, made: dict[str, Tensor]) -> None:
        size = sum(part.nbytes for part in made.values())
        if size > self.max_bytes:
            self.warn_unkept("singular vectors", f"they are larger ({size:,} bytes) than the store ({self.max_bytes:,} bytes)")
            return
        try:
            write_tensors(self.path(origin.key), made, {"svd": json.dumps(asdict(origin), sort_keys=True)})
        except OSError as error:
            self.warn_unkept("singular vectors", str(error))
        self.shrink(spare=self.path(origin.key))

    def _read(self, origin: SvdOrigin, rank: int, warn: bool = False) -> dict[str, Tensor] | None:
        """What is stored, if it holds `rank` components of each end."""
        tensors = self.stored(origin.key, origin, read_svd, warn)
        return tensors if tensors is not None and len(tensors["largest.s"]) >= rank else None


def read_svd(path: Path) -> tuple[dict[str, Tensor], SvdOrigin]:
    """The tensors `largest.u` (r, d_out), `largest.s` (r,), `largest.v` (d_in, r), the same of `smallest`, and their origin.

    Raises:
        CorruptFactors: the file is damaged or changed, or is no stored SVD.
        FileNotFoundError: there is no such file.
    """
    tensors, facts = read_tensors(path)
    origin = _origin(path, facts)
    if tensors.keys() != {f"{end}.{name}" for end in ("largest", "smallest") for name in "usv"}:
        raise CorruptFactors(f"{path} is not a stored SVD")
    return tensors, origin


def read_svd_origin(path: Path) -> tuple[SvdOrigin, int]:
    """What the file says it holds, and how many components of each end; only its head is read.

    Raises:
        CorruptFactors: the header is damaged, or is not that of a stored SVD.
        FileNotFoundError: there is no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            (components,) = file.get_slice("largest.s").get_shape()
            return _origin(path, file.metadata() or {}), components
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as error:
        raise CorruptFactors(f"{path} is not a stored SVD: {error}") from error


def default_svd_store() -> SvdStore:
    """The process's store of the folder and bound that the environment names now."""
    return _store_of(default_root(), max_bytes_from_environment())


@lru_cache(maxsize=8)
def _store_of(root: Path, max_bytes: int) -> SvdStore:
    return SvdStore(root, max_bytes)


def _parts(u: Tensor, s: Tensor, vt: Tensor, chosen: slice) -> dict[str, Tensor]:
    return {"u": u[:, chosen].T, "s": s[chosen], "v": vt[chosen].T}


def _origin(path: Path, facts: dict[str, str]) -> SvdOrigin:
    try:
        fields = json.loads(facts["svd"])
        d_out, d_in = fields["shape"]
        return SvdOrigin(**{**fields, "shape": (d_out, d_in)})
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFactors(f"{path} is not a stored SVD: {error}") from error

"""FactorStore: every decomposition made once, then shared by all trials, processes and hosts that see the folder.

::

    weights --SHA-256--> key --> <root>/factors/<key>.safetensors     largest ranks asked so far; smaller ones are slices
                                 <root>/factors/<key>.lock            held by the one process that decomposes

The key is made of the weights' own bytes, the projection's name and the algorithm's version, so that a file is either right
for these weights or not found. Every call reads the weights whole (`hash_weights`), at about a gigabyte a second the first
time, so a change in place is noticed. A file is written aside and renamed; a process checks its checksum when it first opens
it, and makes a wrong file anew. The folder's size is bounded: the least recently used files are removed first.

If the folder cannot be written, this process computes the factors, keeps them in memory and warns.

`python -m craft.store list | verify | clear` looks after the folder.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from craft.factors.factor_file import FactorOrigin, read_factors, write_factors
from craft.factors.hashing import hash_weights
from craft.factors.hosvd import Ranks, TuckerFactors, hosvd, resolve_ranks, stack_shape
from craft.factors.shelf import Shelf, default_root, max_bytes_from_environment
from craft.factors.ticking import tick

_REMEMBERED = 32


class FactorStore(Shelf):
    """Decompositions on disk, addressed by the weights' content.

    Attributes:
        root: the cache folder; `CRAFT_CACHE_DIR`, or `~/.cache/craft`, if absent.
        max_bytes: bound on all stored files; `CRAFT_CACHE_MAX_BYTES`, or 20 GB, if absent.
        decompositions: how many this object has computed.
    """

    def __init__(self, root: Path | str | None = None, max_bytes: int | None = None) -> None:
        super().__init__(root, max_bytes)
        self.decompositions = 0
        self._open: OrderedDict[str, tuple[TuckerFactors, tuple[int, ...]]] = OrderedDict()
        self._guard = threading.Lock()

    def __reduce__(self) -> tuple[type[FactorStore], tuple[Path, int]]:
        return FactorStore, (self.root, self.max_bytes)

    def get(
        self,
        weights: Sequence[Tensor],
        ranks: Sequence[int | str],
        *,
        name: str,
        device: torch.device | str | None = None,
        weights_hash: str | None = None,
    ) -> TuckerFactors:
        """The factors of a stack at `ranks`, decomposed at most once for all processes that share the folder.

        Args:
            weights: L tensors of (d_out, d_in).
            ranks: (r1, r2, r3) or 'all'; leading slices are returned if larger ranks are stored.
            name: the projection (part of the address and what `list` shows).
            device: where to decompose if nothing is stored; the weights' own device if absent.
            weights_hash: `hash_weights(weights)`, from a caller that has just computed it.

        Returns:
            Factors on the CPU, mapped from the file. They are shared by all callers in this process: copy before writing.

        Raises:
            ValueError: as `craft.factors.hosvd.hosvd` does.
        """
        shape = stack_shape(weights)
        wanted = resolve_ranks(ranks, shape, name=f"projection {name!r}")
        origin = FactorOrigin(name, shape, str(weights[0].dtype), weights_hash or hash_weights(weights))
        # Outside inference mode, so that versions are counted and the factors may take part in autograd.
        with self._guard, torch.inference_mode(False), torch.no_grad():
            held = self._remembered(origin.key)
            if held is None or not _covers(held, wanted):
                held = self._read(origin)
                if held is None or not _covers(held, wanted):
                    held = self._make(origin, wanted, weights, device)
                self._remember(origin.key, held)
        self.used(origin.key)
        return held.slice(wanted)

    def _make(
        self, origin: FactorOrigin, wanted: Ranks, weights: Sequence[Tensor], device: torch.device | str | None
    ) -> TuckerFactors:
        """Decomposes and stores, unless another process has done so before this one gets the lock."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self.locked(origin.key))
            except OSError as error:
                return self._decompose(origin, wanted, weights, device, unkept=error)
            held = self._read(origin, warn=True)
            if held is not None and _covers(held, wanted):
                return held
            ranks = wanted if held is None else _larger(held.ranks, wanted)
            made = self._decompose(origin, ranks, weights, device)
            self._keep(made, origin)
        return self._read(origin) or made

    def _decompose(
        self,
        origin: FactorOrigin,
        ranks: Ranks,
        weights: Sequence[Tensor],
        device: torch.device | str | None,
        unkept: BaseException | None = None,
    ) -> TuckerFactors:
        if unkept is not None:
            self._warn_unkept(origin, str(unkept))
        self.decompositions += 1
        made = hosvd(weights, ranks, device=device).to("cpu")
        tick()
        return made

    def _keep(self, factors: TuckerFactors, origin: FactorOrigin) -> None:
        size = sum(part.nbytes for part in (factors.core, factors.u1, factors.u2, factors.u3, *factors.singular_values))
        if size > self.max_bytes:
            self._warn_unkept(origin, f"it is larger ({size:,} bytes) than the store may be ({self.max_bytes:,} bytes)")
            return
        try:
            write_factors(self.path(origin.key), factors, origin)
        except OSError as error:
            self._warn_unkept(origin, str(error))
        self.shrink(spare=self.path(origin.key))

    def _read(self, origin: FactorOrigin, warn: bool = False) -> TuckerFactors | None:
        return self.stored(origin.key, origin, read_factors, warn)

    def _remembered(self, key: str) -> TuckerFactors | None:
        if key not in self._open:
            return None
        factors, versions = self._open[key]
        if versions != _versions(factors):  # a caller wrote into the shared tensors; the file still has the right ones
            del self._open[key]
            return None
        self._open.move_to_end(key)
        return factors

    def _remember(self, key: str, factors: TuckerFactors) -> None:
        self._open[key] = (factors, _versions(factors))
        while len(self._open) > _REMEMBERED:
            self._open.popitem(last=False)

    def _warn_unkept(self, origin: FactorOrigin, reason: str) -> None:
        self.warn_unkept(f"the factors of projection {origin.projection!r}", reason)


def default_store() -> FactorStore:
    """The process's store of the folder and bound that the environment names now."""
    return _store_of(default_root(), max_bytes_from_environment())


@lru_cache(maxsize=8)
def _store_of(root: Path, max_bytes: int) -> FactorStore:
    return FactorStore(root, max_bytes)


def _covers(factors: TuckerFactors, ranks: Ranks) -> bool:
    return all(held >= wanted for held, wanted in zip(factors.ranks, ranks, strict=True))


def _larger(one: Ranks, other: Ranks) -> Ranks:
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


def _versions(factors: TuckerFactors) -> tuple[int, ...]:
    return tuple(part._version for part in (factors.core, factors.u1, factors.u2, factors.u3))

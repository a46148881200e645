"""CRAFT's ranks (r1, r2, r3), over layers, outputs and inputs: read from text, checked, resolved on a model, and shown.

`all` is the full dimension, in files and configurations; a decomposition has numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Ranks = tuple[int, int, int]
AskedRanks = tuple[int | str, int | str, int | str]
"""Ranks as a user writes them: whole numbers, or `all`."""

_MODES = (("r1 (layers)", "stacked layers"), ("r2 (outputs)", "output features"), ("r3 (inputs)", "input features"))


def parse_ranks(text: str) -> AskedRanks:
    """Reads `all,64,64` or `12x100x100`."""
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    return check_ranks([int(part) if part.isdecimal() else part for part in parts])


def check_ranks(ranks: Any) -> AskedRanks:
    """Returns `ranks` as a tuple. Raises ValueError unless they are three, each a whole number from 1 or `all`."""
    if isinstance(ranks, str) or not hasattr(ranks, "__len__") or len(ranks) != 3:
        raise ValueError(f"ranks are three, (r1, r2, r3) for layers, outputs and inputs; got {ranks!r}")
    for rank, (mode, _) in zip(ranks, _MODES, strict=True):
        if rank != "all" and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 1):
            raise ValueError(f"{mode} is a whole number from 1, or 'all'; got {rank!r} in {list(ranks)}")
    return tuple(ranks)


def resolve_ranks(ranks: Sequence[int | str], shape: Sequence[int], *, name: str = "the stack") -> Ranks:
    """Replaces every `all` by the full dimension of a stack of `shape` (L, d_out, d_in). Raises ValueError."""
    r1, r2, r3 = (size if rank == "all" else int(rank) for rank, size in zip(check_ranks(ranks), shape, strict=True))
    for rank, size, (mode, dimension) in zip((r1, r2, r3), shape, _MODES, strict=True):
        if rank > size:
            raise ValueError(
                f"{mode} is {rank}, but {name} has {size} {dimension} (its shape is {' x '.join(map(str, shape))}). "
                f"Give {mode[:2]} from 1 to {size}, or 'all'."
            )
    return r1, r2, r3


def show_ranks(ranks: Sequence[int | str]) -> str:
    """Shows ranks as labels do: `64` for (all, 64, 64), in full otherwise."""
    return str(ranks[1]) if ranks[0] == "all" and ranks[1] == ranks[2] else f"({','.join(map(str, ranks))})"

"""The singular vectors of single weights from the store: `singular_vectors`.

    W = U S Vᵀ        stored: the r largest and the r smallest of S with their columns of U and V, float32

PiSSA and LoRA-XS begin at the largest, MiLoRA at the smallest. One SVD gives all of them, and it costs seconds to minutes where
the vectors that are kept cost megabytes, so a file holds both ends: `LEAST` components of each, or as many as were asked.
A larger rank decomposes again. All components of LLaMA3-8B's projections would be 25 GB.

What is stored is what `torch.linalg.svd` gave, bit for bit and with its strides, on the kind of device that the address names.
A method that takes it from here computes the numbers that it would have computed from its own SVD.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from craft.factors.store import Store, Tensors, default_store, hash_weights

ALGORITHM = "linalg-svd-1"
"""Names the call and the layout; part of every stored SVD's address. Raise it when results change."""
LEAST = 64
"""Components kept of each end at least, so that most sweeps over ranks decompose once."""

End = Literal["largest", "smallest"]
Components = tuple[Tensor, Tensor, Tensor]
"""U (d_out, r), S (r,) falling, Vᵀ (r, d_in)."""


def singular_vectors(weight: Tensor, rank: int, end: End, store: Store | None = None) -> Components:
    """Returns the `rank` largest or smallest components of a weight (d_out, d_in): new float32 tensors on its device.

    Raises:
        ValueError: the rank is above the weight's smaller side.
    """
    if not 1 <= rank <= min(weight.shape):
        sides = " x ".join(map(str, weight.shape))
        raise ValueError(f"a weight of {sides} has {min(weight.shape)} singular values; got rank {rank}")
    origin = {
        "shape": list(weight.shape),
        "dtype": str(weight.dtype),
        "weights": hash_weights([weight]),
        "device": weight.device.type,  # libraries of CPUs and GPUs differ in signs and rounding
        "algorithm": ALGORITHM,
    }

    def make(_held: Tensors | None) -> Tensors:
        """Decomposes the weight. Both ends of the spectrum have the memory order of LAPACK's results: U and Vᵀ by columns."""
        u, s, vt = torch.linalg.svd(weight.detach().to(torch.float32), full_matrices=False)
        count = min(max(rank, LEAST), len(s))
        tensors: dict[str, Tensor] = {}
        for name, part in {"largest": slice(None, count), "smallest": slice(len(s) - count, None)}.items():
            tensors |= {f"{name}.u": u[:, part].T.clone(), f"{name}.s": s[part].clone(), f"{name}.v": vt[part].T.clone()}
        return tensors

    held = (store or default_store()).get("singular vectors", origin, make, lambda held: len(held["largest.s"]) >= rank)
    chosen = slice(None, rank) if end == "largest" else slice(len(held["largest.s"]) - rank, None)
    parts = held[f"{end}.u"].T[:, chosen], held[f"{end}.s"][chosen], held[f"{end}.v"].T[chosen]
    u, s, vt = (part.to(weight.device, copy=True) for part in parts)
    return u, s, vt

"""Products of two thin matrices cut to a lower rank: one at a time, or many at once under one threshold.

    B A = U diag(s) Vᵀ       cut to rank k:  B' = U_k sqrt(s_k),  A' = sqrt(s_k) V_kᵀ        (Eckart and Young: no nearer one)

The threshold is on s² / (d_out + d_in), the loss for each parameter of a singular value, so that no other choice with as few
parameters loses less; PARA cuts LoRA so (arXiv 2604.27796).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Spectrum = tuple[Tensor, Tensor, Tensor]


def product_svd(b: Tensor, a: Tensor, scale: float = 1.0) -> Spectrum:
    """Decomposes `scale` B A, (d_out, r) by (r, d_in), by an SVD in float64: U (d_out, n), s (n) descending, Vᵀ (n, d_in)."""
    q_left, r_left = torch.linalg.qr(b.double())
    q_right, r_right = torch.linalg.qr(a.double().T)
    u, s, vt = torch.linalg.svd(scale * r_left @ r_right.T, full_matrices=False)
    return q_left @ u, s, vt @ q_right.T


def halves(spectrum: Spectrum, rank: int) -> tuple[Tensor, Tensor]:
    """Returns B' (d_out, rank) and A' (rank, d_in) in float64, the nearest product; zeros fill up a rank that is too large."""
    u, s, vt = spectrum
    root = s[:rank].clamp(min=0).sqrt()
    lacking = max(0, rank - len(root))
    return F.pad(u[:, :rank] * root, (0, lacking)), F.pad(root[:, None] * vt[:rank], (0, 0, 0, lacking))


def ranks_within(values: Mapping[str, Sequence[float] | Tensor], costs: Mapping[str, int], budget: int) -> dict[str, int]:
    """Finds the rank of every product under the lowest threshold that `budget` parameters allow.

    `values` are descending, `costs` the parameters of one of them: d_out + d_in.
    """
    losses = [(float(value) ** 2 / costs[name], name) for name, spectrum in values.items() for value in spectrum]
    ranks, spent = dict.fromkeys(values, 0), 0
    for _, name in sorted(losses, key=lambda loss: -loss[0]):
        if spent + costs[name] > budget:
            break
        ranks[name] += 1
        spent += costs[name]
    return ranks

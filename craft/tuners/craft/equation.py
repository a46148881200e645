"""The arithmetic of CRAFT: the change of every layer's core, and how it enters a layer's forward pass.

    Ŵ_l = W_l + s U2 M_l U3ᵀ          M_l = J2 C_l J3ᵀ - C0_l          C_l = sum_k (U1 J1)[l, k] G[k],  C0_l at J = I
    X = D2 G + (G + D2 G) D3ᵀ         M_l = sum_k (U1 D1)[l, k] G[k] + sum_k (U1 J1)[l, k] X[k],        D = J - I

Each product of the second form has a factor that is zero at J = I, so there the model is the base model bit for bit in every
dtype. The layers are mixed last: the products with J2 and J3 run over r1 slices. No d x d matrix is built, and W stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


def core_offsets(u1: Tensor, turned: Tensor, j1: Tensor, j2: Tensor, j3: Tensor) -> Tensor:
    """Computes M of all layers, (L, r2, r3), each layer's a view into one (r2, L, r3); exactly zero at J = I.

    `turned` is G as (r2, r1, r3). The products run in its dtype, to which D is rounded, and not J.
    """
    d1, d2, d3 = (j - torch.eye(j.shape[-1], dtype=j.dtype, device=j.device) for j in (j1, j2, j3))
    moved = u1 @ d1
    d2, d3, dtype = d2.to(turned.dtype), d3.to(turned.dtype), turned.dtype
    by_first = _mixed(moved.to(dtype), turned)
    if u1.shape[0] >= u1.shape[1]:
        cores = by_first + _mixed((u1 + moved).to(dtype), _through(turned, d2, d3))
    else:
        cores = by_first + _through(_mixed(u1.to(dtype), turned) + by_first, d2, d3)
    return cores.transpose(0, 1)


def _mixed(mixing: Tensor, slices: Tensor) -> Tensor:
    """Sums mixing[l, k] slices[:, k] over k: (L, r1) by (r2, r1, r3). It calls `bmm`, because `matmul` chooses its
    kernel by which inputs need a gradient, and an adapter must give the same bits in training and after loading."""
    return torch.bmm(mixing.expand(slices.shape[0], *mixing.shape), slices)


def _through(slices: Tensor, d2: Tensor, d3: Tensor) -> Tensor:
    """Computes D2 C + (C + D2 C) D3ᵀ of every slice C: (r2, k, r3)."""
    turned = (d2 @ slices.reshape(len(slices), -1)).view(slices.shape)
    return turned + ((slices + turned).view(-1, slices.shape[-1]) @ d3.T).view(slices.shape)


def bypass(x: Tensor, y: Tensor, u3t: Tensor, core: Tensor, u2s: Tensor) -> Tensor:
    """Computes y + s U2 M U3ᵀ x: x (..., d_in) of the factors' dtype, y (..., d_out), `u3t` U3ᵀ, `core` M, `u2s` s U2ᵀ."""
    h = F.linear(F.linear(x, u3t), core)
    if y.dtype != h.dtype:
        return y + (h @ u2s).to(y.dtype)
    return torch.addmm(y.reshape(-1, y.shape[-1]), h.reshape(-1, h.shape[-1]), u2s).view(y.shape)


def dropout_masks(widths: Sequence[int], p: float, like: Tensor) -> tuple[Tensor, ...]:
    """Draws inverted dropout masks of J1, J2, J3, (r, r) each, for all layers: 0 with probability p, else 1 / (1 - p)."""
    keep = 1 - p
    return tuple(torch.empty((size, size), dtype=like.dtype, device=like.device).bernoulli_(keep).div_(keep) for size in widths)

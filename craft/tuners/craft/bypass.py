"""The arithmetic of CRAFT: the change of every layer's core, and two equal ways to put it into a layer's forward pass.

With C_l = sum_k (U1 J1)[l, k] G[k] the core of layer l, and C0_l the same at J = I, the paper's weight is

    Ŵ_l = W_l + s U2 M_l U3ᵀ          M_l = J2 C_l J3ᵀ - C0_l          (r2 x r3)

The difference is never formed from its two nearly equal halves. With D = J - I it is a sum of products, each with a factor
that is zero at J = I, so that there M is exactly zero and the adapted model is the base model bit for bit in every dtype::

    X = D2 G + (G + D2 G) D3ᵀ        M_l = sum_k (U1 D1)[l, k] G[k] + sum_k (U1 J1)[l, k] X[k]

The layers are mixed last, so that the products with J2 and J3 run over r1 slices and not over L.

Two ways to use it::

    bypass   y = W x + s U2 (M (U3ᵀ x))                 x ─┬─ W ───────────────┬─ y
                                                           └─ U3ᵀ ─ M ─ s U2 ──┘
    hybrid   y = (W + s U2 M U3ᵀ) x, dM through the factors or through dŴ (`HybridLinear`)

The bypass never builds a d x d matrix and leaves W alone, so W may be quantized or half precision. The hybrid rounds Ŵ to W's
dtype, so it is used with float32 and wider alone; there `cheapest` picks the form with the fewest floating-point operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Form = Literal["bypass", "factors", "dense"]

BUILD_WEIGHT = 1.5
"""Cost of an operation that builds Ŵ, relative to one of the large products; building also passes over W in memory. It
is an estimate: away from T = d the choice does not depend on it, and near T = d the forms cost about the same."""


def core_offsets(u1: Tensor, turned: Tensor, j1: Tensor, j2: Tensor, j3: Tensor) -> Tensor:
    """Computes M of all layers at once; exactly zero at J = I.

    Args:
        u1: (L, r1), of J's dtype.
        turned: G as (r2, r1, r3), in which order neither J2 nor J3 has to turn it. The products run in its dtype. D = J - I
            is formed before it is rounded to that dtype, so M loses nothing but its own rounding.

    Returns:
        (L, r2, r3), each layer's M a view into one (r2, L, r3).
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


def bypass(x: Tensor, y: Tensor, inner: Sequence[Tensor], u2s: Tensor) -> Tensor:
    """Computes y + s U2 M U3ᵀ x.

    Args:
        x: (..., d_in), of the factors' dtype.
        y: (..., d_out): the base layer's output.
        inner: U3ᵀ (r3, d_in) and M of this layer (r2, r3); or their product M U3ᵀ alone, (r2, d_in).
        u2s: s U2ᵀ, (r2, d_out).
    """
    h = x
    for matrix in inner:
        h = F.linear(h, matrix)
    if y.dtype != h.dtype:
        return y + (h @ u2s).to(y.dtype)
    return torch.addmm(y.reshape(-1, y.shape[-1]), h.reshape(-1, h.shape[-1]), u2s).view(y.shape)


def weight_delta(core: Tensor, u2: Tensor, u3: Tensor, scaling: float) -> Tensor:
    """Computes s U2 M U3ᵀ, (d_out, d_in): what merging adds to W."""
    return (scaling * u2) @ core @ u3.T


def cheapest(tokens: int, d_out: int, d_in: int, r2: int, r3: int, *, training: bool) -> Form:
    """Chooses the form with the fewest multiply-adds for one layer, in addition to the base layer's own.

    ======== ====================================== =====================================================
    form     forward                                backward (gradient of x is the base layer's own in all)
    ======== ====================================== =====================================================
    bypass   T (d_in r3 + r2 r3 + d_out r2)         the same again, and T r2 r3 for dM
    factors  B + T d_in r3                          T (d_out r2 + r2 r3)
    dense    B                                      T d_out d_in + r2 d_in (d_out + r3)
    ======== ====================================== =====================================================

    B = d_out r3 (r2 + d_in) builds Ŵ and is weighted by `BUILD_WEIGHT`. With square weights the bypass is cheapest up to about
    T = d tokens, and above that r = d / 2 decides between the other two. Without a backward pass M U3ᵀ is already there, and
    T r2 (d_in + d_out) is compared with the weighted r2 d_in d_out. The backward pass needs Ŵ to be kept; if Ŵ were larger
    than the layer's output (T < d_in), the bypass is chosen.
    """
    if tokens < d_in:
        return "bypass"
    if not training:
        return "bypass" if tokens * (d_in + d_out) <= BUILD_WEIGHT * d_out * d_in else "factors"
    build = BUILD_WEIGHT * d_out * r3 * (r2 + d_in)
    through = tokens * (d_in * r3 + r2 * r3 + d_out * r2)
    costs: dict[Form, float] = {
        "bypass": 2 * through + tokens * r2 * r3,
        "factors": build + through,
        "dense": build + tokens * d_out * d_in + r2 * d_in * (d_out + r3),
    }
    return min(costs, key=costs.__getitem__)


class HybridLinear(torch.autograd.Function):
    """y = x Ŵᵀ + b with Ŵ = W + s U2 M U3ᵀ; the gradients of x through Ŵ, of M through the factors or through dŴ.

    W and the factors are frozen: they get no gradient. `dense` says which way dM takes:
    dM = (dy U2 s)ᵀ (x U3), or (s U2ᵀ) (dyᵀ x) U3. Both are the same sum in another order.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, core: Tensor, u3t: Tensor, u2s: Tensor, dense: bool
    ) -> Tensor:
        adapted = torch.addmm(weight, u2s.T, core @ u3t)
        ctx.dense = dense
        ctx.save_for_backward(x if dense else F.linear(x, u3t), adapted, u3t, u2s)
        return F.linear(x, adapted, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        inputs, adapted, u3t, u2s = ctx.saved_tensors
        rows = dy.reshape(-1, dy.shape[-1])
        inputs = inputs.reshape(-1, inputs.shape[-1])
        dx = dy @ adapted if ctx.needs_input_grad[0] else None
        dcore = None
        if ctx.needs_input_grad[3]:
            dcore = u2s @ (rows.T @ inputs) @ u3t.T if ctx.dense else (rows @ u2s.T).T @ inputs
        return dx, None, None, dcore, None, None, None


def dropout_masks(widths: Sequence[int], p: float, like: Tensor) -> tuple[Tensor, ...]:
    """Draws inverted dropout masks of J1, J2, J3, (r, r) each, for all layers: 0 with probability p, else 1 / (1 - p)."""
    keep = 1 - p
    return tuple(torch.empty((size, size), dtype=like.dtype, device=like.device).bernoulli_(keep).div_(keep) for size in widths)

"""CRAFT's layer agrees with the paper's formula, in value and gradient; at J = I nothing changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from craft.factors.hosvd import TuckerFactors, hosvd
from craft.tuners.craft.equation import bypass, core_offsets, dropout_masks

L, D_OUT, D_IN, RANKS, SCALING = 4, 12, 20, (3, 5, 7), 1.5


def factors(dtype: torch.dtype = torch.float64) -> TuckerFactors:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(L, D_OUT, D_IN, dtype=torch.float64, generator=generator)
    return hosvd(weights, RANKS, dtype=dtype)


def js(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.eye(r, dtype=dtype) + 0.3 * torch.randn(r, r, dtype=dtype, generator=generator)).requires_grad_() for r in RANKS
    ]


def turned(parts: TuckerFactors) -> Tensor:
    return parts.core.transpose(0, 1).contiguous()


def paper_delta(parts: TuckerFactors, j1: Tensor, j2: Tensor, j3: Tensor) -> Tensor:
    """s (T - R) by equations 2 to 4, mode products written out: (L, d_out, d_in)."""

    def tucker(u1: Tensor, u2: Tensor, u3: Tensor) -> Tensor:
        return torch.einsum("abc,la,ob,ic->loi", parts.core, u1, u2, u3)

    return SCALING * (tucker(parts.u1 @ j1, parts.u2 @ j2, parts.u3 @ j3) - tucker(parts.u1, parts.u2, parts.u3))


def test_cores_equal_the_papers_tensor() -> None:
    parts, matrices = factors(), js()
    cores = core_offsets(parts.u1, turned(parts), *matrices)
    ours = SCALING * parts.u2 @ cores @ parts.u3.T
    theirs = paper_delta(parts, *matrices)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    probe = torch.randn_like(ours)
    for mine, reference in zip(
        torch.autograd.grad((ours * probe).sum(), matrices), torch.autograd.grad((theirs * probe).sum(), matrices), strict=True
    ):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cores_are_exactly_zero_at_the_identity(dtype: torch.dtype) -> None:
    parts = factors(dtype)
    identity = [torch.eye(r, dtype=dtype) for r in RANKS]
    cores = core_offsets(parts.u1, turned(parts), *identity)
    assert torch.count_nonzero(cores) == 0


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_the_bypass_agrees_with_the_weight_form_in_value_and_gradient(dtype: torch.dtype, tolerance: float) -> None:
    parts = factors(dtype)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 9, D_IN, dtype=dtype, generator=generator).requires_grad_()
    weight = torch.randn(D_OUT, D_IN, dtype=dtype, generator=generator)
    bias = torch.randn(D_OUT, dtype=dtype, generator=generator)
    core = (0.1 * torch.randn(*RANKS[1:], dtype=dtype, generator=generator)).requires_grad_()
    probe = torch.randn(2, 9, D_OUT, dtype=dtype, generator=generator)
    u3t, u2s = parts.u3.T.contiguous(), (SCALING * parts.u2).T.contiguous()
    reference = F.linear(x, weight + SCALING * parts.u2 @ core @ parts.u3.T, bias)
    ours = bypass(x, F.linear(x, weight, bias), u3t, core, u2s)
    scale = float(reference.detach().abs().max())
    torch.testing.assert_close(ours, reference, rtol=0, atol=tolerance * scale)
    for mine, theirs in zip(
        torch.autograd.grad((ours * probe).sum(), (x, core)),
        torch.autograd.grad((reference * probe).sum(), (x, core)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance * float(theirs.abs().max()))


def test_dropout_masks_keep_the_mean() -> None:
    torch.manual_seed(0)
    mask = dropout_masks((200, 200, 200), 0.25, torch.empty(0))[1]
    assert mask.shape == (200, 200)
    assert sorted(mask.unique().tolist()) == pytest.approx([0.0, 4 / 3])
    assert float(mask.mean()) == pytest.approx(1.0, abs=0.02)

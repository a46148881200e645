"""The frozen half of CRAFT: the truncated higher-order SVD of weights stacked across layers (paper, Stage 2).

L weights of one projection, each (d_out, d_in) in `nn.Linear` orientation, are read as one tensor W of (L, d_out, d_in)::

    W  ~  R = G x1 U1 x2 U2 x3 U3          W: L x d_out x d_in
                                           U1: L x r1   U2: d_out x r2   U3: d_in x r3
    G = W x1 U1^T x2 U2^T x3 U3^T          G: r1 x r2 x r3

Un holds the first r_n left singular vectors of the mode-n unfolding; they are the leading eigenvectors of that unfolding's
Gram matrix, which in float64 are exact to about 1e-14 and several times cheaper than an SVD. No HOOI follows, so Theorem 1
holds as stated. The stack is never built: Gram matrices and core are summed over layers and blocks.

Three properties let many runs share factors: leading slices of a decomposition are the decomposition of smaller ranks; signs
are canonical; `sketch` tells factors that came out differently (a flipped sign, a rotated degenerate subspace) from equal ones.

`python -m craft.tucker report MODEL` prints what ranks keep.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch
from torch import Tensor

ALGORITHM = "hosvd-gram64-1"
"""Names the algorithm and its sign rule; part of every stored decomposition's address. Raise it when results change."""

Ranks = tuple[int, int, int]

_MODES = ("r1 (layers)", "r2 (outputs)", "r3 (inputs)")
_LARGE = 1024  # rows of a Gram matrix from which on memory counts
_BLOCK = 2**20  # float64 entries converted at once: 8 MiB


@dataclass(frozen=True)
class TuckerFactors:
    """Core and factors of one stack.

    Attributes:
        core: G, (r1, r2, r3); float32 like the factors, unless the caller asks for another dtype.
        u1: (L, r1), orthonormal columns by falling singular value.
        u2: (d_out, r2).
        u3: (d_in, r3).
        singular_values: all singular values of the three unfoldings (L, d_out and d_in of them), float64 on the CPU; empty
            in an adapter that carries its factors.
    """

    core: Tensor
    u1: Tensor
    u2: Tensor
    u3: Tensor
    singular_values: tuple[Tensor, Tensor, Tensor]

    @property
    def ranks(self) -> Ranks:
        return self.u1.shape[1], self.u2.shape[1], self.u3.shape[1]

    @property
    def shape(self) -> Ranks:
        """(L, d_out, d_in) of the stack that was decomposed."""
        return self.u1.shape[0], self.u2.shape[0], self.u3.shape[0]

    @property
    def squared_norm(self) -> float:
        """||W||^2 of the stack; NaN without its singular values."""
        values = self.singular_values[0]
        return float(values.square().sum()) if len(values) else math.nan

    def slice(self, ranks: Sequence[int]) -> TuckerFactors:
        """The decomposition at smaller ranks, as views: HOSVD factors nest."""
        have = self.ranks
        if len(ranks) != 3 or any(not 1 <= wanted <= held for wanted, held in zip(ranks, have, strict=True)):
            raise ValueError(f"factors of ranks {have} cannot be sliced to {tuple(ranks)}: each rank is 1 to the one held")
        r1, r2, r3 = ranks
        return replace(self, core=self.core[:r1, :r2, :r3], u1=self.u1[:, :r1], u2=self.u2[:, :r2], u3=self.u3[:, :r3])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> TuckerFactors:
        """Core and factors moved; the spectra stay where they are."""
        moved = {name: getattr(self, name).to(device=device, dtype=dtype) for name in ("core", "u1", "u2", "u3")}
        return replace(self, **moved)

    def reconstruct(self) -> Tensor:
        """R = G x1 U1 x2 U2 x3 U3, (L, d_out, d_in). It is as large as the stack."""
        mixed = torch.tensordot(self.u1, self.core, dims=1)
        return self.u2 @ mixed @ self.u3.T

    def error_bound(self) -> float:
        """Theorem 1's upper bound on ||W - R||^2: the squared tails of the three spectra, summed."""
        return sum(float(s[r:].square().sum()) for s, r in zip(self.singular_values, self.ranks, strict=True))

    def sketch(self) -> Tensor:
        """A few numbers for each column, which change with the column's sign, place or direction, and with the core.

        Rows 0 to 3 are each column's products with fixed probe vectors; row 4 holds the core's three fibres through its
        origin. Columns are those of U1, U2, U3 in turn, so that the sketch of a slice is a selection of columns.

        Returns:
            (5, r1 + r2 + r3), float64 on the CPU. Compare with `sketch_difference`.
        """
        probed = [_probes(u.shape[0]) @ u.detach().to("cpu", torch.float64) for u in (self.u1, self.u2, self.u3)]
        core = self.core.detach().to("cpu", torch.float64)
        fibres = torch.cat([core[:, 0, 0], core[0, :, 0], core[0, 0, :]])
        return torch.cat([torch.cat(probed, dim=1), fibres[None]])


def sketch_difference(expected: Tensor, found: Tensor) -> float:
    """How far two sketches lie apart; inf where their shapes differ.

    Equal factors that were computed on two machines differ by about 1e-6 (float32 rounding); a flipped, exchanged or
    rotated column by about 1. Anything above 1e-3 is another basis, in which an adapter's J mean something else.
    """
    if expected.shape != found.shape:
        return math.inf
    expected, found = expected.to("cpu", torch.float64), found.to("cpu", torch.float64)
    probes = (expected[:-1] - found[:-1]).abs().max()
    scale = expected[-1].abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    return float(torch.maximum(probes, (expected[-1] - found[-1]).abs().max() / scale))


def resolve_ranks(ranks: Sequence[int | str], shape: Sequence[int], *, name: str = "the stack") -> Ranks:
    """`ranks` with every 'all' replaced by the full dimension, checked against `shape` = (L, d_out, d_in).

    Raises:
        ValueError: not three ranks; a rank that is no whole number from 1; r1 > L, r2 > d_out or r3 > d_in.
    """
    if isinstance(ranks, str) or len(ranks) != 3:
        raise ValueError(f"ranks are three, (r1, r2, r3) for layers, outputs and inputs; got {ranks!r}")
    resolved: list[int] = []
    for rank, size, mode in zip(ranks, shape, _MODES, strict=True):
        if rank == "all":
            rank = size
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ValueError(f"{mode} is a whole number from 1, or 'all'; got {rank!r} in {list(ranks)}")
        if rank > size:
            what = {0: "stacked layers", 1: "output features", 2: "input features"}[len(resolved)]
            raise ValueError(
                f"{mode} is {rank}, but {name} has {size} {what} (its shape is {' x '.join(map(str, shape))}). "
                f"Give {mode[:2]} from 1 to {size}, or 'all'."
            )
        resolved.append(rank)
    return resolved[0], resolved[1], resolved[2]


def stack_shape(weights: Sequence[Tensor] | Tensor) -> Ranks:
    """(L, d_out, d_in) of weights that can be decomposed together.

    Raises:
        ValueError: there are none, or they are of unequal shapes, without values (meta) or not floating-point.
    """
    if not len(weights):
        raise ValueError("no weights to decompose: a stack has at least one layer")
    shapes = sorted({tuple(weight.shape) for weight in weights})
    if len(shapes) > 1 or len(shapes[0]) != 2:
        raise ValueError(f"a stack holds matrices of one shape (d_out, d_in); got {', '.join(map(str, shapes))}")
    if any(weight.is_meta for weight in weights):
        raise ValueError("weights on the meta device have no values: load them before decomposing")
    dtypes = {weight.dtype for weight in weights}
    if not all(dtype.is_floating_point for dtype in dtypes):
        raise ValueError(f"only floating-point weights can be decomposed; got {', '.join(map(str, dtypes))}. Dequantize first.")
    return len(weights), *shapes[0]


def hosvd(
    weights: Sequence[Tensor] | Tensor,
    ranks: Sequence[int | str],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> TuckerFactors:
    """Truncated HOSVD of L weights read as one (L, d_out, d_in) tensor (paper, Stage 2).

    All sums are in float64 for any dtype. Memory, in addition to the weights and the result: about two and a half float64
    matrices of (d, d).

    Args:
        weights: L tensors of (d_out, d_in), of any floating dtype and layout; or one (L, d_out, d_in) tensor.
        ranks: (r1, r2, r3), r1 <= L; 'all' is the full dimension.
        device: where the factors are computed and stay; the weights' own device if absent.
        dtype: of core and factors.
    """
    shape = stack_shape(weights)
    slices = [weight.detach() for weight in weights]
    r1, r2, r3 = resolve_ranks(ranks, shape)
    place = _compute_device(device if device is not None else slices[0].device)
    layers = _layer_gram(slices, place)
    if not torch.isfinite(layers.diagonal()).all():
        broken = [i for i, value in enumerate(layers.diagonal().tolist()) if not value < math.inf]
        raise ValueError(f"weights hold NaN or infinity (layers {broken} of the stack): they cannot be decomposed")
    s1, u1 = _leading(layers, r1)
    s2, u2 = _leading(_feature_gram(slices, place), r2)
    s3, u3 = _leading(_feature_gram([weight.T for weight in slices], place), r3)
    core = _core(slices, u1, u2, u3, dtype)
    target = torch.device(device) if device is not None else slices[0].device
    core, u1 = core.to(target), _in_rows(u1, target, dtype)
    u2 = _in_rows(u2, target, dtype)  # one after another, so that only one is held in both dtypes
    u3 = _in_rows(u3, target, dtype)
    return TuckerFactors(core, u1, u2, u3, singular_values=(s1, s2, s3))


def _in_rows(u: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return u.to(device=device, dtype=dtype, memory_format=torch.contiguous_format)


def _compute_device(device: torch.device | str) -> torch.device:
    device = torch.device(device)
    return torch.device("cpu") if device.type == "mps" else device  # Apple GPUs have no float64


def _blocks(size: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, width))
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def _layer_gram(slices: list[Tensor], device: torch.device) -> Tensor:
    """Mode 1's Gram matrix <W_k, W_l>, (L, L), summed over blocks of rows of all layers."""
    gram = torch.zeros(len(slices), len(slices), dtype=torch.float64, device=device)
    rows, columns = slices[0].shape
    for block in _blocks(rows, len(slices) * columns):
        flat = torch.stack([weight[block].to(device, torch.float64).flatten() for weight in slices])
        gram += flat @ flat.T
    return gram


def _feature_gram(slices: list[Tensor], device: torch.device) -> Tensor:
    """sum_l W_l W_l^T, (d, d): mode 2's Gram matrix, or mode 3's if given transposes. Only the lower triangle is right."""
    rows, columns = slices[0].shape
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=device)
    panel = max(128, -(-rows // 8))  # eight panels leave out 7/16 of the products: those above the diagonal
    together = max(1, _BLOCK // (rows * columns))  # small layers go side by side: fewer, better filled products
    for first in range(0, len(slices), together):
        group = slices[first : first + together]
        for block in _blocks(columns, rows * len(group)):
            part = _beside([weight[:, block].to(device, torch.float64) for weight in group])
            for start in range(0, rows, panel):
                gram[start:, start : start + panel].addmm_(part[start:], part[start : start + panel].T)
    return gram


def _beside(parts: list[Tensor]) -> Tensor:
    """Matrices side by side, in the memory order that they have: transposed views are not copied element by element."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.T for part in parts]).T if parts[0].stride(0) == 1 else torch.cat(parts, dim=1)


def _leading(gram: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """All singular values, falling, and the first `rank` singular vectors with canonical signs."""
    if gram.device.type == "cpu" and len(gram) > _LARGE and find_spec("scipy"):
        import scipy.linalg  # half of the memory that torch takes; absent where adapters are only loaded

        found = scipy.linalg.eigh(gram.numpy().T, lower=False, driver="evr", overwrite_a=True, check_finite=False)
        eigenvalues, vectors = (torch.from_numpy(part) for part in found)
    else:
        eigenvalues, vectors = torch.linalg.eigh(gram, UPLO="L")
    values = eigenvalues.flip(0).clamp_min(0).sqrt().cpu()
    vectors = vectors[:, -rank:]
    for block in _blocks(rank, len(vectors)):
        vectors[:, block] = _canonical(vectors[:, block])
    return values, vectors.flip(1)


def _canonical(vectors: Tensor) -> Tensor:
    """Columns with signs such that the first entry among the largest in magnitude is positive.

    Entries within 1e-6 of the largest count as equal, so that rounding does not decide between +a and -a.
    """
    magnitude = vectors.abs()
    largest = magnitude >= magnitude.amax(0) * (1 - 1e-6)
    first = largest.to(torch.uint8).argmax(0, keepdim=True)
    return vectors * torch.where(vectors.gather(0, first) < 0, -1.0, 1.0)


def _core(slices: list[Tensor], u1: Tensor, u2: Tensor, u3: Tensor, dtype: torch.dtype) -> Tensor:
    """G[k] = sum_l U1[l, k] U2^T W_l U3: so many of U2's columns at a time that what is summed takes half a float64 slice."""
    rows, columns = slices[0].shape
    r1, r2, r3 = u1.shape[1], u2.shape[1], u3.shape[1]
    core = torch.empty(r1, r2, r3, dtype=dtype, device=u1.device)
    step = max(1, max(_BLOCK, rows * columns // 2) // (r1 * r3 + r3 + columns))
    for first in range(0, r2, step):
        some = u2[:, first : first + step]
        sums = torch.zeros(r1, some.shape[1] * r3, dtype=torch.float64, device=u1.device)
        for weight, mixing in zip(slices, u1, strict=True):
            seen = torch.zeros(some.shape[1], columns, dtype=torch.float64, device=u1.device)
            for block in _blocks(rows, columns):
                seen.addmm_(some[block].T, weight[block].to(u1.device, torch.float64))
            sums.addr_(mixing, (seen @ u3).flatten())
        core[:, first : first + step] = sums.view(r1, -1, r3)
    return core


def _probes(size: int) -> Tensor:
    """(4, size) of fixed probe vectors with entries of order one: cosines of incommensurable frequencies, no random numbers."""
    frequencies = torch.tensor([0.6180339887, 1.4142135624, 2.2360679775, 2.6457513111], dtype=torch.float64)
    return torch.cos(frequencies[:, None] * torch.arange(1, size + 1, dtype=torch.float64))

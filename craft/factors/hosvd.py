"""The frozen half of CRAFT: the truncated higher-order SVD of L weights, one tensor W of (L, d_out, d_in) (paper, Stage 2).

    W  ~  R = G x1 U1 x2 U2 x3 U3          U1: L x r1   U2: d_out x r2   U3: d_in x r3
    G = W x1 U1^T x2 U2^T x3 U3^T          G: r1 x r2 x r3

Un holds the leading eigenvectors of the mode-n unfolding's Gram matrix, in float64 exact to about 1e-14. No HOOI follows, so
Theorem 1 holds as stated. The stack is never built: Gram matrices and core are summed over layers and blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import torch
from torch import Tensor

from craft.factors.store import Store, Tensors, hash_weights
from craft.ranks import Ranks, resolve_ranks

ALGORITHM = "hosvd-gram64-1"
"""Names the algorithm and its sign rule; part of every stored decomposition's address. Raise it when results change."""

_LARGE = 1024  # rows of a Gram matrix from which on memory counts
_BLOCK = 2**20  # float64 entries converted at once: 8 MiB


@dataclass(frozen=True)
class TuckerFactors:
    """G (r1, r2, r3), and U1 (L, r1), U2 (d_out, r2), U3 (d_in, r3) with orthonormal columns by falling singular value.

    `singular_values` are all of the three unfoldings, float64 on the CPU; empty in an adapter that carries its factors.
    """

    core: Tensor
    u1: Tensor
    u2: Tensor
    u3: Tensor
    singular_values: tuple[Tensor, ...] = ()

    @property
    def ranks(self) -> Ranks:
        return self.u1.shape[1], self.u2.shape[1], self.u3.shape[1]

    @property
    def squared_norm(self) -> float:
        """||W||^2 of the stack; NaN without its singular values."""
        return float(self.singular_values[0].square().sum()) if self.singular_values else math.nan

    def slice(self, ranks: Sequence[int]) -> TuckerFactors:
        """Returns the decomposition at smaller ranks, as views: HOSVD factors nest."""
        if len(ranks) != 3 or any(not 1 <= rank <= largest for rank, largest in zip(ranks, self.ranks, strict=True)):
            raise ValueError(
                f"factors of ranks {self.ranks} cannot be sliced to {tuple(ranks)}: each rank is from 1 to that of the factors"
            )
        r1, r2, r3 = ranks
        return replace(self, core=self.core[:r1, :r2, :r3], u1=self.u1[:, :r1], u2=self.u2[:, :r2], u3=self.u3[:, :r3])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> TuckerFactors:
        moved = {name: getattr(self, name).to(device=device, dtype=dtype) for name in ("core", "u1", "u2", "u3")}
        return replace(self, **moved)

    def sketch(self) -> Tensor:
        """Returns a few numbers for each column, which change with the column's sign, place or direction, and with the core.

        Columns are those of U1, U2, U3 in turn, float64 (5, r1 + r2 + r3). Rows 0 to 3 are their products with fixed probe
        vectors; row 4 holds the core's three fibres through its origin. So the sketch of a slice is a selection of columns.
        """
        probed = [probes(u.shape[0]) @ u.detach().to("cpu", torch.float64) for u in (self.u1, self.u2, self.u3)]
        core = self.core.detach().to("cpu", torch.float64)
        fibres = torch.cat([core[:, 0, 0], core[0, :, 0], core[0, 0, :]])
        return torch.cat([torch.cat(probed, dim=1), fibres[None]])


def sketch_difference(expected: Tensor, actual: Tensor) -> float:
    """Measures how far two sketches differ; inf if their shapes do.

    Two machines' factors differ by about 1e-6 (float32 rounding); a flipped, exchanged or rotated column by about 1.
    """
    if expected.shape != actual.shape:
        return math.inf
    expected, actual = expected.to("cpu", torch.float64), actual.to("cpu", torch.float64)
    difference = (expected - actual).abs()
    scale = expected[-1].abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    return float(torch.maximum(difference[:-1].max(), difference[-1].max() / scale))


def stack_shape(weights: Sequence[Tensor] | Tensor) -> Ranks:
    """Returns (L, d_out, d_in) of weights that can be decomposed together; raises ValueError for others."""
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
    """Decomposes L weights, read as one (L, d_out, d_in) tensor, by truncated HOSVD (paper, Stage 2).

    All sums are in float64 for any dtype. Memory, in addition to the weights and the result: about two and a half float64
    matrices of (d, d). Of `ranks`, r1 <= L, and 'all' is the full dimension; the factors stay on `device`.
    """
    shape = stack_shape(weights)
    slices = [weight.detach() for weight in weights]
    r1, r2, r3 = resolve_ranks(ranks, shape)
    target = torch.device(device if device is not None else slices[0].device)
    place = torch.device("cpu") if target.type == "mps" else target  # Apple GPUs have no float64
    layers = _layer_gram(slices, place)
    if not torch.isfinite(layers.diagonal()).all():
        broken = [i for i, value in enumerate(layers.diagonal().tolist()) if not value < math.inf]
        raise ValueError(f"weights hold NaN or infinity (layers {broken} of the stack): they cannot be decomposed")
    s1, u1 = _leading(layers, r1)
    s2, u2 = _leading(_feature_gram(slices, place), r2)
    s3, u3 = _leading(_feature_gram([weight.T for weight in slices], place), r3)
    core, rows = _core(slices, u1, u2, u3, dtype).to(target), torch.contiguous_format
    u1 = u1.to(target, dtype, memory_format=rows)  # one after another, so that only one is held in both dtypes
    u2 = u2.to(target, dtype, memory_format=rows)
    u3 = u3.to(target, dtype, memory_format=rows)
    return TuckerFactors(core, u1, u2, u3, singular_values=(s1, s2, s3))


def _blocks(size: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, width))
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


def _layer_gram(slices: list[Tensor], device: torch.device) -> Tensor:
    """Sums mode 1's Gram matrix <W_k, W_l>, (L, L), over blocks of rows of all layers."""
    gram = torch.zeros(len(slices), len(slices), dtype=torch.float64, device=device)
    rows, columns = slices[0].shape
    for block in _blocks(rows, len(slices) * columns):
        flat = torch.stack([weight[block].to(device, torch.float64).flatten() for weight in slices])
        gram += flat @ flat.T
    return gram


def _feature_gram(slices: list[Tensor], device: torch.device) -> Tensor:
    """Sums W_l W_l^T over l, (d, d): mode 2's Gram matrix, or mode 3's of transposes. Only the lower triangle is right."""
    rows, columns = slices[0].shape
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=device)
    panel = max(128, -(-rows // 8))  # eight panels leave out 7/16 of the products: those above the diagonal
    together = max(1, _BLOCK // (rows * columns))  # small layers are joined: fewer, better filled products
    for first in range(0, len(slices), together):
        group = slices[first : first + together]
        for block in _blocks(columns, rows * len(group)):
            part = _join([weight[:, block].to(device, torch.float64) for weight in group])
            for start in range(0, rows, panel):
                gram[start:, start : start + panel].addmm_(part[start:], part[start : start + panel].T)
    return gram


def _join(parts: list[Tensor]) -> Tensor:
    """Joins matrices by columns in the memory order that they have: transposed views are not copied element by element."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.T for part in parts]).T if parts[0].stride(0) == 1 else torch.cat(parts, dim=1)


def _leading(gram: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Returns all singular values, falling, and the first `rank` singular vectors with canonical signs."""
    if gram.device.type == "cpu" and len(gram) > _LARGE and find_spec("scipy"):
        import scipy.linalg  # half of the memory that torch takes; absent where adapters are only loaded

        arrays = scipy.linalg.eigh(gram.numpy().T, lower=False, driver="evr", overwrite_a=True, check_finite=False)
        eigenvalues, vectors = map(torch.from_numpy, arrays)
    else:
        eigenvalues, vectors = torch.linalg.eigh(gram, UPLO="L")
    values = eigenvalues.flip(0).clamp_min(0).sqrt().cpu()
    vectors = vectors[:, -rank:]
    for block in _blocks(rank, len(vectors)):
        vectors[:, block] = _canonical(vectors[:, block])
    return values, vectors.flip(1)


def _canonical(vectors: Tensor) -> Tensor:
    """Gives each column the sign that makes the first entry among the largest in magnitude positive.

    Entries within 1e-6 of the largest count as equal, so that rounding does not decide between +a and -a.
    """
    magnitude = vectors.abs()
    largest = magnitude >= magnitude.amax(0) * (1 - 1e-6)
    first = largest.to(torch.uint8).argmax(0, keepdim=True)
    return vectors * torch.where(vectors.gather(0, first) < 0, -1.0, 1.0)


def _core(slices: list[Tensor], u1: Tensor, u2: Tensor, u3: Tensor, dtype: torch.dtype) -> Tensor:
    """Sums G[k] = sum_l U1[l, k] U2^T W_l U3, by so many of U2's columns at a time that the sums take half a float64 slice."""
    rows, columns = slices[0].shape
    r1, r2, r3 = u1.shape[1], u2.shape[1], u3.shape[1]
    core = torch.empty(r1, r2, r3, dtype=dtype, device=u1.device)
    step = max(1, max(_BLOCK, rows * columns // 2) // (r1 * r3 + r3 + columns))
    for first in range(0, r2, step):
        part = u2[:, first : first + step]
        sums = torch.zeros(r1, part.shape[1] * r3, dtype=torch.float64, device=u1.device)
        for weight, mixing in zip(slices, u1, strict=True):
            projected = torch.zeros(part.shape[1], columns, dtype=torch.float64, device=u1.device)
            for block in _blocks(rows, columns):
                projected.addmm_(part[block].T, weight[block].to(u1.device, torch.float64))
            sums.addr_(mixing, (projected @ u3).flatten())
        core[:, first : first + step] = sums.view(r1, -1, r3)
    return core


def probes(size: int) -> Tensor:
    """Returns (4, size) fixed probe vectors with entries of order one: cosines of incommensurable frequencies, not random."""
    frequencies = torch.tensor([0.6180339887, 1.4142135624, 2.2360679775, 2.6457513111], dtype=torch.float64)
    return torch.cos(frequencies[:, None] * torch.arange(1, size + 1, dtype=torch.float64))


def stack_factors(
    weights: Sequence[Tensor],
    ranks: Sequence[int | str],
    *,
    name: str,
    device: torch.device | str | None = None,
    weights_hash: str | None = None,
    store: Store | None = None,
) -> TuckerFactors:
    """Takes the factors of a stack at `ranks` from the store, on the CPU; decomposes on `device` if nothing is stored."""
    shape = stack_shape(weights)
    wanted = resolve_ranks(ranks, shape, name=f"projection {name!r}")
    origin = {
        "projection": name,
        "shape": shape,
        "dtype": str(weights[0].dtype),
        "weights": weights_hash or hash_weights(weights),
        "algorithm": ALGORITHM,
    }

    def make(held: Tensors | None) -> Tensors:
        larger = wanted if held is None else [max(pair) for pair in zip(_factors(held).ranks, wanted, strict=True)]
        factors = hosvd(weights, larger, device=device)
        parts = {part: getattr(factors, part) for part in ("core", "u1", "u2", "u3")}
        return parts | dict(zip(("s1", "s2", "s3"), factors.singular_values, strict=True))

    def covers(held: Tensors) -> bool:
        return all(have >= want for have, want in zip(_factors(held).ranks, wanted, strict=True))

    label = f"the factors of projection {name!r}"
    return _factors((store or Store()).get(label, origin, make, covers)).slice(wanted)


def _factors(tensors: Tensors) -> TuckerFactors:
    core, u1, u2, u3, *spectra = (tensors[part] for part in ("core", "u1", "u2", "u3", "s1", "s2", "s3"))
    return TuckerFactors(core, u1, u2, u3, tuple(spectra))

"""The factors of a stack of weights from the store, so that a projection of a model is decomposed once for all runs.

The store keeps the largest ranks that were asked for. Smaller ones are slices, because HOSVD factors nest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from craft.factors.hosvd import ALGORITHM, TuckerFactors, hosvd, stack_shape
from craft.factors.store import Store, Tensors, default_store, hash_weights
from craft.ranks import resolve_ranks


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
    return _factors((store or default_store()).get(label, origin, make, covers)).slice(wanted)


def _factors(tensors: Tensors) -> TuckerFactors:
    core, u1, u2, u3, *spectra = (tensors[part] for part in ("core", "u1", "u2", "u3", "s1", "s2", "s3"))
    return TuckerFactors(core, u1, u2, u3, (spectra[0], spectra[1], spectra[2]))

"""SHA-256 of weights, by which a stored decomposition is found; computed in parallel and remembered."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
import xxhash
from torch import Tensor

from craft.factors.factor_file import tensor_bytes

_PARALLEL_HASHING = 64 * 2**20

_REMEMBERED_DIGESTS = 4096  # layers' weights

_digests: dict[tuple[str, bytes], bytes] = {}
"""Digests made in this process: (dtype and shape, checksum) of a weight -> its SHA-256."""


def hash_weights(weights: Sequence[Tensor]) -> str:
    """SHA-256 of all weights: dtype, shape and raw bytes of each layer, in order.

    The process remembers each SHA-256 by the 128-bit XXH3 checksum of the same bytes. The checksum also reads all bytes, but
    several times faster, so a change of one bit in place is noticed.
    """
    if sum(weight.nbytes for weight in weights) > _PARALLEL_HASHING:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            digests = list(pool.map(_digest, weights))
    else:
        digests = [_digest(weight) for weight in weights]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _digest(weight: Tensor) -> bytes:
    kind, content = f"{weight.dtype} {tuple(weight.shape)}", tensor_bytes(weight)
    known = (kind, xxhash.xxh3_128_digest(content))
    digest = _digests.get(known)
    if digest is None:
        layer = hashlib.sha256(kind.encode())
        layer.update(content)
        digest = layer.digest()
        if len(_digests) >= _REMEMBERED_DIGESTS:
            _digests.clear()
        _digests[known] = digest
    return digest

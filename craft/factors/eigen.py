"""Leading eigenvectors of large Gram matrices in little memory: the step that takes the HOSVD most time and memory.

Small matrices and GPUs use `torch.linalg.eigh`, which needs three more matrices of the same size on the CPU. For large matrices
on the CPU, LAPACK is called directly; if few vectors are wanted, it needs no further matrix.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

LARGE = 1024
"""Matrices with more rows take the way that saves memory."""
COLUMNS = 256
"""Number of vectors that are transformed back at once."""


def leading_eigh(gram: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """All eigenvalues, rising, and at least the last `rank` eigenvectors as columns.

    Args:
        gram: (n, n) float64 of which the lower triangle is read; overwritten.
        rank: how many vectors are needed.

    Raises:
        ValueError: LAPACK did not succeed.
    """
    if gram.device.type == "cpu" and len(gram) > LARGE:
        try:
            import scipy.linalg
        except ImportError:  # where adapters are only loaded scipy may be absent; torch does the same with more memory
            eigenvalues, vectors = torch.linalg.eigh(gram, UPLO="L")
            return eigenvalues, vectors
        # LAPACK's MRRR driver overwrites the matrix and needs no workspace of its size (divide and conquer, torch's, takes
        # two more); its vectors are orthogonal to about 1e-12 instead of 1e-14. scipy wants columns: the transpose is a view.
        if 2 * rank > len(gram):
            found = scipy.linalg.eigh(gram.numpy().T, lower=False, driver="evr", overwrite_a=True, check_finite=False)
        else:
            _mirror(gram)
            found = _by_tridiagonal(gram.numpy().T, rank)
        eigenvalues, vectors = (torch.from_numpy(part) for part in found)
        return eigenvalues, vectors
    eigenvalues, vectors = torch.linalg.eigh(gram, UPLO="L")
    return eigenvalues, vectors


def _mirror(gram: Tensor) -> None:
    """Writes the lower triangle into the upper one, a panel at a time."""
    size = len(gram)
    for start in range(0, size, LARGE):
        stop = min(start + LARGE, size)
        corner = gram[start:stop, start:stop]
        corner.copy_(corner.tril() + corner.tril(-1).T)
        gram[start:stop, stop:] = gram[stop:, start:stop].T


def _by_tridiagonal(matrix: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """All eigenvalues and the last `rank` eigenvectors, without a second full matrix as LAPACK's dsyevr needs.

    A = Q T Qᵀ with T tridiagonal (dsytrd, in place), T's vectors by inverse iteration (dstein, made orthogonal to 1e-14 within
    clusters; scipy's MRRR would fill a second full matrix), then Q's reflectors on them (dormqr).

    Args:
        matrix: (n, n), symmetric, in column order; destroyed.
    """
    from scipy.linalg import eigvalsh_tridiagonal, lapack

    size = len(matrix)
    work, info = lapack.dsytrd_lwork(size, lower=1)
    reduced, diagonal, beside, tau, info = lapack.dsytrd(matrix, lower=1, lwork=int(work), overwrite_a=1)
    _check_lapack("dsytrd", info)
    values = eigvalsh_tridiagonal(diagonal, beside, check_finite=False)
    by_index, accurate, by_block = 2, 0.0, "B"
    found, chosen, blocks, ends, info = lapack.dstebz(
        diagonal, beside, by_index, 0.0, 0.0, size - rank + 1, size, accurate, by_block
    )
    _check_lapack("dstebz", info)
    vectors, info = lapack.dstein(diagonal, beside, chosen[:found], blocks, ends)
    _check_lapack("dstein", info)
    # Reflector i acts on the rows below i, one lower than dormqr's: its matrix starts one entry later in memory. Read from
    # there, each column ends with an entry of the first row, which the reduction does not use: a row of zeros.
    reduced[0, 1:] = 0.0
    reflectors = reduced.reshape(-1, order="F")[1 : 1 + size * (size - 1)].reshape(size, size - 1, order="F")
    for start in range(0, found, COLUMNS):
        some = vectors[:, start : start + COLUMNS]
        below = np.zeros(some.shape, order="F")
        below[:-1] = some[1:]
        work = lapack.dormqr("L", "N", reflectors, tau, below, -1)[1][0]
        below, _, info = lapack.dormqr("L", "N", reflectors, tau, below, int(work), overwrite_c=1)
        _check_lapack("dormqr", info)
        some[1:] = below[:-1]
    order = np.argsort(chosen[:found], kind="stable")
    if (order[1:] < order[:-1]).any():  # T has separate blocks, and dstebz lists the values block by block
        vectors = vectors[:, order]
    return values, vectors


def _check_lapack(routine: str, info: int) -> None:
    if info:
        raise ValueError(f"LAPACK's {routine} failed with status {info} on a Gram matrix of the weights")

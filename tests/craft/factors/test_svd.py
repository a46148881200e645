"""Singular vectors from the store: the very bits of an SVD, made once for all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from craft.factors import store as stores
from craft.factors import svd
from craft.factors.stacks import stack_factors
from craft.factors.store import Store, read
from craft.factors.svd import singular_vectors
from craft.factors.ticking import ticking


def weight(d_out: int = 40, d_in: int = 24, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(d_out, d_in, generator=torch.Generator().manual_seed(seed)).to(dtype)


def components(path: Path) -> int:
    return len(read(path)[0]["largest.s"])


@pytest.mark.parametrize("shape", [(40, 24), (24, 40), (24, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_stored_is_the_svd_bit_for_bit_with_its_strides(tmp_path, shape, dtype):
    of = weight(*shape, dtype=dtype)
    u, s, vt = torch.linalg.svd(of.float(), full_matrices=False)
    for store in (Store(tmp_path), Store(tmp_path)):  # the second reads what the first has made
        for end, chosen in (("largest", slice(None, 5)), ("smallest", slice(-5, None))):
            stored = singular_vectors(of, 5, end, store)
            for ours, theirs in zip(stored, (u[:, chosen], s[chosen], vt[chosen]), strict=True):
                assert torch.equal(ours, theirs)
                assert ours.dtype == torch.float32
                assert ours.dim() == 1 or ours.stride(0) == 1  # LAPACK's order, by columns
    assert store.makes == 0


def test_one_svd_serves_both_ends_and_smaller_ranks_and_a_larger_one_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(svd, "LEAST", 8)
    store, of = Store(tmp_path), weight()
    for rank, end in ((3, "largest"), (8, "smallest"), (1, "smallest"), (8, "largest")):
        singular_vectors(of, rank, end, store)
    assert store.makes == 1
    (path,) = store.files()
    assert components(path) == 8
    singular_vectors(of, 11, "largest", store)
    assert store.makes == 2
    assert components(path) == 11
    singular_vectors(of + 1, 3, "largest", store)
    assert store.makes == 3
    assert len(store.files()) == 2


def test_a_rank_above_the_weights_side_is_refused(tmp_path):
    with pytest.raises(ValueError, match="40 x 24 has 24 singular values; got rank 25"):
        singular_vectors(weight(), 25, "largest", Store(tmp_path))


def test_all_kinds_share_one_bound(tmp_path):
    stack_factors([weight(), weight(seed=1)], (2, 4, 4), name="q", store=Store(tmp_path))
    (factors,) = Store(tmp_path).files()
    small = Store(tmp_path, max_bytes=13_000)
    singular_vectors(weight(), 4, "largest", small)
    assert not factors.exists()
    assert len(small.files()) == 1


def test_who_waits_for_the_lock_ticks_and_so_does_who_decomposes(tmp_path, monkeypatch):
    monkeypatch.setattr(stores, "_TURN", 0.05)
    store, of, ticks = Store(tmp_path), weight(), []
    with ticking(lambda: ticks.append(1)):
        singular_vectors(of, 4, "largest", store)
    assert len(ticks) == 1
    (path,) = store.files()
    path.unlink()
    lock = FileLock(path.with_suffix(".lock"), thread_local=False)
    lock.acquire()
    seen = threading.Event()

    def ticked() -> None:
        ticks.append(1)
        if len(ticks) == 4:
            lock.release()
            seen.set()

    with ticking(ticked):
        singular_vectors(of, 4, "largest", store)
    assert seen.is_set()
    assert store.makes == 2

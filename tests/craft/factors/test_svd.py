"""Singular vectors from the store: the very bits of an SVD, made once for all, and PEFT's own starts from them."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from filelock import FileLock

from craft import store as store_cli
from craft.factors import shelf, svd
from craft.factors.factor_file import CorruptFactors
from craft.factors.store import FactorStore
from craft.factors.svd import SvdStore, read_svd, read_svd_origin
from craft.factors.ticking import ticking


def weight(d_out: int = 40, d_in: int = 24, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(d_out, d_in, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("shape", [(40, 24), (24, 40), (24, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_stored_is_the_svd_bit_for_bit_with_its_strides(tmp_path, shape, dtype):
    of = weight(*shape, dtype=dtype)
    u, s, vt = torch.linalg.svd(of.float(), full_matrices=False)
    for store in (SvdStore(tmp_path), SvdStore(tmp_path)):  # the second reads what the first has made
        for end, chosen in (("largest", slice(None, 5)), ("smallest", slice(-5, None))):
            found = store.get(of, 5, end)
            for ours, theirs in zip(found, (u[:, chosen], s[chosen], vt[chosen]), strict=True):
                assert torch.equal(ours, theirs)
                assert ours.dtype == torch.float32
                assert ours.dim() == 1 or ours.stride(0) == 1  # LAPACK's order, by columns
    assert store.decompositions == 0


def test_one_svd_serves_both_ends_and_smaller_ranks_and_a_larger_one_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(svd, "LEAST", 8)
    store, of = SvdStore(tmp_path), weight()
    for rank, end in ((3, "largest"), (8, "smallest"), (1, "smallest"), (8, "largest")):
        store.get(of, rank, end)
    assert store.decompositions == 1
    (path,) = store.files()
    assert read_svd_origin(path)[1] == 8
    store.get(of, 11, "largest")
    assert store.decompositions == 2
    assert read_svd_origin(path)[1] == 11
    store.get(of + 1, 3, "largest")
    assert store.decompositions == 3
    assert len(store.files()) == 2


def test_a_rank_above_the_weights_side_is_refused(tmp_path):
    with pytest.raises(ValueError, match="40 x 24 has 24 singular values; got rank 25"):
        SvdStore(tmp_path).get(weight(), 25, "largest")


def test_a_caller_may_write_into_what_it_gets(tmp_path):
    store, of = SvdStore(tmp_path), weight()
    first = store.get(of, 4, "largest")
    for part in first:
        part.zero_()
    assert all(part.abs().sum() > 0 for part in store.get(of, 4, "largest"))
    read_svd(store.files()[0])


def test_a_damaged_file_is_found_and_made_anew(tmp_path):
    store, of = SvdStore(tmp_path), weight()
    good = store.get(of, 4, "largest")
    (path,) = store.files()
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptFactors):
        read_svd(path)
    with pytest.warns(shelf.StoreWarning, match="made anew"):
        again = SvdStore(tmp_path).get(of, 4, "largest")
    assert all(torch.equal(one, other) for one, other in zip(good, again, strict=True))


def test_a_folder_that_cannot_be_written_costs_an_svd_and_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    store, of = SvdStore(tmp_path / "file"), weight()
    with pytest.warns(shelf.StoreWarning, match="singular vectors cannot be kept"):
        u, s, vt = store.get(of, 24, "largest")
    assert torch.allclose(u * s @ vt, of, atol=1e-5)


def test_all_kinds_share_one_bound(tmp_path):
    FactorStore(tmp_path).get([weight(), weight(seed=1)], (2, 4, 4), name="q")
    (factors,) = FactorStore(tmp_path).files()
    small = SvdStore(tmp_path, max_bytes=13_000)
    small.get(weight(), 4, "largest")
    assert not factors.exists()
    assert len(small.files()) == 1


def test_who_waits_for_the_lock_ticks_and_so_does_who_decomposes(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf, "_TURN", 0.05)
    store, of, ticks = SvdStore(tmp_path), weight(), []
    with ticking(lambda: ticks.append(1)):
        store.get(of, 4, "largest")
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
        store.get(of, 4, "largest")
    assert seen.is_set()
    assert store.decompositions == 2


def test_processes_that_ask_at_once_decompose_once(tmp_path):
    program = (
        "import sys, torch; from craft.factors.svd import SvdStore\n"
        "of = torch.randn(300, 200, generator=torch.Generator().manual_seed(0)); store = SvdStore(sys.argv[1])\n"
        "sys.stdin.read(1); u, s, vt = store.get(of, 4, 'largest'); print(store.decompositions, float(u.double().sum()))"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    said = [process.communicate("x")[0].split() for process in processes]
    assert sum(int(made) for made, _ in said) == 1
    assert len({total for _, total in said}) == 1


def test_the_command_lists_checks_and_removes_them(tmp_path, capsys):
    SvdStore(tmp_path).get(weight(), 4, "largest")
    FactorStore(tmp_path).get([weight(), weight(seed=1)], (2, 4, 4), name="q")
    assert store_cli.main(["--dir", str(tmp_path), "list"]) == 0
    said = capsys.readouterr().out
    assert "singular vectors" in said
    assert "40 x 24" in said
    assert "2 decompositions" in said
    assert store_cli.main(["--dir", str(tmp_path), "verify"]) == 0
    path = SvdStore(tmp_path).files()[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert store_cli.main(["--dir", str(tmp_path), "verify", "--remove"]) == 1
    assert len(SvdStore(tmp_path).files()) == 1
    assert store_cli.main(["--dir", str(tmp_path), "clear"]) == 0
    assert SvdStore(tmp_path).files() == []

"""The store under many processes, killed writers, damaged files, full and forbidden folders."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file

from craft.factors import store as stores
from craft.factors.hosvd import TuckerFactors, hosvd, stack_factors
from craft.factors.store import Store, StoreWarning

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload([__name__])  # torch is loaded once for all


def _weights(layers: int = 3, features: int = 20, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(features, features, generator=generator) for _ in range(layers)]


def _parts(factors: TuckerFactors) -> list[torch.Tensor]:
    return [factors.core, factors.u1, factors.u2, factors.u3, *factors.singular_values]


def _assert_same(first_store: TuckerFactors, other: TuckerFactors) -> None:
    assert first_store.squared_norm == other.squared_norm
    torch.testing.assert_close(_parts(first_store), _parts(other), rtol=0, atol=0)


def _decompose(folder: Path, layers: int, features: int, rank: int, together: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    weights, cache = _weights(layers, features), Store(folder)
    together.wait()
    factors = stack_factors(weights, ("all", rank, rank), name="q", store=cache)
    bits = b"".join(part.contiguous().numpy().tobytes() for part in _parts(factors))
    answers.put((cache.makes, hashlib.sha256(bits).hexdigest(), factors.squared_norm))


def _begin(count: int, *arguments: Any) -> tuple[list[Any], Any]:
    """Lets so many processes decompose at once; returns them, and the queue of what comes of it."""
    together, answers = SERVER.Barrier(count + 1, timeout=600), SERVER.Queue()
    processes = [SERVER.Process(target=_decompose, args=(*arguments, together, answers), daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    together.wait()
    return processes, answers


def test_the_largest_rank_is_kept_and_smaller_ones_are_its_slices(tmp_path):
    first = Store(tmp_path)
    stack_factors(_weights(), (2, 12, 4), name="q", store=first)
    stack_factors(_weights(), (1, 3, 9), name="q", store=first)
    assert first.makes == 2
    second = Store(tmp_path)
    for ranks in [(2, 12, 9), (1, 2, 3), (2, 7, 9)]:
        _assert_same(stack_factors(_weights(), ranks, name="q", store=second), hosvd(_weights(), (2, 12, 9)).slice(ranks))
    assert second.makes == 0
    assert [tuple(load_file(path)["core"].shape) for path in second.files()] == [(2, 12, 9)]


def test_other_weights_names_shapes_and_dtypes_have_other_addresses(tmp_path):
    cache = Store(tmp_path)
    changed = _weights()
    changed[1][3, 4] += 1e-6
    asked = [
        (_weights(), "q"),
        (_weights(), "v"),
        (changed, "q"),
        (_weights()[::-1], "q"),
        ([weight.T for weight in _weights()], "q"),
        ([weight.bfloat16() for weight in _weights()], "q"),
        ([weight.reshape(10, 40) for weight in _weights()], "q"),
    ]
    for weights, name in asked:
        _assert_same(stack_factors(weights, (3, 4, 4), name=name, store=cache), hosvd(weights, (3, 4, 4)))
    assert cache.makes == len(cache.files()) == len(asked)


def test_a_caller_that_writes_into_the_factors_does_not_change_the_next_ones(tmp_path):
    cache = Store(tmp_path)
    factors = stack_factors(_weights(), (3, 4, 4), name="q", store=cache)
    factors.u2.zero_()
    _assert_same(stack_factors(_weights(), (3, 4, 4), name="q", store=cache), hosvd(_weights(), (3, 4, 4)))
    _assert_same(stack_factors(_weights(), (3, 4, 4), name="q", store=Store(tmp_path)), hosvd(_weights(), (3, 4, 4)))
    assert cache.makes == 1


def test_inference_mode_gives_ordinary_tensors(tmp_path):
    cache = Store(tmp_path)
    with torch.inference_mode():
        stack_factors(_weights(), (3, 4, 4), name="q", store=cache)
        factors = stack_factors(_weights(), (3, 4, 4), name="q", store=cache)
    assert not factors.core.is_inference()
    (torch.ones(4, requires_grad=True) @ factors.core[0]).sum().backward()


@pytest.mark.slow
def test_sixteen_processes_at_a_cold_store_decompose_once(tmp_path):
    processes, answers = _begin(16, tmp_path, 6, 96, 40)
    results = [answers.get(timeout=120) for _ in processes]
    assert sum(makes for makes, _, _ in results) == 1
    assert len({result[1:] for result in results}) == 1
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.slow
def test_a_writer_killed_half_way_leaves_nothing_that_reads_as_good(tmp_path):
    # A core of 6 x 500 x 500 float32: a file of 8 MB whose writing and flushing takes long enough to be caught in the act.
    for _ in range(5):
        (writer,), _ = _begin(1, tmp_path, 6, 500, 500)
        while writer.is_alive() and not list(tmp_path.rglob(".*.tmp")):
            time.sleep(0.0002)
        writer.kill()
        writer.join()
        if list(tmp_path.rglob(".*.tmp")) and not Store(tmp_path).files():
            break
        for path in Store(tmp_path).files():
            path.unlink()
    else:
        pytest.fail("the writer was never caught between creating its file and renaming it")
    weights, cache = _weights(6, 500), Store(tmp_path)
    _assert_same(stack_factors(weights, ("all", 9, 9), name="q", store=cache), hosvd(weights, (6, 9, 9)))
    assert cache.makes == 1
    assert len(cache.files()) == 1
    assert not list(tmp_path.rglob("*.tmp"))


def _other_weights(path: Path) -> None:
    other = Store(path.parent.parent / "elsewhere")
    stack_factors(_weights(seed=5), (3, 4, 4), name="q", store=other)
    path.write_bytes(other.files()[0].read_bytes())


def test_the_least_recently_used_go_first(tmp_path):
    first_store = Store(tmp_path)
    stack_factors(_weights(seed=0), (3, 4, 4), name="q", store=first_store)
    size = first_store.files()[0].stat().st_size
    bounded = Store(tmp_path, max_bytes=int(3.5 * size))
    for seed in (1, 2):
        stack_factors(_weights(seed=seed), (3, 4, 4), name="q", store=bounded)
    for age, path in enumerate(reversed(bounded.files())):
        os.utime(path, (time.time() - 100 - age, time.time() - 100 - age))
    stack_factors(_weights(seed=0), (3, 4, 4), name="q", store=bounded)  # used again: seed 1 is now the one to go
    stack_factors(_weights(seed=3), (3, 4, 4), name="q", store=bounded)
    fresh = Store(tmp_path)
    for seed in (0, 2, 3):
        stack_factors(_weights(seed=seed), (3, 4, 4), name="q", store=fresh)
    assert fresh.makes == 0
    stack_factors(_weights(seed=1), (3, 4, 4), name="q", store=fresh)
    assert fresh.makes == 1


def _full(_tensors, path, metadata):
    Path(path).write_bytes(b"part")
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("place", "bound", "write", "message"),
    [
        ("new", 100, stores.save_file, "CRAFT_CACHE_MAX_BYTES"),
        ("file", None, stores.save_file, r"cannot be kept in .*file/factors.*CRAFT_CACHE_DIR"),
        ("new", None, _full, "No space left"),
    ],
    ids=["larger than the bound", "no folder", "full disk"],
)
def test_what_cannot_be_kept_is_served_and_leaves_nothing(tmp_path, monkeypatch, place, bound, write, message):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(stores, "save_file", write)
    cache = Store(tmp_path / place, max_bytes=bound)
    with pytest.warns(StoreWarning, match=message):
        _assert_same(stack_factors(_weights(), (3, 4, 4), name="q", store=cache), hosvd(_weights(), (3, 4, 4)))
    assert {path.suffix for path in cache.folder.glob("*")} <= {".lock"}


def test_a_holder_of_the_lock_that_never_comes_back_does_not_stop_the_others(tmp_path, monkeypatch):
    from filelock import FileLock

    stack_factors(_weights(), (3, 4, 4), name="q", store=Store(tmp_path))
    path = Store(tmp_path).files()[0]
    path.unlink()
    monkeypatch.setattr(stores, "LOCK_PATIENCE", 0.1)
    with FileLock(path.with_suffix(".lock")), pytest.warns(StoreWarning, match="lock"):
        stack_factors(_weights(), (3, 4, 4), name="q", store=Store(tmp_path))


def test_a_good_file_is_read_from_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    stack_factors(_weights(), (3, 4, 4), name="q", store=Store(tmp_path))
    forbidden = Mock(side_effect=PermissionError("read-only"))
    monkeypatch.setattr(stores.os, "utime", forbidden)
    monkeypatch.setattr("craft.disk.FileLock", forbidden)
    cache = Store(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stack_factors(_weights(), (3, 4, 4), name="q", store=cache)
    assert cache.makes == 0


def test_environment_names_folder_and_bound(tmp_path, monkeypatch):
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CRAFT_CACHE_MAX_BYTES", "1.5 GB")
    assert (Store().root, Store().max_bytes) == (tmp_path, 1_500_000_000)
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "other"))
    assert Store().root == tmp_path / "other"
    monkeypatch.setenv("CRAFT_CACHE_MAX_BYTES", "plenty")
    with pytest.raises(ValueError, match="CRAFT_CACHE_MAX_BYTES is 'plenty'"):
        Store()


@pytest.mark.parametrize(
    "damage",
    [lambda path: os.truncate(path, path.stat().st_size // 2), lambda path: os.truncate(path, 0), _other_weights],
    ids=["cut", "empty", "other weights"],
)
def test_a_damaged_file_is_found_and_made_anew(tmp_path, damage):
    stack_factors(_weights(), (3, 4, 4), name="q", store=Store(tmp_path))
    damage(Store(tmp_path).files()[0])
    cache = Store(tmp_path)
    with pytest.warns(StoreWarning, match="made again"):
        results = stack_factors(_weights(), (3, 4, 4), name="q", store=cache)
    _assert_same(results, hosvd(_weights(), (3, 4, 4)))
    stack_factors(_weights(), (3, 4, 4), name="q", store=cache)
    assert cache.makes == 1

"""FactorStore under many processes, killed writers, damaged files, full and forbidden folders."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from craft import store as store_cli
from craft.factors import factor_file, shelf
from craft.factors.factor_file import CorruptFactors, read_factors, read_origin
from craft.factors.hashing import hash_weights
from craft.factors.hosvd import TuckerFactors, hosvd
from craft.factors.shelf import StoreWarning
from craft.factors.store import FactorStore, default_store

_CHILDREN = """
import hashlib, json, os, sys
import torch
from craft.factors.store import FactorStore
torch.set_num_threads(1)
folder = sys.argv[1]
processes, layers, features, rank = map(int, sys.argv[2:])
generator = torch.Generator().manual_seed(0)
weights = [torch.randn(features, features, generator=generator) for _ in range(layers)]
gate, start = os.pipe()
children = []
for _ in range(processes):
    child = os.fork()  # torch is loaded once for all; the store is each process's own
    if child == 0:
        os.close(start)
        os.read(gate, 1)  # returns when the parent closes the other end: all begin at once
        store = FactorStore(folder)
        factors = store.get(weights, ("all", rank, rank), name="q")
        parts = (factors.core, factors.u1, factors.u2, factors.u3)
        digest = hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()
        line = json.dumps({"made": store.decompositions, "digest": digest, "norm": factors.squared_norm})
        os.write(1, (line + chr(10)).encode())
        os._exit(0)
    children.append(child)
print(json.dumps(children), flush=True)
sys.stdin.readline()
os.close(start)
for child in children:
    os.waitpid(child, 0)
"""


def _weights(layers: int = 3, features: int = 20, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(features, features, generator=generator) for _ in range(layers)]


def _parts(factors: TuckerFactors) -> list[torch.Tensor]:
    return [factors.core, factors.u1, factors.u2, factors.u3, *factors.singular_values]


def _assert_same(one: TuckerFactors, other: TuckerFactors) -> None:
    assert one.squared_norm == other.squared_norm
    for ours, theirs in zip(_parts(one), _parts(other), strict=True):
        assert torch.equal(ours, theirs)


@contextmanager
def _children(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A parent that waits for a line on its standard input, and the ids of the processes it will let go then."""
    command = [sys.executable, "-c", _CHILDREN, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    children: list[int] = []
    try:
        assert parent.stdout is not None
        children = json.loads(parent.stdout.readline())
        yield parent, children
    finally:
        if parent.poll() is None:
            for child in children:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            parent.kill()
        parent.communicate()


def test_a_stack_is_decomposed_once_and_read_back_to_the_bit(tmp_path):
    first = FactorStore(tmp_path)
    made = first.get(_weights(), ("all", 6, 8), name="q")
    _assert_same(made, hosvd(_weights(), (3, 6, 8)))
    _assert_same(made, first.get(_weights(), (3, 6, 8), name="q"))
    second = FactorStore(tmp_path)
    _assert_same(made, second.get(_weights(), ("all", 6, 8), name="q"))
    assert (first.decompositions, second.decompositions) == (1, 0)


def test_the_largest_rank_is_kept_and_smaller_ones_are_its_slices(tmp_path):
    first = FactorStore(tmp_path)
    first.get(_weights(), (2, 12, 4), name="q")
    first.get(_weights(), (1, 3, 9), name="q")
    assert first.decompositions == 2
    second = FactorStore(tmp_path)
    for ranks in [(2, 12, 9), (1, 2, 3), (2, 7, 9)]:
        _assert_same(second.get(_weights(), ranks, name="q"), hosvd(_weights(), (2, 12, 9)).slice(ranks))
    assert second.decompositions == 0
    assert [read_origin(path)[1] for path in second.files()] == [(2, 12, 9)]


def test_other_weights_names_shapes_and_dtypes_have_other_addresses(tmp_path):
    cache = FactorStore(tmp_path)
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
        _assert_same(cache.get(weights, (3, 4, 4), name=name), hosvd(weights, (3, 4, 4)))
    assert cache.decompositions == len(cache.files()) == len(asked)


def test_a_weight_changed_in_place_is_noticed_even_behind_autograds_back(tmp_path):
    cache = FactorStore(tmp_path)
    weights = [torch.nn.Parameter(weight) for weight in _weights()]
    cache.get(weights, (3, 4, 4), name="q")
    weights[0].data[0, 0] += 1.0  # as PEFT merges: the version counter does not move
    _assert_same(cache.get(weights, (3, 4, 4), name="q"), hosvd(weights, (3, 4, 4)))


def test_a_caller_that_writes_into_the_factors_does_not_change_the_next_ones(tmp_path):
    cache = FactorStore(tmp_path)
    factors = cache.get(_weights(), (3, 4, 4), name="q")
    factors.u2.zero_()
    _assert_same(cache.get(_weights(), (3, 4, 4), name="q"), hosvd(_weights(), (3, 4, 4)))
    _assert_same(FactorStore(tmp_path).get(_weights(), (3, 4, 4), name="q"), hosvd(_weights(), (3, 4, 4)))
    assert cache.decompositions == 1


def test_hash_is_of_the_values_in_row_major_order():
    weights = _weights()
    assert hash_weights(weights) == hash_weights([weight.T.contiguous().T for weight in weights])
    assert hash_weights(weights) == hash_weights([torch.cat([weight, weight])[:20] for weight in weights])


def test_hash_sees_a_weight_changed_behind_autograds_back():
    weights = _weights()
    before = hash_weights(weights)
    weights[1].data[0, 0] = torch.nextafter(weights[1][0, 0], torch.tensor(9.0))
    assert hash_weights(weights) != before == hash_weights(_weights())


def test_inference_mode_gives_ordinary_tensors(tmp_path):
    cache = FactorStore(tmp_path)
    with torch.inference_mode():
        cache.get(_weights(), (3, 4, 4), name="q")
        factors = cache.get(_weights(), (3, 4, 4), name="q")
    assert not factors.core.is_inference()
    (torch.ones(4, requires_grad=True) @ factors.core[0]).sum().backward()


def test_bad_requests_are_refused_before_anything_is_made(tmp_path):
    cache = FactorStore(tmp_path / "cache")
    with pytest.raises(ValueError, match=r"projection 'q' has 3 stacked layers"):
        cache.get(_weights(), (4, 4, 4), name="q")
    with pytest.raises(ValueError, match="no weights"):
        cache.get([], (4, 4, 4), name="q")
    assert not (tmp_path / "cache").exists()


def test_sixteen_processes_at_a_cold_store_decompose_once(tmp_path):
    with _children(tmp_path, 16, 6, 96, 40) as (parent, _):
        output, _ = parent.communicate("go\n", timeout=120)
    found = [json.loads(line) for line in output.splitlines()]
    assert len(found) == 16
    assert sum(result["made"] for result in found) == 1
    assert len({(result["digest"], result["norm"]) for result in found}) == 1
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_writer_killed_half_way_leaves_nothing_that_reads_as_good(tmp_path):
    # A core of 6 x 500 x 500 float32: a file of 8 MB whose writing and flushing takes long enough to be caught in the act.
    for _ in range(5):
        with _children(tmp_path, 1, 6, 500, 500) as (parent, (writer,)):
            assert parent.stdin is not None
            parent.stdin.write("go\n")
            parent.stdin.flush()
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and parent.poll() is None and not list(tmp_path.rglob(".*.tmp")):
                time.sleep(0.0002)
            with suppress(ProcessLookupError):
                os.kill(writer, signal.SIGKILL)
            parent.communicate(timeout=60)
        if list(tmp_path.rglob(".*.tmp")) and not FactorStore(tmp_path).files():
            break
        for path in FactorStore(tmp_path).files():
            path.unlink()
    else:
        pytest.fail("the writer was never caught between creating its file and renaming it")
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(500, 500, generator=generator) for _ in range(6)]
    cache = FactorStore(tmp_path)
    _assert_same(cache.get(weights, ("all", 9, 9), name="q"), hosvd(weights, (6, 9, 9)))
    assert cache.decompositions == 1
    assert len(cache.files()) == 1
    assert not list(tmp_path.rglob("*.tmp"))


def _flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _replace_head(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(b"squared_norm", b"squared_form"))


def _other_weights(path: Path) -> None:
    other = FactorStore(path.parent.parent / "elsewhere")
    other.get(_weights(seed=5), (3, 4, 4), name="q")
    path.write_bytes(other.files()[0].read_bytes())


@pytest.mark.parametrize("damage", [_flip_last_byte, _cut, _empty, _replace_head, _other_weights])
def test_a_damaged_file_is_found_and_made_anew(tmp_path, damage):
    FactorStore(tmp_path).get(_weights(), (3, 4, 4), name="q")
    damage(FactorStore(tmp_path).files()[0])
    assert store_cli.main(["--dir", str(tmp_path), "verify"]) == 1
    cache = FactorStore(tmp_path)
    with pytest.warns(StoreWarning, match="made anew"):
        found = cache.get(_weights(), (3, 4, 4), name="q")
    _assert_same(found, hosvd(_weights(), (3, 4, 4)))
    assert cache.decompositions == 1
    assert store_cli.main(["--dir", str(tmp_path), "verify"]) == 0


def test_a_file_that_is_not_ours_is_corrupt_not_a_crash(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_text("hello")
    for read in (read_factors, read_origin):
        with pytest.raises(CorruptFactors, match="not a stored decomposition"):
            read(path)


def test_the_least_recently_used_go_first(tmp_path):
    one = FactorStore(tmp_path)
    one.get(_weights(seed=0), (3, 4, 4), name="q")
    size = one.files()[0].stat().st_size
    bounded = FactorStore(tmp_path, max_bytes=int(3.5 * size))
    for seed in (1, 2):
        bounded.get(_weights(seed=seed), (3, 4, 4), name="q")
    for age, path in enumerate(reversed(bounded.files())):
        os.utime(path, (time.time() - 100 - age, time.time() - 100 - age))
    bounded.get(_weights(seed=0), (3, 4, 4), name="q")  # used again: seed 1 is now the one to go
    bounded.get(_weights(seed=3), (3, 4, 4), name="q")
    fresh = FactorStore(tmp_path)
    for seed in (0, 2, 3):
        fresh.get(_weights(seed=seed), (3, 4, 4), name="q")
    assert fresh.decompositions == 0
    fresh.get(_weights(seed=1), (3, 4, 4), name="q")
    assert fresh.decompositions == 1


def test_what_is_larger_than_the_bound_is_served_but_not_kept(tmp_path):
    cache = FactorStore(tmp_path, max_bytes=100)
    with pytest.warns(StoreWarning, match="CRAFT_CACHE_MAX_BYTES"):
        _assert_same(cache.get(_weights(), (3, 4, 4), name="q"), hosvd(_weights(), (3, 4, 4)))
    assert cache.files() == []
    cache.get(_weights(), (3, 4, 4), name="q")
    assert cache.decompositions == 1  # this process still remembers it


def test_a_folder_that_cannot_be_made_is_named_and_survived(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = FactorStore(tmp_path / "file")
    with pytest.warns(StoreWarning, match=r"cannot be kept in .*file/factors.*CRAFT_CACHE_DIR"):
        _assert_same(cache.get(_weights(), (3, 4, 4), name="q"), hosvd(_weights(), (3, 4, 4)))


def test_a_full_disk_is_survived_and_leaves_nothing(tmp_path, monkeypatch):
    def full(_tensors, path, metadata):
        Path(path).write_bytes(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(factor_file, "save_file", full)
    with pytest.warns(StoreWarning, match="No space left"):
        _assert_same(FactorStore(tmp_path).get(_weights(), (3, 4, 4), name="q"), hosvd(_weights(), (3, 4, 4)))
    assert [path.suffix for path in (tmp_path / "factors").iterdir()] == [".lock"]


def test_a_holder_of_the_lock_that_never_comes_back_does_not_stop_the_others(tmp_path, monkeypatch):
    from filelock import FileLock

    FactorStore(tmp_path).get(_weights(), (3, 4, 4), name="q")
    path = FactorStore(tmp_path).files()[0]
    path.unlink()
    monkeypatch.setattr(shelf, "LOCK_PATIENCE", 0.1)
    with FileLock(path.with_suffix(".lock")), pytest.warns(StoreWarning, match="lock"):
        FactorStore(tmp_path).get(_weights(), (3, 4, 4), name="q")


def test_a_good_file_is_read_from_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    FactorStore(tmp_path).get(_weights(), (3, 4, 4), name="q")

    def forbidden(*_arguments, **_options):
        raise PermissionError("read-only")

    monkeypatch.setattr(shelf.os, "utime", forbidden)
    monkeypatch.setattr(shelf, "FileLock", forbidden)
    cache = FactorStore(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.get(_weights(), (3, 4, 4), name="q")
    assert cache.decompositions == 0


def test_environment_names_folder_and_bound(tmp_path, monkeypatch):
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CRAFT_CACHE_MAX_BYTES", "1.5 GB")
    assert (default_store().root, default_store().max_bytes) == (tmp_path, 1_500_000_000)
    assert default_store() is default_store()
    monkeypatch.setenv("CRAFT_CACHE_DIR", str(tmp_path / "other"))
    assert default_store().root == tmp_path / "other"
    monkeypatch.setenv("CRAFT_CACHE_MAX_BYTES", "plenty")
    with pytest.raises(ValueError, match="CRAFT_CACHE_MAX_BYTES is 'plenty'"):
        default_store()


def test_a_store_travels_to_another_process_without_what_it_holds(tmp_path):
    cache = FactorStore(tmp_path, max_bytes=10**6)
    cache.get(_weights(), (3, 4, 4), name="q")
    copy = pickle.loads(pickle.dumps(cache))  # noqa: S301
    assert (copy.root, copy.max_bytes, copy.decompositions) == (tmp_path, 10**6, 0)


def test_commands_list_and_clear(tmp_path, capsys):
    cache = FactorStore(tmp_path)
    assert store_cli.main(["--dir", str(tmp_path), "list"]) == 0
    assert "no decompositions" in capsys.readouterr().out
    cache.get(_weights(), (3, 4, 5), name="q")
    cache.get(_weights(), (3, 4, 5), name="value")
    (cache.folder / f".{'a' * 40}.host.1.x.tmp").write_bytes(b"torn")
    assert store_cli.main(["--dir", str(tmp_path), "list"]) == 0
    shown = capsys.readouterr().out
    assert "3 x 20 x 20" in shown
    assert "3, 4, 5" in shown
    assert "2 decompositions" in shown
    keys = [path.stem for path in cache.files()]
    assert store_cli.main(["--dir", str(tmp_path), "clear", "zz"]) == 2
    assert store_cli.main(["--dir", str(tmp_path), "clear", keys[0][:12]]) == 0
    assert [path.stem for path in cache.files()] == keys[1:]
    assert store_cli.main(["--dir", str(tmp_path), "clear"]) == 0
    assert list(cache.folder.iterdir()) == []


def test_the_command_is_there_as_a_module(tmp_path):
    command = [sys.executable, "-m", "craft.store", "--dir", str(tmp_path), "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "holds no decompositions" in done.stdout
    assert not done.stderr

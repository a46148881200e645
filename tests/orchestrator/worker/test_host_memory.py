"""`resources.memory`: what is taken counts, files that are only mapped do not, and what is too much is refused at once."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from craft.trainer.memory import out_of_memory
from orchestrator.worker.host_memory import memory_limit, unwritten_bytes
from orchestrator.worker.settings import WorkerSettings

MIB = 2**20
FILE, SHARE = 256 * MIB, 160 * MIB


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_file({f"layer{number}": torch.full((FILE // 16,), float(number)) for number in range(4)}, path)
    return path


@pytest.fixture
def limited() -> Iterator[None]:
    gc.collect()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limit(WorkerSettings("s", None, 1, memory_bytes=SHARE)):
        yield
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert "from_file" not in vars(torch.UntypedStorage)


def refused(megabytes: int) -> bool:
    """Whether so much is refused, to numpy and torch alike; nothing of it is touched."""
    errors: list[Exception] = []
    for take in (lambda: np.empty(megabytes * MIB, np.uint8), lambda: torch.empty(megabytes * MIB, dtype=torch.uint8)):
        try:
            take()
        except (MemoryError, RuntimeError) as error:
            errors.append(error)
    assert len(errors) in (0, 2)
    assert all(map(out_of_memory, errors))
    return bool(errors)


def test_a_file_larger_than_the_share_is_mapped_and_the_share_stays_what_it_is(limited: None, weights: Path) -> None:
    assert not refused(80)
    with safe_open(weights, framework="pt") as file:
        kept = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118  (safe_open is no mapping)
    assert sum(float(one[0]) for one in kept) == 6.0
    assert not refused(80)
    assert refused(240)


def test_a_file_that_was_let_go_leaves_no_room_behind(weights: Path) -> None:
    with memory_limit(WorkerSettings("s", None, 1, memory_bytes=SHARE)) as settle:
        for _ in range(3):
            kept = load_file(weights)
            del kept
        settle()
        assert refused(240)
        assert not refused(80)


def test_pages_that_are_written_count(weights: Path) -> None:
    with memory_limit(WorkerSettings("s", None, 1, memory_bytes=400 * MIB)) as settle:
        kept = load_file(weights)
        settle()
        assert not refused(250)
        for one in kept.values():
            one.add_(1)
        with safe_open(weights, framework="pt"):  # another file is mapped, so all of them are counted anew
            assert refused(250)


def test_a_large_array_is_refused_before_it_is_touched(limited: None) -> None:
    with pytest.raises(MemoryError):
        np.ones(2**37)
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2**37)
    assert out_of_memory(caught.value)


def test_only_private_writable_files_are_counted() -> None:
    def mapping(head: str, size: int, anonymous: int = 0, swap: int = 0) -> list[str]:
        return [head, f"Size: {size} kB", "Rss: 4 kB", f"Anonymous: {anonymous} kB", f"Swap: {swap} kB", "VmFlags: rd wr mr"]

    lines = [
        *mapping("7f00-7f10 rw-p 00000000 fe:00 26 /data/a model.safetensors", 100, anonymous=30, swap=10),
        *mapping("7f20-7f30 rw-p 00000000 00:00 0", 1000),
        *mapping("7f30-7f40 rw-p 00000000 00:00 0 [heap]", 1000),
        *mapping("7f40-7f50 r--p 00000000 fe:00 27 /usr/lib/libc.so", 1000),
        *mapping("7f50-7f60 rw-s 00000000 fe:00 28 /dev/shm/x", 1000),
        *mapping("7f60-7f70 rw-p 00000000 fe:00 29 /dev/zero", 1000),
    ]
    assert unwritten_bytes(lines) == 60 * 1024

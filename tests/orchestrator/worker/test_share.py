"""A trial's share of memory: what is taken counts, files that are only mapped do not, and too much is refused at once."""

from __future__ import annotations

import ctypes
import os
import resource
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from craft.results import Unavailable, is_out_of_memory
from orchestrator.plan.ways import CONTEXT_BYTES, Gpu, usable_gpus
from orchestrator.worker.crash import is_transient, reason
from orchestrator.worker.share import (
    GpuFailed,
    choose_segments,
    keep_to_share,
    limit_gpu_memory,
    limit_host_memory,
    require_gpu,
)


def with_cuda(monkeypatch: pytest.MonkeyPatch, count: int = 1, memory: int = 2**34) -> None:
    """A torch that has CUDA and `count` GPUs, whose products are made by the processor."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    gpu = SimpleNamespace(name="H0", total_memory=memory)
    facts = {"init": None, "is_available": count > 0, "device_count": count, "current_device": 0, "get_device_properties": gpu}
    for name, fact in facts.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, fact=fact: fact)
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: ones(*size))


def refusal() -> Unavailable:
    with pytest.raises(Unavailable) as refused:
        require_gpu()
    return refused.value


@pytest.mark.parametrize(
    ("share", "ids", "cuda", "hip"),
    [
        (0.0, [], "", "-1"),
        (0.25, [], "0,1", "0,1"),
        (0.5, [1], "1", "1"),
        (0.5, ["MIG-aaaa"], "MIG-aaaa", "MIG-aaaa"),
        (0.5, ["GPU-bbbb"], "GPU-bbbb", "GPU-bbbb"),
    ],
)
def test_a_trial_sees_the_gpu_that_ray_gave_it_and_none_without_a_share(
    share: float, ids: list, cuda: str, hip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ | {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"})
    keep_to_share(share, ids)
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HIP_VISIBLE_DEVICES"]) == (cuda, hip)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    if not share:
        assert torch.cuda._parse_visible_devices() == []
        monkeypatch.setattr(torch.version, "hip", "6.4")
        assert torch.cuda._parse_visible_devices() == []


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_a_torch_without_cuda_is_refused_with_its_machine_and_may_be_tried_again() -> None:
    error = refusal()
    assert socket.gethostname() in str(error)
    assert f"torch {torch.__version__} is built without CUDA" in str(error)
    assert is_transient(error)
    assert not is_out_of_memory(error)
    assert reason(error) == str(error)
    assert usable_gpus() == []


def test_a_gpu_that_multiplies_wrongly_or_does_not_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cuda(monkeypatch)
    assert require_gpu() == Gpu("H0", 2**34)
    assert usable_gpus() == [Gpu("H0", 2**34)]
    zeros = torch.zeros
    monkeypatch.setattr(torch, "ones", lambda *size, device: zeros(*size))
    assert "gives 0 instead of 262144" in str(refusal())
    assert isinstance(refusal(), GpuFailed)

    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update it.")

    with monkeypatch.context() as patch:
        with_cuda(patch, count=2)
        assert "sees 2 and its trial has 1, or a share of one. Unset RAY_EXPERIMENTAL_NOSET" in str(refusal())
        assert not isinstance(refusal(), GpuFailed), "waiting does not help"
    monkeypatch.setattr(torch.cuda, "init", too_old)
    assert "too old (found version 11040). Please update it." in str(refusal()), "the driver's own words"


def test_without_a_proc_there_is_no_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("orchestrator.worker.share.STATUS", tmp_path / "absent")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limit_host_memory(2**20):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_gpus_limit_leaves_room_for_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    total = 24 * 2**30
    with_cuda(monkeypatch, memory=total)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    for share in (0, 0.25, 1):
        limit_gpu_memory(share)
    assert shares == [0.25 - CONTEXT_BYTES / total]
    with pytest.raises(Unavailable, match=r"0\.02 of this GPU is 491\.5 MiB.*a larger share"):
        limit_gpu_memory(0.02)


class Nvml:
    """A driver's library for watching GPUs: `opens` is what its start returns, `modes` whether each GPU is divided."""

    def __init__(self, opens: int = 0, modes: tuple[int, ...] = (0,)) -> None:
        self.nvmlInit_v2 = lambda: opens
        self.modes = modes

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.modes)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, gpu: Any) -> int:
        gpu._obj.value = index
        return 0

    def nvmlDeviceGetMigMode(self, gpu: Any, now: Any, later: Any) -> int:
        now._obj.value = self.modes[gpu.value or 0]
        return 0 if self.modes[gpu.value or 0] is not None else 3


@pytest.mark.parametrize(
    ("theirs", "nvml", "chosen"),
    [
        ({}, Nvml(), True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, Nvml(modes=(0, 0)), True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, Nvml(), False),
        ({"PYTORCH_ALLOC_CONF": "backend:native"}, Nvml(), False),
        ({"CUDA_VISIBLE_DEVICES": "MIG-aaaa"}, Nvml(), False),
        ({"CUDA_VISIBLE_DEVICES": "0", "NVIDIA_VISIBLE_DEVICES": "MIG-aaaa"}, Nvml(), False),
        ({"CUDA_VISIBLE_DEVICES": "0"}, Nvml(modes=(0, 1)), False),
        ({}, Nvml(opens=9), False),
        ({}, None, False),
    ],
)
def test_the_allocators_segments_are_chosen_where_they_work_unless_the_user_has_chosen(
    theirs: dict, nvml: Nvml | None, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> Nvml:
        if nvml is None:
            raise OSError(name)
        return nvml

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(os, "environ", dict(theirs))
    choose_segments()
    assert os.environ == (theirs | ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"} if chosen else {}))

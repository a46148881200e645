"""A process computes on its share of a GPU. None of this has run on a GPU: torch's answers are stand-ins here."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

import pytest
import torch

from craft.results import Unavailable
from craft.trainer.memory import is_out_of_memory
from orchestrator.plan.gpu_shares import Gpu, usable_gpus
from orchestrator.worker.crash import is_transient, reason
from orchestrator.worker.gpus import keep_to_share, require_gpu


def with_cuda(monkeypatch: pytest.MonkeyPatch, count: int = 1) -> None:
    """A torch that has CUDA and `count` GPUs, whose products are made by the processor."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: SimpleNamespace(name=f"H{index}", total_memory=2**34)
    )
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: ones(*size))


def refusal() -> Unavailable:
    with pytest.raises(Unavailable) as refused:
        require_gpu()
    return refused.value


def test_without_a_share_no_gpu_is_visible_and_a_share_keeps_what_ray_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ | {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"})
    keep_to_share(0.25)
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HIP_VISIBLE_DEVICES"]) == ("0,1", "0,1")
    keep_to_share(0.0)
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HIP_VISIBLE_DEVICES"]) == ("", "-1")
    assert torch.cuda._parse_visible_devices() == []
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert torch.cuda._parse_visible_devices() == []


@pytest.mark.parametrize(
    ("ids", "visible"), [((1,), "1"), (["1"], "1"), (["MIG-aaaa"], "MIG-aaaa"), (["GPU-bbbb"], "GPU-bbbb"), ((), "0,1")]
)
def test_a_share_sees_the_gpu_that_ray_gave_it(ids: list, visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"})
    keep_to_share(0.5, ids)
    assert {os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HIP_VISIBLE_DEVICES"]} == {visible}
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_process_that_sees_several_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cuda(monkeypatch, count=2)
    assert "sees 2 and its trial has 1, or a share of one. Unset RAY_EXPERIMENTAL_NOSET" in str(refusal())
    assert is_transient(refusal())


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_a_torch_without_cuda_is_refused_with_its_machine_and_may_be_tried_again() -> None:
    error = refusal()
    assert socket.gethostname() in str(error)
    assert f"torch {torch.__version__} is built without CUDA" in str(error)
    assert is_transient(error)
    assert not is_out_of_memory(error)
    assert reason(error) == str(error)
    assert usable_gpus() == []


def test_the_driver_s_own_words_are_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cuda(monkeypatch)

    def too_old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update it.")

    monkeypatch.setattr(torch.cuda, "init", too_old)
    assert "too old (found version 11040). Please update it." in str(refusal())


def test_a_gpu_that_multiplies_wrongly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cuda(monkeypatch)
    assert require_gpu() == Gpu("H0", 2**34)
    assert usable_gpus() == [Gpu("H0", 2**34)]
    zeros = torch.zeros
    monkeypatch.setattr(torch, "ones", lambda *size, device: zeros(*size))
    assert "gives 0 instead of 262144" in str(refusal())

"""Memory on a real GPU: the fence of a share, smaller batches after the GPU's own out-of-memory error, the host's limit."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from craft.nvml import gpu_of
from craft.spec import RunSpec
from craft.trainer.hf_trainer import RunTrainer
from craft.trainer.training import train_run
from orchestrator.plan.gpu_shares import CONTEXT_BYTES
from orchestrator.plan.trial import TrialSpec
from orchestrator.sweepfile.resources import Resources
from orchestrator.worker.fences import data_bytes, fence_gpu, fenced_host
from orchestrator.worker.gpus import keep_to_share
from orchestrator.worker.run_trial import run_trial
from tests.gpu.elsewhere import in_new_process

Figure = Callable[[str], None]
MIB, GIB = 2**20, 2**30


pytestmark = pytest.mark.gpus(1)


def take(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def total() -> int:
    return torch.cuda.get_device_properties(0).total_memory


def greedy(share: float) -> int:
    """Takes memory until it is refused. Bytes that it got."""
    keep_to_share(share)
    fence_gpu(share)
    held: list[Any] = []
    with suppress(torch.OutOfMemoryError):
        while True:
            held.append(take(64 * MIB))
    return len(held) * 64 * MIB


def modest(share: float) -> float:
    """Computes in half of its share while a neighbour is greedy."""
    keep_to_share(share)
    fence_gpu(share)
    ones = torch.ones(512, 512, device="cuda")
    kept = [take(int(share * total() / 2 / 64)) for _ in range(64)]
    found = [(ones @ ones).sum().item() for _ in range(200)]
    del kept
    return max(abs(one - 512**3) for one in found)


def test_a_greedy_trial_runs_out_alone(figure: Figure) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        neighbour = pool.submit(modest, 0.25)
        taken = pool.submit(greedy, 0.25).result()
        assert neighbour.result() == 0
    share = total() / 4 - CONTEXT_BYTES
    figure(f"0.25 of {total() / GIB:.1f} GiB: got {taken / GIB:.2f} GiB of {share / GIB:.2f}")
    assert share - 256 * MIB <= taken <= share


def context_beside_tensors() -> float | None:
    """Bytes of the board in use because of this process, without what its tensors have reserved; None if nobody tells."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    gpu = gpu_of(0)
    ones = torch.ones(2048, 2048, device="cuda", requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(*[ones.bfloat16().view(1, 16, 2048, 128)] * 3).sum().backward()
    (ones.double() @ ones.double()).sum().item()
    used = gpu.memory_used() if gpu else None
    return None if used is None else used - before - torch.cuda.memory_reserved()


def test_a_context_takes_what_the_plan_counts_for_it(figure: Figure) -> None:
    pytest.importorskip("pynvml", reason="no pynvml: pip install -e '.[gpu]'")
    if torch.cuda.device_count() > 1:
        pytest.skip("on one GPU alone: NVML and CUDA may number several differently")
    found = in_new_process(context_beside_tensors)
    assert found is not None
    figure(f"{found / MIB:.0f} MiB, {CONTEXT_BYTES / MIB:.0f} counted")
    assert found <= CONTEXT_BYTES


def shrinks(run: RunSpec, folder: Path) -> tuple[list[int], Any]:
    """An example needs 0.6 GiB of the fence's four: micro-batches of 16 and 8 do not fit, one of 4 does."""
    tried: list[int] = []
    step = RunTrainer.training_step
    share = (4 * GIB + CONTEXT_BYTES) / total()

    def taking(self: RunTrainer, model: Any, inputs: dict[str, Any], *more: Any) -> Any:
        tried.append(len(inputs["input_ids"]))
        room = take(int(0.6 * GIB) * tried[-1])
        loss = step(self, model, inputs, *more)
        del room
        return loss

    RunTrainer.training_step = taking  # type: ignore[method-assign]
    fence_gpu(share)
    trial = TrialSpec(run, "c0ffee", "CRAFT", resources=Resources(gpu=share))
    return tried, run_trial(trial, folder, lambda progress: None).result


def test_memory_that_runs_out_is_answered_by_smaller_batches(
    tiny_spec: Callable[..., RunSpec], tmp_path: Path, figure: Figure
) -> None:
    run = tiny_spec(training={"batch_size": 16, "epochs": 1, "learning_rate": 1e-3})
    quiet = train_run(run, tmp_path / "quiet").metrics["search_loss"]
    tried, result = in_new_process(shrinks, run, tmp_path / "trial")
    figure(f"micro-batches {', '.join(map(str, dict.fromkeys(tried)))}")
    assert result.status == "finished", result.error
    assert list(dict.fromkeys(tried)) == [16, 8, 4]
    assert result.notes[0] == "micro-batches of 4 x 4 and evaluation batches of 16 after memory ran out"
    assert result.metrics["search_loss"] == pytest.approx(quiet, rel=1e-3)


def limited(spec: RunSpec, folder: Path) -> tuple[int, int, bool]:
    """VmData before and after CUDA starts; whether a run fits under a limit of 2 GiB, and twice as much is refused."""
    before = data_bytes()
    torch.ones(64, 64, device="cuda").sum().item()
    after = data_bytes()
    with fenced_host(2 * GIB):
        torch.empty(64 * MIB, dtype=torch.uint8).pin_memory()
        take(4 * GIB)  # the GPU's memory is none of the host's
        train_run(spec, folder)
        try:
            np.empty(4 * GIB, np.uint8)
        except MemoryError:
            return before, after, True
    return before, after, False


def test_the_hosts_limit_begins_above_what_cuda_maps(tiny_spec: Callable[..., RunSpec], tmp_path: Path, figure: Figure) -> None:
    before, after, refused = in_new_process(limited, tiny_spec(), tmp_path)
    figure(f"VmData {before / GIB:.2f} GiB, {after / GIB:.2f} once CUDA has started")
    assert refused

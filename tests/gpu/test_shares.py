"""What a trial sees and may take: its share of a GPU, or none; a GPU that torch cannot use is refused with the reason.

Sweeps run on a real Ray whose machine has GPUs; without one, on a Ray that declares GPUs which torch cannot use.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from craft.results import Unavailable
from craft.spec import RunSpec
from craft.trainer.loop import Loop
from craft.trainer.training import train_run
from orchestrator.plan.trial import Job, PlannedTrial
from orchestrator.plan.ways import CONTEXT_BYTES, Gpu
from orchestrator.sweepfile.resources import Resources
from orchestrator.worker.run_job import run_job
from orchestrator.worker.share import keep_to_share, limit_gpu_memory, require_gpu
from tests.craft.conftest import MakeSpec
from tests.gpu.conftest import Figure, in_new_process
from tests.orchestrator.plans import count
from tests.orchestrator.recorded import results_of
from tests.orchestrator.tune.test_joined import sweep_of

MIB, GIB = 2**20, 2**30


@pytest.fixture
def ray() -> Any:
    return pytest.importorskip("ray", reason="no ray: pip install -e .")


@pytest.fixture
def cluster(ray: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a machine with two cores and one GPU."""
    from tests.orchestrator.stand_in import ray_cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with ray_cluster(num_cpus=2, num_gpus=1) as started:
        yield started.address


def seen() -> int:
    return torch.cuda.device_count()


def required() -> Gpu:
    keep_to_share(1, [os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]])
    return require_gpu()


def test_without_a_share_a_process_sees_none() -> None:
    assert in_new_process(seen, gpu=0) == 0


@pytest.mark.gpus(1)
def test_with_a_share_it_multiplies_on_it(figure: Figure) -> None:
    gpu = in_new_process(required)
    figure(f"{gpu.name}, {gpu.bytes / 2**30:.1f} GiB")
    assert gpu.bytes > 2**30


def test_a_gpu_that_is_hidden_is_refused_with_the_reason(figure: Figure) -> None:
    with pytest.raises(Unavailable) as refused:
        in_new_process(required, gpu=0)
    figure(str(refused.value))
    assert "gave a GPU that torch cannot use" in str(refused.value)


def test_trials_of_a_sweep_see_their_shares(device: torch.device, cluster: str, tmp_path: Path, figure: Figure) -> None:
    from tests.orchestrator.stand_in import run_sweep

    log = str(tmp_path / "log")

    def train(spec: Any, directory: Path, *, report: Any, resume_from: Any, on_step: Any) -> Any:
        import os
        from pathlib import Path

        import torch

        from craft.results import Counts, RunResult

        with Path(log).open("a") as file:
            file.write(f"{spec.method} {os.environ['CUDA_VISIBLE_DEVICES'] or 'none'} {torch.cuda.device_count()}\n")
        adapter = directory / "adapter"
        adapter.mkdir()
        return RunResult({"score": 1.0}, Counts(10, 2, 100, 40), adapter, 1, 1, 1.0)

    blocks = "[{method: lora, rank: 2}, {method: full, resources: {gpu: 0.5}}]"
    outcome = run_sweep(count(sweep_of(tmp_path, "{cpu: 1}", blocks)), tmp_path / "t", address=cluster, quiet=True, train=train)
    assert len(outcome.ended("finished")) == 4, results_of(outcome)
    lines = set(Path(log).read_text().splitlines())
    figure("; ".join(sorted(lines)))
    assert lines == {"lora none 0", f"full 0 {1 if device.type == 'cuda' else 0}"}


def test_check_multiplies_in_a_task_with_a_share(ray: Any, device: torch.device, cluster: str, figure: Figure) -> None:
    from orchestrator.tune.cluster import try_gpus

    ray.init(address=cluster, log_to_driver=False)
    (answer,) = try_gpus(0.5)
    figure(str(answer.content or answer.error))
    if device.type == "cuda":
        assert answer.content.name == torch.cuda.get_device_name(0)
    else:
        assert "gave a GPU that torch cannot use" in answer.error


def take(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda")


def total() -> int:
    return torch.cuda.get_device_properties(0).total_memory


def greedy(share: float) -> int:
    """Takes memory until it is refused. Bytes that it got."""
    keep_to_share(share)
    limit_gpu_memory(share)
    held: list[Any] = []
    with suppress(torch.OutOfMemoryError):
        while True:
            held.append(take(64 * MIB))
    return len(held) * 64 * MIB


def modest(share: float) -> float:
    """Computes in half of its share while a neighbour is greedy."""
    keep_to_share(share)
    limit_gpu_memory(share)
    ones = torch.ones(512, 512, device="cuda")
    kept = [take(int(share * total() / 2 / 64)) for _ in range(64)]
    sums = [(ones @ ones).sum().item() for _ in range(200)]
    del kept
    return max(abs(value - 512**3) for value in sums)


@pytest.mark.gpus(1)
def test_a_greedy_trial_runs_out_alone(figure: Figure) -> None:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        neighbour = pool.submit(modest, 0.25)
        taken = pool.submit(greedy, 0.25).result()
        assert neighbour.result() == 0
    share = total() / 4 - CONTEXT_BYTES
    figure(f"0.25 of {total() / GIB:.1f} GiB: got {taken / GIB:.2f} GiB of {share / GIB:.2f}")
    assert share - 256 * MIB <= taken <= share


def shrinks(run: RunSpec, folder: Path) -> tuple[list[int], Any]:
    """An example needs 0.6 GiB of the four that the limit allows: micro-batches of 16 and 8 do not fit, one of 4 does."""
    tried: list[int] = []
    sum_losses = Loop._sum_losses
    share = (4 * GIB + CONTEXT_BYTES) / total()

    def taking(self: Loop, batch: dict[str, Any]) -> Any:
        tried.append(len(batch["input_ids"]))
        room = take(int(0.6 * GIB) * tried[-1])
        loss = sum_losses(self, batch)
        del room
        return loss

    Loop._sum_losses = taking  # type: ignore[method-assign]
    limit_gpu_memory(share)
    trial = PlannedTrial(run, "c0ffee", "CRAFT", resources=Resources(gpu=share))
    return tried, run_job(Job(trial), folder, lambda progress: None)[0].result


@pytest.mark.gpus(1)
def test_memory_that_runs_out_is_answered_by_smaller_batches(tiny_spec: MakeSpec, tmp_path: Path, figure: Figure) -> None:
    run = tiny_spec(training={"batch_size": 16, "epochs": 1, "learning_rate": 1e-3})
    quiet = train_run(run, tmp_path / "quiet").metrics["search_loss"]
    tried, result = in_new_process(shrinks, run, tmp_path / "trial", gpu=0.5)
    figure(f"micro-batches {', '.join(map(str, dict.fromkeys(tried)))}")
    assert result.status == "finished", result.error
    assert list(dict.fromkeys(tried)) == [16, 8, 4]
    assert result.notes[0] == "micro-batches of 4 x 4 and evaluation batches of 16 after memory ran out"
    assert result.metrics["search_loss"] == pytest.approx(quiet, rel=1e-3)

"""What a trial sees: its share of a GPU, or none; a GPU that torch cannot use is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.driver.options import RunOptions
from orchestrator.plan.gpu_shares import Gpu
from orchestrator.worker.gpus import GpuUnusable, keep_to_share, require_gpu
from tests.gpu.elsewhere import in_new_process

Figure = Callable[[str], None]
ABSENT = "99"


def seen(share: float) -> int:
    keep_to_share(share)
    return torch.cuda.device_count()


def required() -> Gpu:
    keep_to_share(1)
    return require_gpu()


def test_without_a_share_a_process_sees_none() -> None:
    assert in_new_process(seen, 0) == 0


@pytest.mark.gpus(1)
def test_with_a_share_it_multiplies_on_it(figure: Figure) -> None:
    gpu = in_new_process(required)
    figure(f"{gpu.name}, {gpu.bytes / 2**30:.1f} GiB")
    assert gpu.bytes > 2**30


def test_a_gpu_that_is_hidden_is_refused_with_the_reason(figure: Figure) -> None:
    with pytest.raises(GpuUnusable) as refused:
        in_new_process(required, hidden=True)
    figure(str(refused.value))
    assert "gave a GPU that torch cannot use" in str(refused.value)


def test_trials_of_a_sweep_see_their_shares(
    device: torch.device, cluster: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    from orchestrator.tune.runner import run_sweep
    from tests.orchestrator.tune.test_gpus import plan_of

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
    options = RunOptions(tmp_path / "t", address=cluster("0"), verbosity="quiet")
    outcome = run_sweep(plan_of(tmp_path, "{cpu: 1}", blocks), options, train=train)
    assert len(outcome.finished) == 4, outcome.results
    lines = set(Path(log).read_text().splitlines())
    figure("; ".join(sorted(lines)))
    assert lines == {"lora none 0", f"full 0 {1 if device.type == 'cuda' else 0}"}


def test_a_trial_whose_gpu_is_not_there_fails_with_the_reason_and_may_be_tried_again(
    cluster: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    from orchestrator.tune.runner import run_sweep
    from tests.orchestrator.tune.test_gpus import plan_of

    options = RunOptions(tmp_path / "t", address=cluster(ABSENT), max_failures=0, verbosity="quiet")
    outcome = run_sweep(plan_of(tmp_path, "{cpu: 1, gpu: 1}", count=False), options)
    results = [outcome.results[key] for key in outcome.failed]
    assert len(results) == 2
    figure(results[0].error or "")
    assert all("gave a GPU that torch cannot use" in (result.error or "") for result in results)
    assert all(result.retryable for result in results)


def test_the_doctor_multiplies_in_a_task_with_a_share(
    ray: Any, device: torch.device, cluster: Callable[[str], str], figure: Figure
) -> None:
    from orchestrator.tune.cluster import try_gpus

    ray.init(address=cluster("0"), log_to_driver=False)
    (answer,) = try_gpus(0.5)
    figure(str(answer.content or answer.error))
    if device.type == "cuda":
        assert answer.content.name == torch.cuda.get_device_name(0)
    else:
        assert "gave a GPU that torch cannot use" in answer.error

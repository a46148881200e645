"""Processes of trials: one that stays warm keeps nothing of its trials, one whose GPU is in a bad state is given up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from craft.spec import RunSpec
from orchestrator.driver.options import RunOptions
from orchestrator.plan.trial import TrialSpec
from orchestrator.worker.settings import WorkerSettings
from orchestrator.worker.worker import work
from tests.gpu.elsewhere import in_new_process

Figure = Callable[[str], None]
MIB = 2**20


def short_trials(spec: RunSpec, folder: Path, count: int, kind: str) -> list[tuple[int, int]]:
    """After each of `count` trials in one process: bytes of the GPU that are reserved, bytes of the host."""
    settings = WorkerSettings(str(folder / "storage"), str(folder / "scratch"), 1, gpu=0.5 if kind == "cuda" else 0.0)
    reports: list[dict[str, Any]] = []
    found = []
    for seed in range(count):
        trial = TrialSpec(spec.model_copy(update={"seed": seed}), "c0ffee", "CRAFT")
        work(trial.key, json.dumps(trial.to_json()), settings, lambda told, _folder: reports.append(told))
        assert reports[-1]["result"]["status"] == "finished", reports[-1]
        found.append((torch.cuda.memory_reserved() if kind == "cuda" else 0, psutil.Process().memory_info().rss))
    return found


def test_fifty_trials_in_one_process_leave_nothing(
    device: torch.device, tiny_spec: Callable[..., RunSpec], tmp_path: Path, figure: Figure
) -> None:
    count = 50 if device.type == "cuda" else 12
    spec = tiny_spec(training={"max_steps": 2})
    found = in_new_process(short_trials, spec, tmp_path, count, device.type)
    early, late = found[count // 5], found[-1]
    told = [f"{one / MIB:.0f} to {other / MIB:.0f} MiB" for one, other in zip(early, late, strict=True)]
    figure(f"{count} trials: GPU {told[0]}, host {told[1]}")
    assert late[0] <= early[0] + 4 * MIB
    assert late[1] <= 1.05 * early[1] + 64 * MIB


def test_a_failed_assertion_on_the_device_is_left_to_a_new_process(
    device: torch.device, cluster: Callable[[str], str], tmp_path: Path, figure: Figure
) -> None:
    from orchestrator.tune.runner import run_sweep
    from tests.orchestrator.tune.test_gpus import plan_of

    log, kind = str(tmp_path / "log"), device.type

    def train(spec: Any, directory: Path, *, report: Any, resume_from: Any, on_step: Any) -> Any:
        import os
        from pathlib import Path

        import torch

        from craft.results import Counts, RunResult

        first = not Path(log).exists()
        with Path(log).open("a") as file:
            file.write(f"{os.getpid()}\n")
        if first and kind == "cuda":
            torch.zeros(2, device="cuda")[torch.tensor([5], device="cuda")]
            torch.cuda.synchronize()
        elif first:
            raise RuntimeError("CUDA error: device-side assert triggered")
        torch.ones(8, 8, device=kind).sum().item()
        adapter = directory / "adapter"
        adapter.mkdir()
        return RunResult({"score": 1.0}, Counts(10, 2, 100, 40), adapter, 1, 1, 1.0)

    options = RunOptions(tmp_path / "t", address=cluster("0"), max_concurrent=1, max_failures=1, verbosity="quiet")
    outcome = run_sweep(plan_of(tmp_path, "{cpu: 1, gpu: 0.5}"), options, train=train)
    assert len(outcome.finished) == 2, outcome.results
    processes = Path(log).read_text().split()
    figure(f"{len(processes)} starts in {len(set(processes))} processes")
    assert len(processes) == 3
    assert processes[0] not in processes[1:]

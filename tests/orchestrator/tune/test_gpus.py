"""Real Ray with machines that declare GPUs which torch cannot use: what trials see there, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from craft.results import Counts
from orchestrator.plan.plan import make_plan
from orchestrator.sweepfile.sweep import Sweep
from tests.orchestrator.plans import count, toy_sweep
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import ray_cluster, run_sweep

pytestmark = pytest.mark.skipif(torch.version.cuda is not None, reason="this torch may be able to use GPUs")
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SMALL = "training: {max_steps: 2, batch_size: 4, max_length: 16, train_examples: 16, eval_examples: 8}\n"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a machine with two cores and two GPUs, which the driver's environment lists; with the parameter
    "not isolated" Ray makes both visible to every process."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    if getattr(request, "param", "isolated") == "not isolated":
        monkeypatch.setenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1")
    with ray_cluster(num_cpus=2, num_gpus=2) as cluster:
        yield cluster.address


def sweep_of(folder: Path, resources: str, blocks: str = "[{method: lora, rank: 2}]") -> Sweep:
    text = f"model: {MODEL}\ntasks: [toy/sentiment]\nseeds: [0, 1]\nresources: {resources}\nspace: {blocks}\n{SMALL}"
    return toy_sweep(folder, text)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["isolated", "not isolated"], indirect=True)
def test_a_trial_sees_its_share_alone_also_in_a_process_that_is_used_again(tmp_path: Path, cluster: str) -> None:
    log = str(tmp_path / "log")

    def train(spec, directory, *, report, resume_from, on_step):
        import os
        from pathlib import Path

        from craft.results import RunResult

        with Path(log).open("a") as file:
            file.write(f"{spec.method} {os.environ['CUDA_VISIBLE_DEVICES'] or 'none'} {os.getpid()}\n")
        adapter = directory / "adapter"
        adapter.mkdir()
        return RunResult({"score": 1.0}, Counts(10, 2, 100, 40), adapter, 1, 1, 1.0)

    blocks = "[{method: lora, rank: {values: [2, 4]}}, {method: full, resources: {gpu: 0.5}}]"
    plan, options = count(sweep_of(tmp_path, "{cpu: 1}", blocks)), {"address": cluster, "max_concurrent": 1}
    outcome = run_sweep(plan, tmp_path / "t", quiet=True, train=train, **options)
    assert len(outcome.ended("finished")) == 6, results_of(outcome)
    lines = [line.split() for line in Path(log).read_text().splitlines()]
    assert {(method, seen) for method, seen, _ in lines} in ({("lora", "none"), ("full", one)} for one in "01")
    assert len({pid for method, _, pid in lines if method == "lora"}) < 4


@pytest.mark.cluster
@pytest.mark.slow
def test_a_share_that_torch_cannot_use_fails_at_once_and_goes_on_where_it_can(tmp_path: Path, cluster: str) -> None:
    options = {"folder": tmp_path / "t", "address": cluster, "max_failures": 1, "quiet": True, "resume": True}
    outcome = run_sweep(make_plan(sweep_of(tmp_path, "{cpu: 1, gpu: 1}")), **options)
    assert len(outcome.ended("failed")) == 2
    for result in results_of(outcome).values():
        assert "gave a GPU that torch cannot use" in result.error
        assert result.error.endswith("(2 times)")
        assert result.retryable
    # The share is no part of a trial's name.
    outcome = run_sweep(make_plan(sweep_of(tmp_path, "{cpu: 1}")), **options)
    assert len(outcome.ended("finished")) == 2, results_of(outcome)

"""What each trial gets: the file's `resources`, and in a block of its own what that block says instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from craft.processes import make_store
from craft.results import Counts
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tune.crew import _Actors, share_of
from orchestrator.tune.engine import config_of
from tests.orchestrator.plans import count, toy_sweep
from tests.orchestrator.recorded import results_of

BLOCKS = "  - {method: craft, ranks: [all, 8, 8]}\n  - {method: full, resources: {cpu: 2, memory: 2 GiB}}\n"


def sweep_of(folder: Path, resources: str = "{cpu: 1, memory: 1 GiB}", blocks: str = BLOCKS) -> Sweep:
    return toy_sweep(folder, f"resources: {resources}\nstorage: {folder}\nspace:\n{blocks}")


def test_a_block_says_what_its_trials_get_and_the_file_the_rest(tmp_path: Path) -> None:
    plan = count(sweep_of(tmp_path, "{cpu: 1, memory: 1 GiB, heartbeat_minutes: 7}"))
    small, large = (trial.resources for trial in plan.trials)
    assert (small.cpu, small.memory, small.heartbeat_minutes) == (1, 2**30, 7)
    assert (large.cpu, large.memory, large.heartbeat_minutes) == (2, 2**31, 7)
    assert plan.sweep.shares == [small, large]
    bundles = [share_of(config_of(job)).bundles for job in plan.jobs]
    assert bundles == [[{"CPU": 1.0, "memory": 2.0**30}], [{"CPU": 2.0, "memory": 2.0**31}]]


def test_a_method_for_gpus_may_have_one_alone(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, "{cpu: 1}", "  - {method: qlora, rank: 4, resources: {gpu: 1}}\n")
    assert [share.gpu for share in sweep.shares] == [1]


@pytest.mark.slow
def test_each_trial_is_placed_by_its_own_share_and_held_to_it(tmp_path: Path) -> None:
    from tests.orchestrator.tune.running import run_sweep

    log = str(tmp_path / "log")

    def train(spec, directory, *, report, resume_from, on_step):
        import resource
        from pathlib import Path

        import ray
        import torch

        from craft.results import RunResult

        given = ray.get_runtime_context().get_assigned_resources()
        limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
        with Path(log).open("a") as file:
            file.write(f"{spec.method} {given['CPU']:g} {torch.get_num_threads()} {limited}\n")
        adapter = directory / "adapter"
        adapter.mkdir()
        return RunResult({"score": 1.0}, Counts(10, 2, 100, 40), adapter, 1, 1, 1.0)

    sweep = sweep_of(tmp_path, "{cpu: 1}", BLOCKS)
    outcome = run_sweep(count(sweep), tmp_path / "t", cpus=2, verbosity="quiet", train=train)
    assert len(outcome.ended("finished")) == 2, results_of(outcome)
    assert sorted((tmp_path / "log").read_text().splitlines()) == ["craft 1 1 False", "full 2 2 True"]


def test_processes_on_one_machine_meet_at_an_address_that_only_it_reaches() -> None:
    crew = object.__new__(_Actors)
    crew.places = [("machine", ()), ("machine", ())]
    store = make_store(crew.host, 5.0)
    assert (crew.host, store.port > 0) == ("127.0.0.1", True)

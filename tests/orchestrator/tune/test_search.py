"""Where trials come from and what each gets: rows of the tables, and the file's and the blocks' resources."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.tune.search import Searcher

from craft.processes import make_store
from orchestrator.plan.plan import Plan
from orchestrator.sweepfile.settings import SEARCHERS
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tune.crew import _Actors, share_of
from orchestrator.tune.engine import Jobs, config_of
from tests.orchestrator.driven import driving, outcomes
from tests.orchestrator.plans import count, toy_plan, toy_sweep


def plan_of(folder: Path, algorithm: str) -> Plan:
    search = f"{{algorithm: {algorithm}{', configurations: 3' if SEARCHERS[algorithm].samples else ''}}}"
    text = "space: [{method: lora, rank: {values: [1, 2, 4]}}]\n"
    return toy_plan(folder, f"tasks: [toy/paraphrase, toy/sentiment]\nseeds: [0, 1]\n{text}search: {search}\n")


def drain(jobs: Jobs) -> list[str]:
    keys: list[str] = []
    while (config := jobs.suggest(f"id{len(keys)}")) not in (None, Searcher.FINISHED):
        keys.append(config["key"])
    return keys


@pytest.mark.parametrize("algorithm", sorted(SEARCHERS))
def test_every_searcher_gives_out_its_trials_once_and_then_is_finished(tmp_path: Path, algorithm: str) -> None:
    plan = plan_of(tmp_path, algorithm)
    with driving(plan, tmp_path / "run") as driver:
        jobs = Jobs(driver, None)
        keys = drain(jobs)
        assert len({driver.state.entries[key].trial.configuration for key in keys}) == 3
        assert len(keys) == len({*keys}) == len(driver.state.wanted) == 3 * 2 * 2
        configurations = [driver.state.entries[key].trial.configuration for key in keys]
        assert configurations == [name for name in dict.fromkeys(configurations) for _ in range(4)], "they follow each other"
        assert jobs.suggest("more") is None, "while they are out, more may come"
        for place, key in enumerate(keys):
            driver.record_start(key)
            driver.record_end(key, outcomes(driver.queue.jobs[key], lambda trial: 50.0))
            jobs.on_trial_complete(f"id{place}")
        assert jobs.suggest("more") == Searcher.FINISHED


def test_what_has_ended_is_not_given_out_and_some_alone_may_be(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "grid")
    first, second, *rest = (job.key for job in plan.jobs)
    with driving(plan, tmp_path / "run") as driver:
        assert drain(Jobs(driver, 1, [second])) == [second]
        driver.record_end(second, outcomes(driver.queue.jobs[second], lambda trial: 50.0))
    with driving(plan, tmp_path / "run") as driver:
        assert drain(Jobs(driver, None)) == [first, *rest]


def test_no_more_than_so_many_are_out_at_once(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "grid")
    keys = [job.key for job in plan.jobs]
    with driving(plan, tmp_path / "run") as driver:
        jobs = Jobs(driver, 2)
        assert [jobs.suggest(name)["key"] for name in "ab"] == keys[:2]
        assert jobs.suggest("c") is None
        jobs.on_trial_complete("a", error=True)
        assert jobs.suggest("c")["key"] == keys[2]
        assert jobs.suggest("d") is None


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


def test_processes_on_one_machine_meet_at_an_address_that_only_it_reaches() -> None:
    crew = object.__new__(_Actors)
    crew.places = [("machine", ()), ("machine", ())]
    store = make_store(crew.host, 5.0)
    assert (crew.host, store.port > 0) == ("127.0.0.1", True)

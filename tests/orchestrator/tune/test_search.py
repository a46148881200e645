"""Where trials come from: every row of the tables does its work, and configurations fan out as they should."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

import pytest
from ray.tune.search import Searcher

from orchestrator.plan.plan import Plan
from orchestrator.sweepfile.algorithms import SEARCHERS
from orchestrator.tune.engine import Jobs
from tests.orchestrator.driven import driving, outcomes
from tests.orchestrator.plans import toy_plan


def plan_of(folder: Path, algorithm: str) -> Plan:
    search = f"{{algorithm: {algorithm}{', configurations: 3' if SEARCHERS[algorithm].samples else ''}}}"
    text = "space: [{method: lora, rank: {values: [1, 2, 4]}}]\n"
    return toy_plan(folder, f"tasks: [toy/paraphrase, toy/sentiment]\nseeds: [0, 1]\n{text}search: {search}\n")


def drain(jobs: Jobs) -> list[str]:
    keys: list[str] = []
    while (config := jobs.suggest(f"id{len(keys)}")) not in (None, Searcher.FINISHED):
        keys.append(config["key"])
    return keys


def test_every_algorithm_a_file_may_name_is_there_to_do_it() -> None:
    places = [row.make for row in SEARCHERS.values()]
    assert all(callable(resolve_name(place)) for place in places)


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

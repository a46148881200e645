"""What Tune asks for and gets, without Ray: which jobs it gets, with which share, and how patient the driver is with silent
processes and with a Ray that does not start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.search import Searcher

from craft.processes import make_store
from orchestrator.plan.plan import Plan
from orchestrator.sweepfile.settings import SEARCHERS
from orchestrator.tune import attempts, engine, private
from orchestrator.tune.crew import _Actors, share_of
from orchestrator.tune.engine import Jobs, Recording, config_of
from tests.orchestrator.plans import driving, outcomes, toy_plan


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
        assert len(keys) == len({*keys}) == len(driver.state.wanted) == 3 * 2 * 2
        configurations = [driver.state.entries[key].trial.configuration for key in keys]
        assert configurations == [name for name in dict.fromkeys(configurations) for _ in range(4)], "they follow each other"
        assert jobs.suggest("more") is None, "while they are out, more may come"
        for place, key in enumerate(keys):
            driver.record_start(key)
            driver.record_end(key, outcomes(driver.queue.jobs[key], lambda trial: 50.0))
            jobs.on_trial_complete(f"id{place}")
        assert jobs.suggest("more") == Searcher.FINISHED


def test_no_more_than_so_many_are_out_at_once_and_what_has_ended_never_is(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "grid")
    first, second, third, fourth, *_ = (job.key for job in plan.jobs)
    with driving(plan, tmp_path / "run") as driver:
        assert drain(Jobs(driver, 1, [second])) == [second]
        driver.record_end(second, outcomes(driver.queue.jobs[second], lambda trial: 50.0))
    with driving(plan, tmp_path / "run") as driver:
        jobs = Jobs(driver, 2)
        assert drain(jobs) == [first, third]
        jobs.on_trial_complete("id0", error=True)
        assert jobs.suggest("more")["key"] == fourth
        assert jobs.suggest("one more") is None


def test_a_block_says_what_its_trials_get_and_the_file_the_rest(tmp_path: Path) -> None:
    blocks = "[{method: head}, {method: lora, rank: 1, resources: {cpu: 2, processes: 2}}]"
    plan = toy_plan(tmp_path, f"resources: {{cpu: 1, memory: 1 GiB}}\nspace: {blocks}\n")
    shares = [share_of(config_of(job)).bundles for job in plan.jobs]
    assert shares == [[{"CPU": 1.0, "memory": 2.0**30}], [{"CPU": 2.0, "memory": 2.0**30}] * 2]


def test_processes_on_one_machine_meet_at_an_address_that_only_it_reaches() -> None:
    crew = object.__new__(_Actors)
    crew.places = [("machine", ()), ("machine", ())]
    assert (crew.host, make_store(crew.host, 5.0).port > 0) == ("127.0.0.1", True)


def test_a_process_is_ended_after_two_heartbeats_without_a_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    now, killed = 1000.0, list[str]()
    monkeypatch.setattr(engine.time, "monotonic", lambda: now)
    monkeypatch.setattr(private.ray, "kill", killed.append)
    driver = SimpleNamespace(record_start=lambda key: None, tick=lambda: None, folder=SimpleNamespace(scratch=Path("/nowhere")))
    recording = Recording(driver)  # type: ignore[arg-type]

    def trial(key: str, minutes: float, status: str = "RUNNING") -> Any:
        config = {"key": key, "resources": json.dumps({"heartbeat_minutes": minutes})}
        return SimpleNamespace(config=config, status=status, RUNNING="RUNNING", temporary_state=SimpleNamespace(ray_actor=key))

    def wait(seconds: float, step: float = 1.0) -> None:
        nonlocal now
        end = now + seconds
        while now < end:
            now += step
            recording.on_step_begin(0, trials)

    silent, talks, *_ = trials = [trial("a", 1), trial("b", 1), trial("c", 1, "PENDING"), trial("d", 0)]
    for each in trials:
        recording.on_trial_start(0, trials, each)
    recording.on_trial_result(0, trials, silent, {})
    wait(60)
    recording.on_trial_result(0, trials, talks, {})
    wait(59)
    assert killed == []
    wait(3)
    assert killed == ["a"]
    assert recording._why("a", None) == "no sign of life for 2 min 00 s, so its process was ended"
    assert recording._why("a", RuntimeError("later")) == "later"
    trials = [silent]
    recording.on_trial_start(0, trials, silent)
    wait(engine.START_SECONDS - 20)
    wait(7200, step=3600)
    assert killed == ["a"], "a busy machine takes long to start a process, and a driver that was stopped itself ends nothing"
    wait(20)
    assert killed == ["a", "a"]


@pytest.mark.parametrize(
    ("starts", "failing", "number"),
    [(False, 0, attempts.FRUITLESS_STARTS), (True, 0, attempts.FRUITLESS_ATTEMPTS), (True, 2, 2 + attempts.FRUITLESS_ATTEMPTS)],
)
def test_a_machine_too_busy_to_start_ray_is_asked_more_often(
    starts: bool, failing: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that ends, with a failure too, shows that starting again leads on."""
    tries: list[int] = []
    entries: dict[str, Any] = {}

    @contextmanager
    def joined(address: str | None, cpus: int | None) -> Iterator[None]:
        tries.append(1)
        if len(tries) == failing:
            entries["failed"] = SimpleNamespace(ended=True)
        if starts:
            yield
        raise RuntimeError("The current node timed out during startup.")

    def fail(*arguments: Any) -> None:
        raise RuntimeError("the raylet died")

    monkeypatch.setattr(attempts, "joined", joined)
    monkeypatch.setattr(attempts.Attempts, "_slots", fail)
    driver = SimpleNamespace(
        is_open=True, is_ending=False, state=SimpleNamespace(entries=entries), options=SimpleNamespace(address=None, cpus=1),
        storage=str(tmp_path), record_break=list, display=SimpleNamespace(trouble=lambda line: None),
    )  # fmt: skip
    reason = attempts.Attempts(driver, lambda: None, None, None).run()  # type: ignore[arg-type]
    assert len(tries) == number
    assert f"Ray broke off {number - failing} times" in (reason or "")

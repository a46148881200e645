"""How patient the driver is: with processes without a sign of life, and with a Ray that does not start. No Ray runs here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.tune import attempts, engine, private
from orchestrator.tune.engine import Recording
from orchestrator.worker import worker
from tests.orchestrator.worker.test_worker import SPEC, run, settings, trains


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(engine.time, "monotonic", clock)
    return clock


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    killed: list[str] = []
    monkeypatch.setattr(private.ray, "kill", killed.append)
    return killed


def trial(key: str, minutes: float, status: str = "RUNNING") -> Any:
    config = {"key": key, "resources": json.dumps({"heartbeat_minutes": minutes})}
    return SimpleNamespace(config=config, status=status, RUNNING="RUNNING", temporary_state=SimpleNamespace(ray_actor=key))


@pytest.fixture
def recording(clock: Clock) -> Recording:
    driver = SimpleNamespace(record_start=lambda key: None, tick=lambda: None, folder=SimpleNamespace(scratch=Path("/nowhere")))
    return Recording(driver)  # type: ignore[arg-type]


def wait(recording: Recording, clock: Clock, trials: list[Any], seconds: float, step: float = 1.0) -> None:
    end = clock.now + seconds
    while clock.now < end:
        clock.now += step
        recording.on_step_begin(0, trials)


def test_a_process_is_ended_after_two_heartbeats_without_a_sign(recording: Recording, clock: Clock, killed: list[str]) -> None:
    silent, talks, waits, forever = trial("a", 1), trial("b", 1), trial("c", 1, "PENDING"), trial("d", 0)
    trials = [silent, talks, waits, forever]
    for each in trials:
        recording.on_trial_start(0, trials, each)
    recording.on_trial_result(0, trials, silent, {})
    wait(recording, clock, trials, 60)
    recording.on_trial_result(0, trials, talks, {})
    wait(recording, clock, trials, 59)
    assert killed == []
    wait(recording, clock, trials, 3)
    assert killed == ["a"]
    assert recording._why("a", None) == "no sign of life for 2 min 00 s, so its process was ended"
    assert recording._why("a", RuntimeError("later")) == "later"
    recording.on_trial_start(0, trials, silent)
    wait(recording, clock, [silent], engine.START_SECONDS - 1)
    assert killed == ["a"], "a busy machine takes long to start a process"
    wait(recording, clock, [silent], 3)
    assert killed == ["a", "a"]


def test_a_driver_that_was_stopped_itself_ends_nothing(recording: Recording, clock: Clock, killed: list[str]) -> None:
    one = trial("a", 1)
    recording.on_trial_start(0, [one], one)
    wait(recording, clock, [one], 7200, step=3600)
    recording.on_trial_result(0, [one], one, {})
    assert killed == []


def test_a_worker_gives_a_sign_while_it_prepares_and_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from craft.watch import watch

    now = Clock()
    now.now = worker.time.monotonic()

    def train(spec: Any, directory: Path, *, on_step: Callable[[int, int], None], **calls: Any) -> Any:
        monkeypatch.setattr(worker.time, "monotonic", now)
        for _ in range(10):
            now.now += 10
            watch()
        for step in range(10):
            now.now += 10
            on_step(step, 10)
        return trains([])(spec, directory, on_step=on_step, **calls)

    reports = [report for report, _ in run(settings(tmp_path, train, heartbeat_seconds=100.0), SPEC.key)]
    assert 3 <= reports.count({"alive": True}) <= 4
    assert "results" in reports[-1]
    assert {"alive": True} not in [report for report, _ in run(settings(tmp_path / "none", train), SPEC.key)]


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

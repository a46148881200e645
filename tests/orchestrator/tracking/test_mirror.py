"""The runs of a sweep on a real SQLite store are equal to its State, whatever happened to driver, store and requests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2
from requests import ConnectionError as Lost

from orchestrator.record.events import Wanted
from orchestrator.record.folder import SweepFolder
from orchestrator.review.mirror import Mirror, _steps, replay
from orchestrator.tracking.store import RunGone, SweepStore
from tests.orchestrator.logged import SweepLog, contents, entry, history, mirror, runs, step_until_equal, story

READS = ("search_runs", "search_experiments", "get_experiment", "get_experiment_by_name", "get_run", "list_artifacts")

WRITES = ("log_batch", "create_run", "set_tag", "set_terminated", "update_run", "set_experiment_tag", "log_inputs")


class Killed(BaseException):
    """Ends the process that writes to the store."""


class Requests:
    """The requests that write, of all clients. `fail` gets the number of each, and returns what is raised after it."""

    def __init__(self, client: Callable[..., MlflowClient]) -> None:
        self._make = client
        self.names: list[str] = []
        self.fail: Callable[[int, str], BaseException | None] = lambda *_: None

    def client(self, *arguments: Any, **named: Any) -> Any:
        return Client(self._make(*arguments, **named), self)

    def note(self, name: str) -> None:
        self.names.append(name)
        if error := self.fail(len(self.names), name):
            raise error


class Client:
    def __init__(self, client: MlflowClient, requests: Requests) -> None:
        self._client, self._requests = client, requests

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name in READS or not callable(method):
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            answer = method(*arguments, **named)
            self._requests.note(name)
            return answer

        return call


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    seen = Requests(MlflowClient)
    monkeypatch.setattr("mlflow.MlflowClient", seen.client)
    return seen


def copy_of(store: Path, to: Path) -> str:
    to.write_bytes(store.read_bytes())
    return f"sqlite:///{to}"


@pytest.mark.slow
def test_equal_once_is_equal_however_often_it_is_made(uri: str, tmp_path: Path, empty_store: Path, requests: Requests) -> None:
    folder = tmp_path / "runs"
    live = None
    for number, _ in enumerate(story(folder)):
        live = live or mirror(folder, uri)
        live.step()
        assert live.refused == 0
        requests.names.clear()
        live.step()
        mirror(folder, uri)
        assert requests.names == [], number
        fresh = copy_of(empty_store, tmp_path / f"{number}.db")
        mirror(folder, fresh)
        assert contents(fresh) == contents(uri), number


@pytest.mark.slow
@pytest.mark.parametrize(("part", "life"), [(6, 3), (2, 2), (6, 2)])
def test_kills_between_requests_lose_and_double_nothing(
    uri: str, tmp_path: Path, empty_store: Path, requests: Requests, part: int, life: int
) -> None:
    folder = tmp_path / "runs"
    next(itertools.islice(story(folder), part, None))
    mirror(folder, uri)
    end, dying = contents(uri), copy_of(empty_store, tmp_path / "dying.db")
    requests.fail = lambda number, _: Killed() if number % life == 0 else None
    for _ in range(100):
        requests.names.clear()
        with suppress(Killed):
            mirror(folder, dying)
            break
    else:
        raise AssertionError("it never ends")
    assert contents(dying) == end


@pytest.mark.slow
def test_lost_answers_make_no_run_twice(uri: str, tmp_path: Path, empty_store: Path, requests: Requests) -> None:
    folder = tmp_path / "runs"
    next(itertools.islice(story(folder), 6, None))
    mirror(folder, uri)
    end, lossy = contents(uri), copy_of(empty_store, tmp_path / "lossy.db")
    chance = random.Random(5)
    requests.fail = lambda *_: Lost("no answer") if chance.random() < 0.3 else None
    copy = Mirror(folder, lossy)
    step_until_equal(copy, folder)
    assert copy.refused == 0
    assert contents(lossy) == end


def test_a_store_that_fails_a_third_of_all_requests_holds_up_nothing(
    uri: str, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads fail, too, before they are done; no failure keeps what was done from counting."""
    folder, chance = tmp_path / "runs", random.Random(3)
    next(itertools.islice(story(folder), 6, None))
    mirror(folder, uri)
    end, flaky = contents(uri), copy_of(empty_store, tmp_path / "flaky.db")

    def fail(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if chance.random() < 0.3:
                raise MlflowException("come back later", databricks_pb2.INTERNAL_ERROR)
            return method(*arguments, **named)

        return call

    for name in (*READS, *WRITES):
        monkeypatch.setattr(MlflowClient, name, fail(getattr(MlflowClient, name)))
    copy, steps, delay = Mirror(folder, flaky), 0, 0.0
    pauses = iter(_steps(copy))
    monkeypatch.setattr("orchestrator.review.mirror.time.sleep", lambda seconds: pause(seconds))

    def pause(seconds: float) -> None:
        nonlocal delay
        delay += seconds

    while copy.offset < SweepFolder(folder).record.stat().st_size:
        next(pauses)
        steps += 1
        assert steps < 200
    monkeypatch.undo()
    assert copy.refused == 0
    assert contents(flaky) == end
    assert delay < 30, "delays grow with the failures of one request, not of all"


def test_a_replay_finds_points_that_a_proxy_has_swallowed(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers 200 with {}, so that nothing looks wrong: a point in the middle is missing, or all that is sent."""
    trial, sweep = entry(), SweepLog(tmp_path)
    sweep.start(trial)
    live, log_batch = mirror(tmp_path, uri), MlflowClient.log_batch
    sweep.run(trial)
    for step in (10, 20, 30):
        sweep.report(trial, step)
        with monkeypatch.context() as patch:
            if step == 20:
                patch.setattr(MlflowClient, "log_batch", lambda *_, **__: None)
            live.step()
    sweep.finish(trial)
    sweep.close()
    live.step()
    assert [step for step, _ in history(uri, runs(uri)["trial", trial.key], "search_score")] == [10, 30]
    monkeypatch.setattr("orchestrator.review.mirror.time.sleep", lambda _: None)
    monkeypatch.setattr(MlflowClient, "log_batch", lambda *_, **__: None)
    assert replay(tmp_path, uri, timeout_s=600) > 0
    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    assert replay(tmp_path, uri, timeout_s=600) == 0
    assert history(uri, runs(uri)["trial", trial.key], "search_score") == [(10, 60.0), (20, 70.0), (30, 80.0)]


@pytest.mark.parametrize("away", [False, True])
def test_a_point_that_failed_is_sent_although_later_ones_have_arrived(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """Or although the store went away before it was known which points have."""
    trial, sweep, answers, log_batch = entry(), SweepLog(tmp_path), [True], MlflowClient.log_batch
    sweep.start(trial)
    sweep.train(trial)

    def fail(self: MlflowClient, run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), **named: Any) -> Any:
        if any((point.key, point.step) == ("train_loss", 5) for point in metrics):
            raise MlflowException("database is locked", databricks_pb2.INTERNAL_ERROR)
        return log_batch(self, run_id, metrics, params, tags, **named)

    def leave(*_: Any, **__: Any) -> None:
        answers[0] = False
        raise Lost("no answer")

    copy = Mirror(tmp_path, uri)
    with monkeypatch.context() as patch, suppress(Lost):
        patch.setattr(MlflowClient, "log_batch", fail)
        patch.setattr(SweepStore, "answers", lambda _: answers[0])
        if away:
            patch.setattr(MlflowClient, "log_inputs", leave)
        copy.step()
    assert [step for step, _ in history(uri, runs(uri)["trial", trial.key], "train_loss")] == [15, 25]
    step_until_equal(copy, tmp_path)
    assert copy.refused == 0
    assert [step for step, _ in history(uri, runs(uri)["trial", trial.key], "train_loss")] == [5, 15, 25]


@pytest.mark.parametrize("code", ["INVALID_PARAMETER_VALUE", pytest.param("INTERNAL_ERROR", marks=pytest.mark.slow)])
def test_a_value_that_the_store_refuses_holds_up_nothing_and_is_offered_again(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    trial, sweep = entry(label="cursed"), SweepLog(tmp_path)
    sweep.start(trial)
    sweep.train(trial)
    log_batch = MlflowClient.log_batch

    def refuse(self: MlflowClient, run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), **named: Any) -> Any:
        if any(param.key == "learning_rate" for param in params):
            raise MlflowException("not this one", getattr(databricks_pb2, code))
        return log_batch(self, run_id, metrics, params, tags, **named)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", refuse)
        step_until_equal(copy := Mirror(tmp_path, uri), tmp_path)
        other = entry(seed=1)
        sweep.add(Wanted, keys=[other.key], trials=[other.trial])
        sweep.train(other)
        step_until_equal(copy, tmp_path)
    run = runs(uri)["trial", trial.key]
    assert (run.info.status, run.data.params["ranks"], run.data.metrics["score"]) == ("FINISHED", "all,8,8", 80.0)
    assert "learning_rate" not in run.data.params
    assert runs(uri)["trial", other.key].info.status == "FINISHED"
    assert copy.refused == 3, "that of two trials and of their configuration"
    assert len([line for line in caplog.messages if f"refuses trial {trial.key}" in line]) == 1
    assert mirror(tmp_path, uri).refused == 0
    assert runs(uri)["trial", trial.key].data.params["learning_rate"] == "3e-4"


def test_a_missing_adapter_holds_up_nothing_and_is_offered_again(uri: str, tmp_path: Path) -> None:
    trial, sweep = entry(), SweepLog(tmp_path)
    sweep.begin(trial)
    sweep.finish(trial, adapter="gone")
    sweep.close()
    copy = mirror(tmp_path, uri)
    assert copy.refused == 1
    assert {run.info.status for run in runs(uri).values()} == {"FINISHED"}
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "adapter_model.safetensors").write_bytes(b"weights")
    assert mirror(tmp_path, uri).refused == 0
    assert "craft.adapter_sha256" in runs(uri)["trial", trial.key].data.tags


def delete_all(uri: str) -> None:
    for run in runs(uri).values():
        MlflowClient(uri).delete_run(run.info.run_id)


@pytest.mark.parametrize(
    "empty",
    [
        pytest.param(delete_all, marks=pytest.mark.slow),
        lambda uri: MlflowClient(uri).delete_experiment(MlflowClient(uri).get_experiment_by_name("demo").experiment_id),
        lambda uri: MlflowClient(uri).delete_run(next(run.info.run_id for place, run in runs(uri).items() if "trial" in place)),
    ],
    ids=["runs", "experiment", "a trial"],
)
def test_what_somebody_deleted_while_the_sweep_runs_is_there_again(
    uri: str, tmp_path: Path, empty: Callable[[str], None]
) -> None:
    parts = story(tmp_path / "runs")
    next(itertools.islice(parts, 2, None))
    copy = mirror(tmp_path / "runs", uri)
    empty(uri)
    next(parts)
    step_until_equal(copy, tmp_path / "runs")
    assert copy.refused == 0
    end = contents(uri)
    mirror(tmp_path / "runs", uri)
    assert contents(uri) == end
    assert len(end) == 13


def test_a_quiet_sweep_notices_an_emptied_store(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.review.mirror.LOOK_EVERY_S", 0.0)
    next(itertools.islice(story(tmp_path / "runs"), 2, None))
    copy = mirror(tmp_path / "runs", uri)
    before = runs(uri).keys()
    delete_all(uri)
    with pytest.raises(RunGone):
        copy.step()
    copy.step()
    assert runs(uri).keys() == before


def test_a_lost_driver_leaves_no_run_open(uri: str, tmp_path: Path) -> None:
    next(iter(story(tmp_path / "runs")))
    mirror(tmp_path / "runs", uri)
    assert {run.info.status for run in runs(uri).values()} == {"RUNNING", "FINISHED"}
    mirror(tmp_path / "runs", uri, lost=True)
    assert {run.info.status for run in runs(uri).values()} == {"KILLED", "FINISHED"}

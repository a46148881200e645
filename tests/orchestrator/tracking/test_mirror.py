"""The runs of a sweep on a real SQLite store are equal to its State, whatever happened to driver, store and requests."""

from __future__ import annotations

import itertools
import random
import subprocess
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
from tests.orchestrator.outage import sweep_through_an_outage
from tests.postgres import Missing, postgres

READS = ("search_runs", "search_experiments", "get_experiment", "get_experiment_by_name", "get_run", "list_artifacts")
WRITES = ("create_run", "log_batch", "log_inputs", "log_artifact", "log_artifacts", "set_tag", "set_terminated",
          "update_run", "delete_run", "create_experiment", "restore_experiment", "set_experiment_tag")  # fmt: skip
BUSY = databricks_pb2.INTERNAL_ERROR


class Killed(BaseException):
    """Ends the process that writes to the store."""


class Requests:
    """The requests of all clients, of which `names` has those that write.

    `before` gets the name of each with its arguments, and `after` the number of each that writes: what they raise, the caller
    gets.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.let_all_pass()

    def let_all_pass(self) -> None:
        self.before: Callable[[str, tuple[Any, ...]], None] = lambda *_: None
        self.after: Callable[[int], None] = lambda _: None

    def watched(self, name: str) -> Callable[..., Any]:
        method = getattr(MlflowClient, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self.before(name, arguments)
            answer = method(*arguments, **named)
            if name in WRITES:
                self.names.append(name)
                self.after(len(self.names))
            return answer

        return call


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    seen = Requests()
    for name in (*READS, *WRITES):
        monkeypatch.setattr(MlflowClient, name, seen.watched(name))
    return seen


def play(folder: Path, uri: str, part: int = 6) -> dict[str, Any]:
    """Plays the story up to a part of it, and returns what a store has that never fails."""
    next(itertools.islice(story(folder), part, None))
    mirror(folder, uri)
    return contents(uri)


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
    end, dying = play(folder, uri, part), copy_of(empty_store, tmp_path / "dying.db")

    def kill(number: int) -> None:
        if number % life == 0:
            raise Killed

    requests.after = kill
    for _ in range(200):
        requests.names.clear()
        with suppress(Killed):
            mirror(folder, dying)
            break
    else:
        raise AssertionError("it never ends")
    assert contents(dying) == end


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "error"), [("before", MlflowException("come back later", BUSY)), ("after", Lost("no answer"))]
)
def test_a_store_that_fails_a_third_of_all_requests_holds_up_nothing_and_makes_no_run_twice(
    uri: str, tmp_path: Path, empty_store: Path, requests: Requests, monkeypatch: pytest.MonkeyPatch, hook: str, error: Any
) -> None:
    """Reads fail, too, before they are done; no failure keeps what was done from counting."""
    folder, chance, delays = tmp_path / "runs", random.Random(2), list[float]()
    end, flaky = play(folder, uri), copy_of(empty_store, tmp_path / "flaky.db")

    def fail(*_: Any) -> None:
        if chance.random() < 0.3:
            raise error

    setattr(requests, hook, fail)
    monkeypatch.setattr("orchestrator.review.mirror.time.sleep", delays.append)
    copy = Mirror(folder, flaky)
    for step, _ in enumerate(_steps(copy)):
        assert step < 200
        if copy.offset == SweepFolder(folder).record.stat().st_size:
            break
    requests.let_all_pass()
    assert copy.refused == 0
    assert contents(flaky) == end
    assert sum(delays) < 30, "delays grow with the failures of one request, not of all"


@pytest.mark.slow
def test_a_replay_finds_points_that_a_proxy_has_swallowed(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers 200 with {}, so that nothing looks wrong: a point in the middle is missing, or all that is sent."""
    trial, sweep = entry(), SweepLog(tmp_path)
    sweep.start(trial)
    live = mirror(tmp_path, uri)
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
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", lambda *_, **__: None)
        assert replay(tmp_path, uri, timeout_s=600).events > 0
    assert replay(tmp_path, uri, timeout_s=600) == (0, 0)
    assert history(uri, runs(uri)["trial", trial.key], "search_score") == [(10, 60.0), (20, 70.0), (30, 80.0)]


@pytest.mark.parametrize("away", [False, True])
def test_a_point_that_failed_is_sent_although_later_ones_have_arrived(
    uri: str, tmp_path: Path, requests: Requests, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """Or although the store went away before it was known which points have."""
    trial, sweep, answers = entry(), SweepLog(tmp_path), [True]
    sweep.start(trial)
    sweep.train(trial)

    def fail(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "log_batch" and any((point.key, point.step) == ("train_loss", 5) for point in arguments[2]):
            raise MlflowException("database is locked", BUSY)
        if name == "log_inputs" and away:
            answers[0] = False
            raise Lost("no answer")

    copy, requests.before = Mirror(tmp_path, uri), fail
    with monkeypatch.context() as patch, suppress(Lost):
        patch.setattr(SweepStore, "answers", lambda _: answers[0])
        copy.step()
    requests.let_all_pass()
    assert [step for step, _ in history(uri, runs(uri)["trial", trial.key], "train_loss")] == [15, 25]
    step_until_equal(copy, tmp_path)
    assert copy.refused == 0
    assert [step for step, _ in history(uri, runs(uri)["trial", trial.key], "train_loss")] == [5, 15, 25]


@pytest.mark.parametrize("code", ["INVALID_PARAMETER_VALUE", pytest.param("INTERNAL_ERROR", marks=pytest.mark.slow)])
def test_a_value_that_the_store_refuses_holds_up_nothing_and_is_offered_again(
    uri: str, tmp_path: Path, requests: Requests, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    trial, other, sweep = entry(label="cursed"), entry(seed=1), SweepLog(tmp_path)
    sweep.start(trial)
    sweep.train(trial)

    def refuse(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "log_batch" and any(param.key == "learning_rate" for param in arguments[3]):
            raise MlflowException("not this one", getattr(databricks_pb2, code))

    requests.before = refuse
    step_until_equal(copy := Mirror(tmp_path, uri), tmp_path)
    sweep.add(Wanted, keys=[other.key], trials=[other.trial])
    sweep.train(other)
    step_until_equal(copy, tmp_path)
    requests.let_all_pass()
    run = runs(uri)["trial", trial.key]
    assert (run.info.status, run.data.params["ranks"], run.data.metrics["score"]) == ("FINISHED", "all,8,8", 80.0)
    assert "learning_rate" not in run.data.params
    assert runs(uri)["trial", other.key].info.status == "FINISHED"
    assert copy.refused == 3, "that of two trials and of their configuration"
    assert len([line for line in caplog.messages if f"refuses trial {trial.key}" in line]) == 1
    assert mirror(tmp_path, uri).refused == 0
    assert runs(uri)["trial", trial.key].data.params["learning_rate"] == "3e-4"


@pytest.mark.parametrize("code", ["RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED"])
def test_a_store_that_takes_no_data_sets_holds_up_nothing_else(uri: str, tmp_path: Path, requests: Requests, code: str) -> None:
    trial, sweep = entry(), SweepLog(tmp_path)
    sweep.start(trial)
    sweep.train(trial)

    def refuse(name: str, _: Any) -> None:
        if name == "log_inputs":
            raise MlflowException("API request failed", getattr(databricks_pb2, code))

    requests.before = refuse
    copy = Mirror(tmp_path, uri)
    copy.step()
    requests.let_all_pass()
    assert runs(uri)["trial", trial.key].info.status == "FINISHED"
    requests.before = refuse
    step_until_equal(copy, tmp_path)
    assert copy.refused == 1


def test_what_was_set_aside_as_a_whole_is_refused_no_more_once_it_arrives(uri: str, tmp_path: Path, requests: Requests) -> None:
    sweep, copy = SweepLog(tmp_path), Mirror(tmp_path, uri)
    sweep.start(trial := entry())
    sweep.train(trial)
    refused = list[int]()
    for code in ("BAD_REQUEST", "INVALID_PARAMETER_VALUE", ""):  # MLflow calls most errors of its database a bad request

        def refuse(name: str, _: Any, code: str = code) -> None:
            if code and name == "set_experiment_tag":
                raise MlflowException("not now", getattr(databricks_pb2, code))

        requests.before = refuse
        copy.step()
        refused.append(copy.refused)
    sweep.close()
    copy.step()
    assert [*refused, copy.refused] == [0, 1, 1, 0]


def delete_all(uri: str) -> None:
    for run in runs(uri).values():
        MlflowClient(uri).delete_run(run.info.run_id)


@pytest.mark.parametrize(
    "empty",
    [
        pytest.param(delete_all, marks=pytest.mark.slow),
        pytest.param(
            lambda uri: MlflowClient(uri).delete_experiment(MlflowClient(uri).get_experiment_by_name("demo").experiment_id),
            marks=pytest.mark.slow,
        ),
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


@pytest.mark.slow
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


@pytest.mark.cluster
@pytest.mark.slow
def test_trials_end_while_the_server_is_gone_and_its_password_is_nowhere(tmp_path: Path) -> None:
    *_, outage, _ = sweep_through_an_outage(tmp_path, step_seconds=1.0, over=4, away=0.0)
    assert "4 of 4 trials ended" in outage


@pytest.mark.cluster
@pytest.mark.slow
def test_postgresql_without_a_server(here: Path) -> None:
    trial, sweep = entry(), SweepLog(here / "runs")
    sweep.begin(trial)
    sweep.report(trial, 10)
    try:
        with postgres() as (backend, restart):
            copy = mirror(sweep.folder, backend)
            subprocess.run(restart, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            sweep.report(trial, 20)
            assert replay(sweep.folder, backend, 120) == (0, 0)
            step_until_equal(copy, sweep.folder)
            assert history(backend, runs(backend)["trial", trial.key], "search_score") == [(10, 60.0), (20, 70.0)]
    except Missing as why:
        pytest.skip(str(why))

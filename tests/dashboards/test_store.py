"""What is read back from a real SQLite store is what was written into it."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from starlette.requests import Request

from craft.scoring.predictions import write_predictions
from dashboards.app import Sweeps, make_app
from dashboards.frames import TrialRow
from dashboards.page import everything, safe_spec, state_of, view_of
from dashboards.panels import PANELS, Panel, View
from dashboards.panels.base import Plain
from dashboards.store import Store
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import Ended, Reported
from orchestrator.record.log import read_points
from orchestrator.review.past_sweep import NoSuchSweep, find_sweep
from orchestrator.tracking.client import TrackingError
from orchestrator.tracking.registry import find_trial
from tests.dashboards.synthetic import FakeSession, StoreAt, configuration, events_of, send, sweep_id
from tests.dashboards.views import read_feed
from tests.orchestrator.logged import runs


def test_refresh_sees_what_is_new_in_the_log(store_at: StoreAt, tmp_path: Path) -> None:
    states = {("toy", 1): "running"}
    first = configuration("aaaaaaaaaa", scores={"toy": [80.0, 81.0]}, states=states)
    store = store_at("ranks", [FakeSession(), *first])
    feed = store.feed("ranks")
    assert feed.refresh()
    assert not feed.refresh(), "nothing has changed"
    (key,) = (trial.entry.key for trial in feed.frames.trials() if trial.entry.status == "running")

    def trial() -> TrialRow:
        return next(trial for trial in feed.frames.trials() if trial.entry.key == key)

    judged = feed.frames.judged
    reported = Reported(key=key, rows=[{"step": 3, "search_score": 99.0}], epoch=3.0, total_steps=4)
    send(store.uri, tmp_path / "ranks", reported)
    assert feed.refresh()
    assert trial().value("search_score") == 99.0
    assert feed.frames.log is not None
    assert read_points(feed.frames.log, [key]) == {key: {"search_score": {0: 75.0, 1: 79.0, 3: 99.0}}}

    assert feed.frames.judged is judged, "no result has changed"
    result = TrialResult(key, "finished", {"score": 70.0}, {"trainable_parameters": 1000.0})
    send(store.uri, tmp_path / "ranks", Ended(result=result))
    assert feed.refresh()
    assert trial().entry.status == "finished"
    assert [row.state for row in feed.frames.rows()] == ["finished"]
    assert feed.frames.judged is not judged


def test_answers_of_a_trial_are_read_once_they_have_arrived(store_at: StoreAt, tmp_path: Path) -> None:
    store = store_at("ranks", [FakeSession(), *configuration("aaaaaaaaaa", scores={"toy": [80.0]})])
    feed = read_feed(store, "ranks")
    (trial,), lines = feed.frames.trials(), [{"row": 1, "label": "a", "answer": "b", "right": False}]
    assert store.predictions(trial) == {}
    run = runs(store.uri, "ranks")["trial", trial.entry.key].info.run_id
    write_predictions(tmp_path / "predictions" / "reported.jsonl.gz", lines)
    MlflowClient(store.uri).log_artifacts(run, str(tmp_path / "predictions"), "predictions")
    assert store.predictions(trial) == {"reported": lines}
    sweep = find_sweep("ranks", store.uri)
    assert sweep.predictions(trial.entry.key, tmp_path / "copies") == {"reported": lines}, "without its adapter"


def test_a_piece_of_the_log_that_is_gone_is_said_on_the_page(store_at: StoreAt, tmp_path: Path) -> None:
    store = store_at("ranks", [FakeSession(), *configuration("aaaaaaaaaa")])
    (piece,) = tmp_path.rglob("000000000000.jsonl")
    piece.unlink()
    feed = store.feed("ranks")
    feed.look(2.0)
    entries = store.sweeps()
    said = state_of(entries, view_of(store, [feed]), [feed.trouble])["status"]
    assert "log/000000000000.jsonl is not among the artifacts of its run. craft-sweeps replay" in said


def test_an_unknown_sweep_lists_those_there_are(store_at: StoreAt) -> None:
    store = store_at("ranks", [FakeSession()])
    store_at("glue-baselines", [FakeSession()])
    with pytest.raises(NoSuchSweep, match=r"no sweep 'rank'. Did you mean 'ranks'\? In .*: glue-baselines, ranks"):
        store.feed("rank")


def test_a_sweep_is_found_by_its_id_beside_a_newer_one_of_its_name(store_at: StoreAt) -> None:
    store = store_at("ranks", [FakeSession(), *configuration("aaaaaaaaaa")])
    client, tags = MlflowClient(store.uri), {"craft.kind": "sweep", "craft.sweep": "ranks", "craft.sweep_id": "6" * 32}
    newer = client.create_run(client.get_experiment_by_name("ranks").experiment_id, tags=tags)
    assert [entry.run.info.run_id for entry in store.sweeps() if entry.run] == [newer.info.run_id]
    state = everything(store, sweep_id("ranks"))["state"]
    assert [sweep["name"] for sweep in state["sweeps"]] == ["ranks"]
    (trial,) = store.feed("ranks").frames.trials()
    registered = find_trial(store.uri, "ranks", sweep_id("ranks"), trial.entry.key)
    assert registered.data.tags["craft.sweep_id"] == sweep_id("ranks"), "a version belongs to the run of its own sweep"
    with pytest.raises(NoSuchSweep, match="there is no sweep '777'"):
        everything(store, "777")


def test_a_missing_store_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match=r"no tracking store at .*absent.db.*--tracking-uri"):
        Store(f"sqlite:///{tmp_path}/absent.db")
    assert not list(tmp_path.iterdir())
    waiting = Store(f"sqlite:///{tmp_path / 'absent.db'}", waits=True)
    assert waiting.sweeps() == [], "the live page is open before the first sweep runs"
    assert not (tmp_path / "absent.db").exists()


def test_another_file_in_the_place_of_the_store_is_said(store_at: StoreAt, tmp_path: Path) -> None:
    store = store_at("ranks", [FakeSession()])
    assert [entry.name for entry in store.sweeps()] == ["ranks"]
    (tmp_path / "other.db").touch()
    (tmp_path / "other.db").replace(store.uri.removeprefix("sqlite:///"))
    with pytest.raises(TrackingError, match="is another file than when this page began"):
        store.sweeps()


def test_links_quote_what_a_run_is_called() -> None:
    store = Store("http://mlflow.example:5000/")
    query = "searchFilter=tags.%60craft.key%60%20%3D%20%27a%2Fb%3Fc%23d%27"
    query += "&orderByKey=metrics.%60score%60&orderByAsc=false&workflowType=machine_learning"
    assert store.run_link("7", "a/b?c#d") == f"http://mlflow.example:5000/#/experiments/7/runs?{query}"
    with pytest.raises(ValueError, match="http"):
        Store("http://host", mlflow_url="javascript:alert(1)")


def test_neither_links_nor_a_panel_that_fails_show_a_password(caplog: pytest.LogCaptureFixture) -> None:
    assert Store("http://host", mlflow_url="http://bob:opensesame@front/").mlflow_url == "http://front"

    def draw(view: View) -> Plain:
        raise OSError("no answer from https://bob:opensesame@front/api")

    spec = safe_spec(Panel("x", "X", "", "", draw), View([]))
    assert spec["empty"].endswith("OSError: no answer from https://***@front/api")
    assert "opensesame" not in caplog.text


def test_a_panel_that_failed_once_is_drawn_when_it_is_asked_for_again(
    store_at: StoreAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = iter([OSError("the artifacts are away"), {"empty": "drawn"}])

    def draw(view: View) -> Plain:
        if isinstance(answer := next(draws), OSError):
            raise answer
        return answer

    monkeypatch.setitem(PANELS, "mistakes", Panel("mistakes", "X", "", "", draw))
    app = make_app(store_at("ranks", [FakeSession(), *configuration("aaaaaaaaaa")]))
    panel = next(route.endpoint for route in app.routes if getattr(route, "path", "") == "/api/panel/{name}")
    answers = [panel(Request({"type": "http", "headers": []}), "mistakes", []) for _ in range(3)]
    assert [b"drawn:" in answer.body for answer in answers] == [True, False, False], "what was drawn is kept"
    assert ["ETag" in answer.headers for answer in answers] == [False, True, True]


def test_a_page_reads_a_slow_store_less_often_and_says_so(store_at: StoreAt, tmp_path: Path) -> None:
    store = store_at("ranks", [FakeSession(), *configuration("aaaaaaaaaa")])
    sweeps = Sweeps(store, every_s=2.0)
    ((feed,), revision, _) = sweeps.view([])
    feed.look_cost = 0.05
    assert sweeps.pace([feed]) == "read at least every 5 s"
    feed.look_cost = 3.1
    assert feed.wait_s(2.0) == pytest.approx(62.0)
    assert sweeps.pace([feed]) == "read at least every 65 s"
    report = Reported(key=feed.frames.trials()[0].entry.key, rows=[{"step": 9, "search_score": 1.0}], epoch=9.0, total_steps=9)
    send(store.uri, tmp_path / "ranks", report)
    assert sweeps.view([])[1] == revision, "it was read a moment ago"
    feed.look_cost = 0.0
    assert Sweeps(Store(store.uri), every_s=0.0).view([])[1] != revision, "a server that is started again reads it"


def test_a_sweep_that_is_started_anew_is_shown_in_place_of_the_one_before(
    store_at: StoreAt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at("ranks", [FakeSession(), *configuration("before")])
    sweeps = Sweeps(store, every_s=0.0)
    ((feed,), _, _) = sweeps.view([])
    MlflowClient(store.uri).delete_run(feed.run.info.run_id)
    monkeypatch.setattr("tests.dashboards.synthetic.sweep_id", lambda name: "a" * 32)
    send(store.uri, tmp_path / "again", *events_of("ranks", configuration("other")))
    sweeps.entries()
    assert [row.id for row in sweeps.view(["ranks"])[2].configurations] == ["other"]
    assert sweeps.view(["removed"])[2].names == ["ranks"], "an address that names a sweep which is gone shows what is there"

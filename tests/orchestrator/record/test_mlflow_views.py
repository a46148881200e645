"""MLflow's own page: its saved views of a sweep, and what it says of a run. The browser's test looks at them on a server."""

from __future__ import annotations

import getpass
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import origin
from orchestrator.record.mlflow_run import short_name
from orchestrator.record.shipper import saved_page
from orchestrator.record.tracker import Tracker
from orchestrator.results.chances import P_FRONT, P_WITHIN
from tests.dashboards.browser import CHROMIUM, DRIVER, Browser
from tests.mlflow_server import Server
from tests.orchestrator.tracked import finished, runs, spec

PREFIX = "mlflow.sharedViewState."
INFO = {"objectives": '{"score": "maximize", "trainable_parameters": "minimize"}', "tasks": "toy/acceptability"}


def track(
    uri: str, folder: Path, *ranks: int, info: dict[str, Any] | None = None, scores: dict[int, float] | None = None
) -> str:
    """Records a sweep of a trial for each rank and a candidate that only tunes, and returns its id."""
    tracker = Tracker(uri, "demo", folder)
    tracker.sweep_started(INFO | (info or {}))
    tracker.trial_started(replace(spec(rank=99), tunes="0123456789"))
    for rank in ranks:
        trial, score = spec(rank=rank), (scores or {}).get(rank, 80.0)
        tracker.trial_started(trial, size=2.0 * rank * rank)
        tracker.trial_ended(finished(trial, score))
        summary = {"score": score, "score_low": score - 2, "score_high": score + 2, "trainable_parameters": 2 * rank * rank}
        params = {"method": "craft", "ranks": ["all", rank, rank], "projections": "q,v", "learning_rate": 1e-3, "dropout": 0}
        tracker.configuration_ended(trial.configuration, trial.label, params, summary | {"complete": True, "trials_done": 1})
    tracker.sweep_ended("finished", {})
    assert tracker.close(60) == 0
    return tracker.sweep_id


def experiment(uri: str) -> Any:
    return MlflowClient(uri).get_experiment_by_name("demo")


def views(uri: str) -> dict[str, dict[str, Any]]:
    """The states of the experiment's views by the first word of their keys and the sweep's short id."""
    tags = {
        name.removeprefix(PREFIX): json.loads(value) for name, value in experiment(uri).tags.items() if name.startswith(PREFIX)
    }
    assert all({"name", "createdAt", "state"} == view.keys() for view in tags.values()), "as MLflow's page reads them"
    return {key: {**view, **json.loads(view["state"])} for key, view in tags.items()}


def test_each_sweep_of_an_experiment_has_two_views_of_its_own(uri: str, tmp_path: Path) -> None:
    client = MlflowClient(uri)
    client.create_experiment("demo", tags={"mlflow.note.content": "What we are after."})
    ids = [track(uri, tmp_path / name, 8, 16) for name in ("first", "second")]
    found = views(uri)
    assert found.keys() == {f"{kind}-{id[:8]}" for kind in ("front", "trials") for id in ids}
    for id in ids:
        front, trials = found[f"front-{id[:8]}"], found[f"trials-{id[:8]}"]
        for view, kind, count in ((front, "configuration", 2), (trials, "trial", 3)):
            shown = client.search_runs(
                [experiment(uri).experiment_id],
                view["searchFilter"],
                order_by=[f"{view['orderByKey']} {'ASC' if view['orderByAsc'] else 'DESC'}"],
            )
            assert [run.data.tags["craft.kind"] for run in shown] == [kind] * count
            assert {run.data.tags["craft.sweep_id"] for run in shown} == {id}
        numbers = ["score", "score_low", "score_high", "trainable_parameters", P_FRONT, P_WITHIN]
        assert front["selectedColumns"][:6] == [f"metrics.`{name}`" for name in numbers]
        charts = {chart["type"]: chart for chart in front["compareRunCharts"]}
        scatter = charts["SCATTER"]
        assert (scatter["xaxis"]["key"], scatter["yaxis"]["key"]) == ("trainable_parameters", "score")
        named = {name for chart in front["compareRunCharts"] for name in chart.get("selectedParams", ())}
        assert {"ranks", "rank", "projections", "learning_rate", "dropout"} <= named
        assert front["runsHiddenMode"] == "SHOW_ALL"
    note = experiment(uri).tags["mlflow.note.content"]
    assert note.startswith("What we are after.")
    assert [note.count(f"viewStateShareKey=front-{id[:8]})") for id in ids] == [1, 1]


def test_a_view_that_somebody_changed_stays_on_a_resume(uri: str, tmp_path: Path) -> None:
    id = track(uri, tmp_path, 8)
    changed = json.dumps({"name": "mine", "createdAt": 1, "state": "{}"})
    MlflowClient(uri).set_experiment_tag(experiment(uri).experiment_id, f"{PREFIX}front-{id[:8]}", changed)
    track(uri, tmp_path, 8)
    assert views(uri)[f"front-{id[:8]}"]["name"] == "mine"
    assert experiment(uri).tags["mlflow.note.content"].count("**demo**") == 1


@pytest.mark.parametrize(
    ("objectives", "order", "column"),
    [
        ({"score": "maximize", "seconds": "minimize"}, ("metrics.`score`", False), "metrics.`seconds`"),
        ({"forgetting": "minimize"}, ("metrics.`forgetting`", True), "metrics.`forgetting`"),
    ],
)
def test_the_view_follows_the_objectives(
    uri: str, tmp_path: Path, objectives: dict[str, str], order: tuple[str, bool], column: str
) -> None:
    id = track(uri, tmp_path, 8, info={"objectives": json.dumps(objectives)})
    view = views(uri)[f"front-{id[:8]}"]
    assert (view["orderByKey"], view["orderByAsc"]) == order
    assert column in view["selectedColumns"]


def test_the_link_is_there_once_the_store_has_the_sweep(uri: str, tmp_path: Path) -> None:
    assert saved_page(SweepFolder(tmp_path), uri) is None
    id = track(uri, tmp_path, 8)
    page = saved_page(SweepFolder(tmp_path), uri)
    assert page == f"#/experiments/{experiment(uri).experiment_id}/runs?viewStateShareKey=front-{id[:8]}"
    assert saved_page(SweepFolder(tmp_path), "http://elsewhere:5000") is None


def test_every_run_says_whose_it_is(uri: str, tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    file = tmp_path / "sweeps" / "mine.yaml"
    git: Callable[..., Any] = lambda *words: subprocess.run(  # noqa: E731
        ["git", "-C", str(file.parent), "-c", "user.name=a", "-c", "user.email=a@b.c", *words],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "mlflow.source.git.commit" not in origin(file)
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "begin")
    track(uri, tmp_path / "runs", 8, info={"origin": origin(file)})
    expected = {
        "mlflow.user": getpass.getuser(),
        "mlflow.source.name": str(file),
        "mlflow.source.git.commit": git("rev-parse", "HEAD").stdout.strip(),
    }
    for run in runs(uri).values():
        assert {name: run.data.tags.get(name) for name in expected} == expected
        assert run.info.user_id == getpass.getuser()


@pytest.mark.parametrize(
    ("method", "label", "size", "name"),
    [
        ("craft", "CRAFT 64, q k v o", 4108.0, "4,108 · CRAFT 64 qkvo"),
        ("craft", "CRAFT 64, q v, lr 0.003, cut to 1/8", 1932.0, "1,932 · CRAFT 64 qv lr 0.003 cut to 1/8"),
        ("lora", "LoRA r8, q v up down", None, "LoRA r8 qv up down"),
        ("head", "Head alone", 0.0, "0 · Head alone"),
        ("peft", "LILY r 8", 12.0, "12 · peft LILY r 8"),
    ],
)
def test_short_names(method: str, label: str, size: float | None, name: str) -> None:
    assert short_name(method, label, size) == name


def test_names_have_the_parameters_that_were_counted_in_the_end(uri: str, tmp_path: Path) -> None:
    trial = spec(label="CRAFT 64, q v, cut to 1/8")
    tracker = Tracker(uri, "demo", tmp_path)
    tracker.sweep_started(INFO)
    tracker.trial_started(trial, size=2057.0)
    tracker.flush(60)
    assert {run.info.run_name for run in runs(uri).values()} == {
        "demo",
        "2,057 · CRAFT 64 qv cut to 1/8",
        "s0 · 2,057 · CRAFT 64 qv cut to 1/8 · toy/acceptability",
    }
    tracker.trial_ended(finished(trial))
    tracker.configuration_ended(
        trial.configuration, trial.label, {"method": "craft"}, {"score": 80.0, "trainable_parameters": 328}
    )
    assert tracker.close(60) == 0
    table = runs(uri)
    assert table["trial", trial.key].info.run_name == "s0 · 328 · CRAFT 64 qv cut to 1/8 · toy/acceptability"
    assert table["configuration", trial.configuration].info.run_name == "328 · CRAFT 64 qv cut to 1/8"


@pytest.mark.parametrize(
    ("summary", "said", "taken"),
    [
        (
            {"score": 95.0, "score_low": 92.5, "score_high": 97.0, "trainable_parameters": 4108},
            "**score 95.00** (92.50 to 97.00), 4,108 trainable parameters",
            True,
        ),
        ({"score": 95.0, "trainable_parameters": 4108}, "**score 95.00**, 4,108 trainable parameters", True),
        ({"score": 95.0, "error": "seed 1: out of memory", "status": "failed"}, "seed 1: out of memory", True),
        (
            {"trainable_parameters": 55296, "error": "55,296 is above max 40,000", "status": "infeasible"},
            "55,296 is above max 40,000",
            False,
        ),
    ],
    ids=["interval", "one value", "failed", "infeasible"],
)
def test_the_description_of_a_configuration(uri: str, tmp_path: Path, summary: dict[str, Any], said: str, taken: bool) -> None:
    tracker = Tracker(uri, "demo", tmp_path)
    tracker.sweep_started(INFO)
    tracker.configuration_ended("c0ffee0000", "CRAFT 64, q v", {"method": "craft"}, {"complete": False, **summary})
    assert tracker.close(60) == 0
    note = runs(uri)["configuration", "c0ffee0000"].data.tags["mlflow.note.content"]
    assert said in note
    command = f"python -m orchestrator.adapters demo --pick c0ffee0000 --to adapter --tracking-uri {uri}"
    assert (command in note) == taken


def test_parameters_stay_true_after_an_extension(uri: str, tmp_path: Path) -> None:
    for seeds, rate in (("0", {"learning_rate": 1e-3}), ("0,1", {}), ("0", {"learning_rate": 1e-3})):
        tracker = Tracker(uri, "demo", tmp_path)
        tracker.sweep_started(INFO | {"seeds": seeds, "model": "m"})
        tracker.configuration_ended(
            "c0ffee0000", "CRAFT", {"method": "craft", **rate}, {"score": 1.0, "trials_done": len(seeds)}
        )
        assert tracker.close(60) == 0
        table = runs(uri)
        sweep, configuration = table["sweep", "demo"], table["configuration", "c0ffee0000"]
        assert (sweep.data.tags["craft.seeds"], sweep.data.params["model"]) == (seeds, "m")
        assert "seeds" not in sweep.data.params
        now = configuration.data.tags.get("craft.now.learning_rate", configuration.data.params["learning_rate"])
        assert now == ("0.001" if rate else "differs between trials")


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")
def test_mlflows_page_shows_the_front_of_the_sweep_that_the_link_names(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path / 'server.db'}", tmp_path)
    server.start()
    browser = None
    try:
        track(server.uri, tmp_path / "other", 4)
        track(server.uri, tmp_path / "runs", 8, 16, 24, scores={8: 70.0, 16: 90.0, 24: 85.0})
        page = f"{server.uri}/{saved_page(SweepFolder(tmp_path / 'runs'), server.uri)}"
        browser = Browser(tmp_path / "profile", width=2200)
        browser.driver.get(page)
        browser.wait("document.querySelectorAll('.ag-center-cols-container .ag-row').length >= 3")
        names = browser.run("[...document.querySelectorAll('.ag-pinned-left-cols-container a')].map(link => link.innerText)")
        assert [name.split(" · ")[0] for name in names if "·" in name] == ["512", "1,152", "128"], "by score, best first"
        heads = browser.run("[...document.querySelectorAll('.ag-header-cell')].map(cell => cell.innerText.trim())")
        assert {"score", "score_low", "score_high", "trainable_parameters"} <= set(heads)
        browser.driver.get("about:blank")
        browser.driver.get(f"{page}&compareRunsMode=CHART")
        browser.wait("document.querySelectorAll('.scatterlayer .point').length === 3")
        titles = browser.run("[...document.querySelectorAll('.xtitle, .ytitle')].map(title => title.textContent)")
        assert titles[:2] == ["trainable_parameters", "score"]
    finally:
        if browser is not None:
            browser.driver.quit()
        server.kill()

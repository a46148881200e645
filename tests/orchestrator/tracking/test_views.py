"""MLflow's own page: its saved views of a sweep, and what it says of a run. The browser's test looks at them on a server."""

from __future__ import annotations

import getpass
import json
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from orchestrator.plan.trial import Why
from orchestrator.record.manifest import origin
from orchestrator.results.probabilities import P_ENOUGH, P_FRONT
from orchestrator.review.desired_runs import describe_configuration
from orchestrator.review.saved_views import address, shared_parameters
from orchestrator.tools.markup import plain
from tests.dashboards.browser import MISSING, Browser
from tests.mlflow_server import Server
from tests.orchestrator.logged import SweepLog, entry, mirror, runs

PREFIX = "mlflow.sharedViewState."


def track(uri: str, folder: Path, *scores: float, sweep_id: str = "5" * 32, **info: Any) -> Path:
    """Records a sweep of configurations with these scores, and a candidate that only tunes; returns its folder."""
    sweep = SweepLog(folder, sweep_id=sweep_id)
    trials = [entry(rank=8 * number) for number in range(1, len(scores) + 1)]
    sweep.start(candidate := entry(99, why=Why("candidate", "0123456789")), *trials, **info)
    sweep.run(candidate)
    sweep.train(*trials, scores={trial.key: score for trial, score in zip(trials, scores, strict=True)})
    sweep.close()
    mirror(folder, uri)
    return folder


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
    ids = [f"{number:032x}"[::-1] for number in (1, 2)]
    for id in ids:
        track(uri, tmp_path / id, 80.0, 81.0, sweep_id=id)
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
        numbers = ["score", "trainable_parameters", "score_low", "score_high", P_FRONT, P_ENOUGH]
        assert front["selectedColumns"][:6] == [f"metrics.`{name}`" for name in numbers]
        charts = {chart["type"]: chart for chart in front["compareRunCharts"]}
        scatter = charts["SCATTER"]
        assert (scatter["xaxis"]["key"], scatter["yaxis"]["key"]) == ("trainable_parameters", "score")
        assert front["runsHiddenMode"] == "SHOW_ALL"
    note = experiment(uri).tags["mlflow.note.content"]
    assert note.startswith("What we are after.")
    assert [note.count(f"viewStateShareKey=front-{id[:8]})") for id in ids] == [1, 1]


def test_a_view_that_somebody_changed_stays_on_a_resume(uri: str, tmp_path: Path) -> None:
    track(uri, tmp_path, 80.0)
    changed = json.dumps({"name": "mine", "createdAt": 1, "state": "{}"})
    MlflowClient(uri).set_experiment_tag(experiment(uri).experiment_id, f"{PREFIX}front-55555555", changed)
    mirror(tmp_path, uri)
    assert views(uri)["front-55555555"]["name"] == "mine"
    assert experiment(uri).tags["mlflow.note.content"].count("[the front]") == 1


def test_the_description_begins_with_the_answer_once_there_is_one_and_keeps_what_people_wrote(uri: str, tmp_path: Path) -> None:
    trials = [entry(rank=8 * number) for number in (1, 2)]
    sweep = SweepLog(tmp_path)
    sweep.start(*trials)
    mirror(tmp_path, uri)
    note = experiment(uri).tags["mlflow.note.content"]
    assert note.startswith("[the front](#/experiments/")
    MlflowClient(uri).set_experiment_tag(experiment(uri).experiment_id, "mlflow.note.content", f"Mine.\n\n{note}\n\nAlso mine.")
    sweep.train(*trials, scores={trial.key: 80.0 + place for place, trial in enumerate(trials)})
    sweep.close()
    mirror(tmp_path, uri)
    verdict = runs(uri)["sweep", "demo"].data.tags["craft.answer"].splitlines()[0]
    note = f"Mine.\n\n{plain(verdict)} {note}\n\nAlso mine."
    assert experiment(uri).tags["mlflow.note.content"] == note


def test_a_description_that_is_full_loses_the_oldest_answers_and_nothing_that_people_wrote(uri: str, tmp_path: Path) -> None:
    old = [f"Answer {number} [the front](#/experiments/1/runs?viewStateShareKey=front-{number})" for number in range(400)]
    MlflowClient(uri).create_experiment("demo", tags={"mlflow.note.content": "\n\n".join(["Mine.", *old])[:19_999]})
    track(uri, tmp_path, 80.0)
    note = experiment(uri).tags["mlflow.note.content"]
    assert note.startswith("Mine.\n\nAnswer ")
    assert not note.startswith("Mine.\n\nAnswer 0 ")
    assert note.count("viewStateShareKey=front-55555555)") == 1
    assert "front-55555555" in views(uri)


def test_the_page_shows_four_digits_of_a_metric(uri: str, tmp_path: Path) -> None:
    trial = entry(planned={"trainable_parameters": 1234567.0, "step_seconds": 0.000123456})
    sweep = SweepLog(tmp_path)
    sweep.start(trial)
    sweep.train(trial, scores={trial.key: 100 * 239 / 240})
    mirror(tmp_path, uri)
    stored = runs(uri)["trial", trial.key].data.metrics
    assert [stored[name] for name in ("score", "trainable_parameters", "step_seconds")] == [99.5833, 1234567.0, 0.0001235]


@pytest.mark.parametrize(
    ("space", "names"),
    [
        ([{"method": "bitfit"}, {"method": "lora", "rank": 8, "learning_rate": 1e-3, "sizes": 2}], ["method", "learning_rate"]),
        ([{"method": "head"}, {"method": "lora", "learning_rate": 1e-3, "batch_size": 8}], ["method", "batch_size"]),
        ([{"method": "head", "learning_rate": 1e-3}, {"method": "lora", "learning_rate": 1e-3}], ["method"]),
        ([{"method": "lora", "rank": {"values": [1, 2]}, "resources": {"gpu": 1}}], ["method", "rank"]),
        (
            [{"method": "lora", "rank": 1, "projections": ["q"]}, {"method": "craft", "projections": ["v"]}],
            ["method", "projections"],
        ),
    ],
)
def test_parallel_coordinates_have_what_all_configurations_have(space: list[dict[str, Any]], names: list[str]) -> None:
    assert shared_parameters(space) == names


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
    track(uri, tmp_path, 80.0, objectives=objectives)
    view = views(uri)["front-55555555"]
    assert (view["orderByKey"], view["orderByAsc"]) == order
    assert column in view["selectedColumns"]


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
    track(uri, tmp_path / "runs", 80.0, origin=origin(file))
    expected = {
        "mlflow.user": getpass.getuser(),
        "mlflow.source.name": str(file),
        "mlflow.source.git.commit": git("rev-parse", "HEAD").stdout.strip(),
    }
    for run in runs(uri).values():
        assert {name: run.data.tags.get(name) for name in expected} == expected
        assert run.info.user_id == getpass.getuser()


def test_names_have_the_parameters_that_were_counted_in_the_end(uri: str, tmp_path: Path) -> None:
    trial = entry(label="CRAFT 64, q v, cut to 1/8", planned={"trainable_parameters": 2057.0})
    sweep = SweepLog(tmp_path)
    sweep.begin(trial)
    for size in ("2,057", "328"):
        if size == "328":
            sweep.finish(trial, counts={"trainable_parameters": 328.0})
        mirror(tmp_path, uri)
        assert {run.info.run_name for run in runs(uri).values()} == {
            "demo",
            f"{size} · CRAFT 64 qv cut to 1/8",
            f"s0 · {size} · CRAFT 64 qv cut to 1/8 · toy/sentiment",
        }


def test_no_command_of_a_description_has_a_password() -> None:
    note = describe_configuration("c0ffee0000", {"score": 95.0}, None, "demo", "http://me:secret@host")
    assert "--pick c0ffee0000 --to adapter" in note
    assert "--tracking-uri" not in note


@pytest.mark.browser
@pytest.mark.slow
@MISSING
def test_mlflows_page_shows_the_front_of_the_sweep_that_the_link_names(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path / 'server.db'}", tmp_path)
    with closing(server), Browser(tmp_path / "profile", width=2200) as browser:
        server.start()
        track(server.uri, tmp_path / "other", 80.0, sweep_id="4" * 32)
        track(server.uri, tmp_path / "runs", 70.0, 90.0, 85.0)
        page = f"{server.uri}/{address(experiment(server.uri).experiment_id, '5' * 32)}"
        browser.driver.get(page)
        browser.wait("document.querySelectorAll('.ag-center-cols-container .ag-row').length >= 3")
        names = browser.run("[...document.querySelectorAll('.ag-pinned-left-cols-container a')].map(link => link.innerText)")
        assert [name.split(" · ")[0] for name in names if "·" in name] == ["512", "1,152", "128"], "by score, best first"
        heads = browser.run("[...document.querySelectorAll('.ag-header-cell')].map(cell => cell.innerText.trim())")
        assert {"score", "trainable_parameters"} <= set(heads)
        browser.driver.get("about:blank")
        browser.driver.get(f"{page}&compareRunsMode=CHART")
        browser.wait("document.querySelectorAll('.scatterlayer .point').length === 3")
        titles = browser.run("[...document.querySelectorAll('.xtitle, .ytitle')].map(title => title.textContent)")
        assert titles[:2] == ["trainable_parameters", "score"]

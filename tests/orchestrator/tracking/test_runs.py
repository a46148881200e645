"""What MLflow shows of a sweep, on a real SQLite store: its runs with all they have, and the sweep's saved views."""

from __future__ import annotations

import getpass
import hashlib
import itertools
import json
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from orchestrator.plan.trial import Why
from orchestrator.record.events import Paused
from orchestrator.record.manifest import origin
from orchestrator.results.probabilities import P_ENOUGH, P_FRONT
from orchestrator.review.desired_runs import describe_configuration
from orchestrator.review.saved_views import address, shared_parameters
from orchestrator.tools.markup import plain
from tests.dashboards.browser import MISSING, Browser
from tests.mlflow_server import Server
from tests.orchestrator.logged import SweepLog, entry, finished, history, mirror, runs, story


def test_a_sweep_as_mlflow_shows_it(uri: str, tmp_path: Path) -> None:
    next(itertools.islice(story(tmp_path / "runs"), 6, None))
    mirror(tmp_path / "runs", uri)
    table, client = runs(uri), MlflowClient(uri)
    sweep, configuration, trial = table["sweep", "demo"], table["configuration", f"{8:010x}"], table["trial", entry(8).key]
    parents = [run.data.tags["mlflow.parentRunId"] for run in (trial, configuration)]
    assert parents == [configuration.info.run_id, sweep.info.run_id]
    assert trial.info.run_name == "s0 · 128 · craft 6·8·8 qv lr 3e-4 · toy/sentiment"
    assert configuration.info.run_name == "128 · craft 6·8·8 qv lr 3e-4"
    assert (trial.data.params["ranks"], trial.data.params["learning_rate"]) == ("all,8,8", "3e-4")
    assert trial.data.params["total_steps"] == "30"
    assert history(uri, trial, "search_score") == [(10, 60.0), (30, 80.0)], "it was no number at step 20"
    assert history(uri, trial, "train_loss") == [(5, 0.1), (15, 0.05), (25, 0.03333)], "four digits"
    assert (trial.data.metrics["score"], trial.data.metrics["best_search_score"]) == (70.0, 69.0)
    expected = {
        **{"kind": "trial", "sweep": "demo", "configuration": f"{8:010x}", "task": "toy/sentiment", "seed": "0"},
        **{"method": "craft", "protocol": "honest", "status": "finished", "on_front": "false", "fact.device": "cpu"},
    }
    assert {name: trial.data.tags[f"craft.{name}"] for name in expected} == expected
    front = {key for key, run in table.items() if run.data.tags.get("craft.on_front") == "true"}
    assert ("configuration", f"{4:010x}") in front
    assert ("trial", entry(4).key) in front
    assert sum(run.data.tags.get("craft.knee") == "true" for (kind, _), run in table.items() if kind == "configuration") == 1
    scores = {f"score/{task}": score for task, score in (("toy/sentiment", 70.0), ("toy/paraphrase", 80.0))}
    assert scores.items() <= configuration.data.metrics.items()
    assert (configuration.data.metrics["score"], configuration.data.params["projections"]) == (75.0, "q,v")
    text = configuration.data.tags["mlflow.note.content"]
    assert text.startswith("**score 75.00**, 128 trainable parameters\n")
    replicated = table["configuration", f"{16:010x}"].data.tags["mlflow.note.content"]
    assert replicated.startswith("**score 87.33** (71.36 to 100.00), 512 trainable parameters\n")
    assert f"craft-sweeps take demo --pick {8:010x} --to adapter --tracking-uri {uri}" in text
    assert "craft.tunes" in table["configuration", f"{99:010x}"].data.tags
    refused = table["configuration", "f" * 10]
    assert (refused.info.status, refused.data.tags["craft.complete"]) == ("FINISHED", "false")
    assert refused.data.tags["mlflow.note.content"] == "trainable\\_parameters is above max 40,000"
    assert (refused.data.params, refused.data.metrics) == ({"method": "craft", "rank": "1"}, {"trainable_parameters": 1e6})
    counts = {"trials_planned": 7, "trials_done": 6, "trials_stopped": 1, "trials_failed": 0, "seconds": 60.0}
    assert counts.items() <= sweep.data.metrics.items()
    assert (sweep.data.tags["craft.seeds"], sweep.data.params["model"]) == ("0,1,2", "sentence-transformers/all-MiniLM-L6-v2")
    note = sweep.data.tags["mlflow.note.content"]
    answer, _, table = note.partition("\n| ")
    assert answer.startswith(sweep.data.tags["craft.answer"].partition("\n")[0])
    assert "Next: run two more seeds of all 3 configurations" in answer
    assert table.endswith(f"\n\n![front.png](get-artifact?path=front.png&run_uuid={sweep.info.run_id})")
    dataset = trial.inputs.dataset_inputs[0].dataset
    assert (dataset.name, dataset.digest) == ("toy/sentiment", ("ab" * 32)[:36])

    files = {item.path for item in client.list_artifacts(sweep.info.run_id)}
    assert files == {"front.csv", "front.png", "log", "manifest.json", "sweep.yaml"}
    local = Path(client.download_artifacts(sweep.info.run_id, "front.csv", str(tmp_path)))
    assert local.read_text() == "configuration,score\nb,1\n", "the last session's"
    local = Path(client.download_artifacts(trial.info.run_id, "adapter", str(tmp_path)))
    assert [item.path for item in client.list_artifacts(trial.info.run_id, "predictions")] == ["predictions/boolq.jsonl"]
    weights = (local / "adapter_model.safetensors").read_bytes()
    assert hashlib.sha256(weights).digest() == hashlib.sha256(bytes(range(256)) * 40).digest()
    assert (tmp_path / "mlartifacts").is_dir(), "artifacts are in a folder next to the database"


@pytest.mark.slow
def test_how_runs_change_while_a_sweep_does(uri: str, tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []
    broken = entry(32).key
    for part, _ in enumerate(story(tmp_path / "runs")):
        mirror(tmp_path / "runs", uri)
        table = runs(uri)
        seen.append({key: run.data.tags["craft.status"] for (_, key), run in table.items()})
        underway = table["sweep", "demo"].data.tags.get("craft.underway", "")
        if part == 0:
            report = json.loads(underway)
            assert (report["left"], report["doing"]) == (30.0, "training")
            assert report["time"] > 1.7e12, "milliseconds, so that a reader knows how old it is"
        if part == 1:
            failed, configuration = table["trial", broken], table["configuration", f"{32:010x}"]
            assert (failed.info.status, failed.data.tags["craft.error"]) == ("FAILED", "cuda is gone")
            assert all("cuda is gone" in run.data.tags["mlflow.note.content"] for run in (failed, configuration))
    assert underway == ""
    histories = {key: [statuses.get(key, "") for statuses in seen] for key in seen[-1]}
    assert histories == {
        "demo": ["running"] * 4 + ["finished", "running", "finished"],
        "f" * 10: ["infeasible"] * 7,
        f"{8:010x}": ["running", "running", "interrupted", *["finished"] * 4],
        entry(8).key: ["running", "interrupted", "interrupted", *["finished"] * 4],
        entry(8, task="toy/paraphrase").key: ["running", "running", "interrupted", *["finished"] * 4],
        f"{99:010x}": ["", *["incomplete"] * 6],  # a candidate is not reported
        entry(99).key: ["", *["finished"] * 6],
        f"{32:010x}": ["", "failed", "incomplete", *["stopped"] * 4],  # the next session runs its trial again
        broken: ["", "failed", "failed", *["stopped"] * 4],
        f"{16:010x}": ["", "", "interrupted", "finished", "finished", "waiting", "finished"],
        entry(16).key: ["", "", "interrupted", *["finished"] * 4],
        f"{4:010x}": ["", "", "interrupted", *["finished"] * 4],
        entry(4).key: ["", "", "interrupted", *["finished"] * 4],
        **{entry(16, seed=seed).key: [*[""] * 6, "finished"] for seed in (1, 2)},
    }
    run = runs(uri)["trial", broken]
    assert run.info.status == "FINISHED"
    assert run.data.tags.get("craft.error", "") == "", "what an earlier try left there is no longer true"
    assert run.data.tags["mlflow.note.content"] == "**stopped**\n\n- never among the best"
    run = runs(uri)["trial", entry(8).key]
    assert "search_loss" not in run.data.metrics


@pytest.mark.slow
def test_after_an_extension_and_back_the_values_are_those_of_the_last_session(uri: str, tmp_path: Path) -> None:
    first, second = entry(), entry(seed=1, parameters={"learning_rate": 1e-3})
    sweep = SweepLog(tmp_path)
    for trials, trained, score in (([first], first, 80.0), ([first, second], second, 85.0), ([first], None, 80.0)):
        sweep.start(*trials, seeds=list(range(len(trials))), model=f"m{len(trials)}")
        if trained:
            sweep.train(trained, scores={second.key: 90.0})
        sweep.close()
        mirror(tmp_path, uri)
        run, configuration = runs(uri)["sweep", "demo"], runs(uri)["configuration", first.trial.configuration]
        assert run.data.tags["craft.seeds"] == ",".join(map(str, range(len(trials))))
        assert run.data.tags.get("craft.now.model", run.data.params["model"]) == f"m{len(trials)}"
        assert "seeds" not in run.data.params
        assert (configuration.data.metrics["planned"], configuration.data.metrics["score"]) == (len(trials), score)
        now = configuration.data.tags.get("craft.now.learning_rate", configuration.data.params["learning_rate"])
        assert now == ("3e-4" if len(trials) == 1 else "differs between trials")


def test_a_resumed_trial_repeats_no_step(uri: str, tmp_path: Path) -> None:
    trial, sweep = entry(), SweepLog(tmp_path)
    sweep.begin(trial)
    sweep.report(trial, 10)
    sweep.report(trial, 20)
    sweep.add(Paused, keys=[trial.key])
    mirror(tmp_path, uri)
    paused, configuration = runs(uri)["trial", trial.key], runs(uri)["configuration", trial.trial.configuration]
    assert (paused.info.status, paused.data.tags["craft.status"]) == ("KILLED", "interrupted")
    assert configuration.data.tags["craft.status"] == "running", "it is not over while its trial is paused"
    sweep.close("interrupted")
    mirror(tmp_path, uri)
    assert {run.info.status for run in runs(uri).values()} == {"KILLED"}
    # It resumes from the checkpoint of step 10: step 20 comes again, at another time and with another rounding.
    sweep.begin(trial)
    sweep.report(trial, 20, search_score=70.0000001)
    sweep.report(trial, 30)
    mirror(tmp_path, uri)
    assert history(uri, runs(uri)["trial", trial.key], "search_score") == [(10, 60.0), (20, 70.0), (30, 80.0)]


def test_hostile_and_long_names_are_text(uri: str, tmp_path: Path) -> None:
    label = "<script>alert('x')</script> ../../etc \x00 日本 " + "x" * 400
    planned = {"trainable_parameters": 1e6}
    trial = entry(label=label, parameters={"note": "y" * 9000, "../../bad//name": 1, "when": None}, planned=planned)
    sweep = SweepLog(tmp_path)
    sweep.begin(trial)
    mirror(tmp_path, uri)
    assert runs(uri)["trial", trial.key].info.run_name.startswith("s0 · 1,000,000 · craft <script>")
    result = finished(trial, 100 * 239 / 240, counts={"trainable_parameters": 1234567.0})
    sweep.end(trial, "finished", metrics={**result.metrics, "score/../../x": 1.0}, counts=result.counts)
    mirror(tmp_path, uri)
    run = runs(uri)["trial", trial.key]
    assert run.info.run_name.startswith("s0 · 1,234,567 · craft <script>alert('x')</script> ../../etc � 日本"), "as counted"
    assert len(run.data.params["note"]) == 6000
    assert run.data.params["note"].endswith("(cut, 9000 characters)")
    assert run.data.params["bad/name"] == "1"
    assert run.data.metrics["score/x"] == 1.0
    assert [run.data.metrics[name] for name in ("score", "trainable_parameters")] == [99.5833, 1234567.0], "four digits"


def test_passwords_reach_nothing(uri: str, tmp_path: Path) -> None:
    secret = "postgresql://user:hunter2@db.example:5432/mlflow?password=hunter2"
    folder = tmp_path / "runs"
    trial, sweep = entry(parameters={"origin": secret}), SweepLog(folder)
    sweep.begin(trial, tracking={"uri": secret}, manifest={"command": ["run", secret]})
    sweep.end(trial, "failed", error=f"cannot reach {secret}", facts={"store": secret})
    sweep.close("failed")
    assert mirror(folder, uri).refused == 0
    for stored in tmp_path.rglob("*"):
        if stored.is_file():
            assert b"hunter2" not in stored.read_bytes(), stored
    assert any(b"***@db.example" in stored.read_bytes() for stored in (tmp_path / "mlartifacts").rglob("sweep.yaml"))


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


@pytest.mark.slow
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


def test_the_description_begins_with_the_answer_and_what_people_wrote_or_changed_stays(uri: str, tmp_path: Path) -> None:
    trials = [entry(rank=8 * number) for number in (1, 2)]
    sweep, client = SweepLog(tmp_path), MlflowClient(uri)
    sweep.start(*trials)
    mirror(tmp_path, uri)
    place, note = experiment(uri).experiment_id, experiment(uri).tags["mlflow.note.content"]
    assert note.startswith("[the front](#/experiments/")
    client.set_experiment_tag(place, "mlflow.note.content", f"Mine.\n\n{note}\n\nAlso mine.")
    changed = json.dumps({"name": "mine", "createdAt": 1, "state": "{}"})
    client.set_experiment_tag(place, f"{PREFIX}front-55555555", changed)
    sweep.train(*trials, scores={trial.key: 80.0 + place for place, trial in enumerate(trials)})
    sweep.close()
    mirror(tmp_path, uri)
    verdict = runs(uri)["sweep", "demo"].data.tags["craft.answer"].splitlines()[0]
    assert experiment(uri).tags["mlflow.note.content"] == f"Mine.\n\n{plain(verdict)} {note}\n\nAlso mine."
    assert views(uri)["front-55555555"]["name"] == "mine"


def test_a_description_that_is_full_loses_the_oldest_answers_and_nothing_that_people_wrote(uri: str, tmp_path: Path) -> None:
    old = [f"Answer {number} [the front](#/experiments/1/runs?viewStateShareKey=front-{number})" for number in range(400)]
    MlflowClient(uri).create_experiment("demo", tags={"mlflow.note.content": "\n\n".join(["Mine.", *old])[:19_999]})
    track(uri, tmp_path, 80.0)
    note = experiment(uri).tags["mlflow.note.content"]
    assert note.startswith("Mine.\n\nAnswer ")
    assert not note.startswith("Mine.\n\nAnswer 0 ")
    assert note.count("viewStateShareKey=front-55555555)") == 1
    assert "front-55555555" in views(uri)


@pytest.mark.parametrize(
    ("space", "names"),
    [
        ([{"method": "head"}, {"method": "lora", "learning_rate": 1e-3, "batch_size": 8}], ["method", "batch_size"]),
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
    file = tmp_path / "sweeps" / "mine.yaml"
    file.parent.mkdir()
    assert "mlflow.source.git.commit" not in origin(file)
    git = ["git", "-C", str(file.parent), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "begin"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
    track(uri, tmp_path / "runs", 80.0, origin=origin(file))
    expected = {
        "mlflow.user": getpass.getuser(),
        "mlflow.source.name": str(file),
        "mlflow.source.git.commit": commit,
    }
    for run in runs(uri).values():
        assert {name: run.data.tags.get(name) for name in expected} == expected
        assert run.info.user_id == getpass.getuser()


def test_no_command_of_a_description_has_a_password() -> None:
    note = describe_configuration("c0ffee0000", {"score": 95.0}, "", "demo", "http://me:secret@host")
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

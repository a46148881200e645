"""The tracker against a real SQLite store: what a sweep writes is what MLflow shows, once."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest
from mlflow import MlflowClient

from orchestrator.record.tracker import Tracker
from orchestrator.record.tracking_uri import TrackingError
from orchestrator.state.entry import TrialResult
from orchestrator.tracking import main
from tests.orchestrator.tracked import adapter, finished, history, progress, runs, spec, start


def test_a_whole_sweep_as_mlflow_shows_it(uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "demo"
    page = folder / "front.csv"
    tracker = Tracker(uri, "demo", folder)
    tracker.sweep_started({"name": "demo", "seeds": [0, 1], "manifest": {"python": "3.11"}, "sweep_yaml": "name: demo\n"})
    trial = spec()
    tracker.trial_started(trial, {"r1_effective": 6})
    for step in (10, 20, 30):
        tracker.trial_progress(trial.key, progress(step))
    (folder / "trials" / "predictions").mkdir(parents=True)
    (folder / "trials" / "predictions" / "boolq.jsonl").write_text('{"answer": "true"}\n')
    tracker.trial_ended(finished(trial), adapter(folder / "trials" / "a"))
    tracker.configuration_ended(
        trial.configuration,
        trial.label,
        {"method": "craft", "ranks": ["all", 8, 8]},
        {
            "score": 80.0,
            "score_low": 78.0,
            "score_high": 82.0,
            "trials_done": 1,
            "score/toy/acceptability": 80.0,
            "complete": True,
        },
    )
    page.write_text("configuration,score\n")
    tracker.sweep_ended(
        "finished",
        {
            "hypervolume": 3.5,
            "on_front": [trial.configuration],
            "knee": trial.configuration,
            "description": "| label | score |\n| --- | --- |\n",
        },
        [page],
    )
    assert tracker.close(60) == 0

    table = runs(uri)
    assert len(table) == 3
    sweep, configuration = table["sweep", "demo"], table["configuration", trial.configuration]
    run = table["trial", trial.key]
    assert (run.data.tags["mlflow.parentRunId"], configuration.data.tags["mlflow.parentRunId"]) == (
        configuration.info.run_id,
        sweep.info.run_id,
    )
    assert run.info.run_name == "s0 · 328 · craft 6·8·8 qv lr 3e-4 · toy/acceptability"
    assert configuration.info.run_name == "craft 6·8·8 qv lr 3e-4"
    assert {run.info.status for run in table.values()} == {"FINISHED"}
    assert run.data.params["ranks"] == "all,8,8"
    assert (run.data.params["r1"], run.data.params["r2"], run.data.params["r1_effective"]) == ("all", "8", "6")
    assert (run.data.params["learning_rate"], run.data.params["projections"]) == ("3e-4", "q,v")
    assert history(uri, run, "search_score") == [(10, 60.0), (20, 70.0), (30, 80.0)]
    assert history(uri, run, "train_loss") == [(5, 0.1), (15, 0.05), (25, 1 / 30)]
    assert (run.data.metrics["score"], run.data.metrics["trainable_parameters"]) == (80.0, 328.0)
    expected = {
        "kind": "trial",
        "sweep": "demo",
        "configuration": trial.configuration,
        "task": "toy/acceptability",
        "seed": "0",
        "method": "craft",
        "protocol": "honest",
        "status": "finished",
        "on_front": "true",
        "knee": "true",
    }
    assert {name: run.data.tags[f"craft.{name}"] for name in expected} == expected
    assert configuration.data.metrics["score/toy/acceptability"] == 80.0
    assert configuration.data.metrics["score_low"] == 78.0
    assert sweep.data.metrics["hypervolume"] == 3.5
    assert sweep.data.tags["mlflow.note.content"].startswith("| label | score |")
    client = MlflowClient(uri)
    dataset = client.get_run(run.info.run_id).inputs.dataset_inputs[0].dataset
    assert (dataset.name, dataset.digest) == ("toy/acceptability", ("ab" * 32)[:36])

    assert {item.path for item in client.list_artifacts(sweep.info.run_id)} == {"front.csv", "manifest.json", "sweep.yaml"}
    local = Path(client.download_artifacts(run.info.run_id, "adapter", str(tmp_path)))
    answers = client.list_artifacts(run.info.run_id, "predictions")
    assert [item.path for item in answers] == ["predictions/boolq.jsonl"]
    weights = (local / "adapter_model.safetensors").read_bytes()
    assert hashlib.sha256(weights).digest() == hashlib.sha256(bytes(range(256)) * 40).digest()
    assert (tmp_path / "mlartifacts").is_dir(), "artifacts lie beside the database"


def test_two_sweeps_of_one_name_in_two_folders_stay_two(uri: str, tmp_path: Path) -> None:
    trial = spec()
    for folder in ("one", "two"):
        tracker = start(uri, tmp_path / folder, trial)
        tracker.trial_progress(trial.key, progress(10))
        assert tracker.close(60) == 0
    client = MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name("demo").experiment_id], "tags.`craft.kind` = 'trial'")
    assert [history(uri, run, "search_score") for run in found] == [[(10, 60.0)]] * 2
    assert len({run.data.tags["craft.sweep_id"] for run in found}) == 2


def test_values_that_are_not_finite_become_tags(uri: str, tmp_path: Path) -> None:
    trial = spec()
    tracker = start(uri, tmp_path / "runs", trial)
    tracker.trial_progress(trial.key, progress(10, search_score=math.nan, search_loss=math.inf))
    tracker.trial_ended(TrialResult(trial.key, "failed", {}, {}, 10, 1.0, "the loss is NaN at step 10"))
    assert tracker.close(60) == 0
    run = runs(uri)["trial", trial.key]
    assert not {"search_score", "search_loss"} & run.data.metrics.keys()
    assert run.data.tags["craft.nonfinite.search_score"] == "nan at step 10"
    assert run.data.tags["craft.nonfinite.search_loss"] == "inf at step 10"
    assert (run.info.status, run.data.tags["craft.error"]) == ("FAILED", "the loss is NaN at step 10")
    assert "the loss is NaN" in run.data.tags["mlflow.note.content"]


def test_a_trial_that_finishes_after_a_failure_tells_no_failure(uri: str, tmp_path: Path) -> None:
    trial = spec()
    tracker = start(uri, tmp_path, trial)
    tracker.trial_ended(TrialResult(trial.key, "failed", error="the loss is nan", notes=["micro-batches of 1 x 8"]))
    tracker.trial_started(trial)
    tracker.trial_progress(trial.key, progress(10))
    tracker.trial_ended(finished(trial))
    tracker.close(60)
    run = runs(uri)["trial", trial.key]
    assert (run.info.status, run.data.tags["craft.status"]) == ("FINISHED", "finished")
    assert {run.data.tags.get(name, "") for name in ("craft.error", "craft.notes", "mlflow.note.content")} == {""}


def test_a_trial_that_waits_does_not_run_and_goes_on_as_the_same_run(uri: str, tmp_path: Path) -> None:
    trial = spec()
    tracker = start(uri, tmp_path / "runs", trial)
    seen = []

    def look() -> None:
        assert tracker.flush(60) == 0
        run = runs(uri)["trial", trial.key]
        seen.append((run.info.status, run.data.tags["craft.status"]))

    tracker.trial_progress(trial.key, progress(10))
    tracker.trial_paused(trial.key)
    look()
    tracker.trial_started(trial)
    look()
    tracker.trial_ended(TrialResult(trial.key, "stopped", {"search_score": 60.0}, {}, 10))
    look()
    assert tracker.close(60) == 0
    assert seen == [("KILLED", "interrupted"), ("RUNNING", "running"), ("FINISHED", "stopped")]


@pytest.mark.parametrize(
    ("summary", "status"),
    [
        ({"status": "stopped", "trials_stopped": 2}, "FINISHED"),
        ({"status": "failed", "trials_failed": 1, "trials_stopped": 1}, "FAILED"),
        ({"status": "infeasible", "error": "trainable_parameters 55,296 is above max 40,000"}, "FINISHED"),
        ({}, "FINISHED"),
    ],
    ids=["stopped", "failed", "infeasible", "incomplete"],
)
def test_only_a_configuration_with_a_failed_trial_has_failed(
    uri: str, tmp_path: Path, summary: dict[str, object], status: str
) -> None:
    tracker = start(uri, tmp_path / "runs")
    tracker.configuration_ended("c0ffee0000", "12·8·8 qv", {"method": "craft"}, {"complete": False, **summary})
    assert tracker.close(60) == 0
    run = runs(uri)["configuration", "c0ffee0000"]
    assert (run.info.status, run.data.tags["craft.complete"]) == (status, "false")
    assert run.data.tags["craft.status"] == summary.get("status", "incomplete")


def test_a_configuration_that_ends_again_is_told_anew(uri: str, tmp_path: Path) -> None:
    first = {"score": 80.0, "trials_planned": 1, "trials_done": 1, "trials_stopped": 0, "complete": True, "status": "finished"}
    tracker = start(uri, tmp_path / "runs")
    for told in (first, first | {"trials_planned": 2, "trials_stopped": 1, "complete": False, "status": "stopped"}):
        tracker.configuration_ended("c0ffee0000", "12·8·8 qv", {"method": "craft"}, told)
    assert tracker.close(60) == 0
    run = runs(uri)["configuration", "c0ffee0000"]
    assert (run.data.metrics["trials_planned"], run.data.metrics["trials_stopped"]) == (2, 1)
    assert (run.data.tags["craft.status"], run.data.tags["craft.complete"]) == ("stopped", "false")


def test_hostile_and_long_names_are_text(uri: str, tmp_path: Path) -> None:
    label = "<script>alert('x')</script> ../../etc \x00 日本 " + "x" * 400
    trial = spec(label=label)
    tracker = start(uri, tmp_path / "runs")
    tracker.trial_started(trial, {"note": "y" * 9000, "../../bad//name": 1, "when": None})
    tracker.trial_ended(finished(trial))
    params = {"method": "craft"}
    tracker.configuration_ended(trial.configuration, label, params, {"score/../../x": 1.0, "score": 2.0, "trials_done": 1})
    assert tracker.close(60) == 0
    table = runs(uri)
    run = table["trial", trial.key]
    assert run.info.run_name.startswith("s0 · 328 · craft <script>alert('x')</script> ../../etc � 日本")
    assert len(run.data.params["note"]) == 6000
    assert run.data.params["note"].endswith("(cut, 9000 characters)")
    assert run.data.params["bad/name"] == "1"
    assert table["configuration", trial.configuration].data.metrics["score/x"] == 1.0


def test_a_front_that_moved_is_marked_anew(uri: str, tmp_path: Path) -> None:
    folder, small, large = tmp_path / "runs", spec(rank=8), spec(rank=16)
    for front in ([small], [large]):
        tracker = start(uri, folder, small, large)
        tracker.trial_ended(finished(small))
        tracker.trial_ended(finished(large))
        tracker.sweep_ended("finished", {"on_front": [trial.configuration for trial in front]})
        assert tracker.close(60) == 0
    marked = {key for key, run in runs(uri).items() if run.data.tags.get("craft.on_front") == "true"}
    assert marked == {("configuration", large.configuration), ("trial", large.key)}


def test_one_writer_and_one_sweep_a_folder(uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Tracker(uri, "demo", tmp_path / "runs")
    with pytest.raises(ValueError, match="is being written by another process"):
        Tracker(uri, "demo", tmp_path / "runs")
    assert main(["replay", str(tmp_path / "runs")]) == 2
    tracker.close(60)
    with pytest.raises(TrackingError, match="'demo', not of 'other'"):
        Tracker(uri, "other", tmp_path / "runs")
    assert main(["replay", str(tmp_path / "nothing")]) == 2
    assert "give the folder of a sweep" in capsys.readouterr().err


def test_how_far_a_sweep_is_stands_in_a_tag_of_its_run_and_only_the_last_word(uri: str, tmp_path: Path) -> None:
    tracker = start(uri, tmp_path / "runs", spec())
    for left in (300.0, 120.0):
        tracker.sweep_underway({"left": left, "doing": "scoring 300/872 (reported)"})
    assert tracker.close(60) == 0
    told = json.loads(runs(uri)["sweep", "demo"].data.tags["craft.underway"])
    assert (told["left"], told["doing"]) == (120.0, "scoring 300/872 (reported)")
    assert told["time"] > 1.7e12, "milliseconds, so that a reader knows how old it is"

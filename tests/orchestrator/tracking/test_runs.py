"""What MLflow shows of a sweep: names, parents, tags, parameters, metrics, artifacts. On a real SQLite store."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

from mlflow import MlflowClient

from orchestrator.record.events import Paused
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
    assert table["configuration", sweep.data.tags["craft.knee"]].data.tags["craft.knee"] == "true"
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
        f"{32:010x}": ["", "failed", "failed", *["stopped"] * 4],
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
    for name, value in (("search_score", "nan"), ("search_loss", "inf")):
        assert run.data.tags[f"craft.nonfinite.{name}"] == f"{value} at step 20"
    assert "search_loss" not in run.data.metrics


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
    planned = {"trainable_parameters": 1234567.0}
    trial = entry(label=label, parameters={"note": "y" * 9000, "../../bad//name": 1, "when": None}, planned=planned)
    sweep = SweepLog(tmp_path)
    sweep.begin(trial)
    result = finished(trial, 100 * 239 / 240)
    sweep.end(trial, "finished", metrics={**result.metrics, "score/../../x": 1.0}, counts=result.counts)
    mirror(tmp_path, uri)
    run = runs(uri)["trial", trial.key]
    assert run.info.run_name.startswith("s0 · 128 · craft <script>alert('x')</script> ../../etc � 日本")
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

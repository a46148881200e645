"""The tracker against a real SQLite store: what a sweep writes is what MLflow shows, once, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from craft.spec import RunSpec, TrainingSettings
from orchestrator import shipping
from orchestrator.journal import Journal, JournalBusy, read
from orchestrator.tracking import Tracker, TrackingError, main, redact, resolve_uri
from orchestrator.trial import TrialResult, TrialSpec


def spec(task: str = "toy/acceptability", seed: int = 0, rank: int = 8, label: str | None = None) -> TrialSpec:
    run = RunSpec(
        model="sentence-transformers/all-MiniLM-L6-v2",
        task=task,
        method="craft",
        parameters={"ranks": ["all", rank, rank], "projections": ["q", "v"]},
        training=TrainingSettings(learning_rate=3e-4),
        seed=seed,
    )
    return TrialSpec(run, f"{rank:010x}", label or f"6·{rank}·{rank} qv lr 3e-4")


def finished(trial: TrialSpec, score: float = 80.0, steps: int = 30) -> TrialResult:
    facts = {"data_fingerprint": "ab" * 32, "device": "cpu"}
    counts = {"trainable_parameters": 328.0, "head_parameters": 770.0, "peak_memory_bytes": 1e9}
    return TrialResult(trial.key, "finished", {"score": score, "accuracy": score}, counts, steps, 12.5, None, [], facts)


def progress(step: int, **metrics: float) -> dict:
    points = [{"step": step - 5, "train_loss": 1.0 / step, "learning_rate": 1e-3}]
    return {
        "step": step,
        "total_steps": 30,
        "epoch": step / 10,
        "metrics": metrics or {"search_score": 50.0 + step},
        "points": points,
    }


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new, empty store; making one takes seconds, so tests copy it."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    folder = tmp_path_factory.mktemp("store")
    SqlAlchemyStore(f"sqlite:///{folder / 'mlflow.db'}", str(folder)).engine.dispose()
    return folder / "mlflow.db"


@pytest.fixture
def uri(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(shipping, "LINGER_S", 0.0)
    (tmp_path / "mlflow.db").write_bytes(empty_store.read_bytes())
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def adapter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"peft_type": "CRAFT"}')
    (folder / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 40)
    return folder


def runs(uri: str, experiment: str = "demo") -> dict[tuple[str, str], Run]:
    """Every run of the experiment by kind and key; two of one kind and key are an error."""
    client = MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id], run_view_type=ViewType.ALL)
    table = {(run.data.tags["craft.kind"], run.data.tags["craft.key"]): run for run in found}
    assert len(table) == len(found), "a run was made twice"
    return table


def history(uri: str, run: Run, metric: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in MlflowClient(uri).get_metric_history(run.info.run_id, metric)]


def test_a_whole_sweep_as_mlflow_shows_it(uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "demo"
    page = folder / "front.csv"
    tracker = Tracker(uri, "demo", folder)
    tracker.sweep_started({"name": "demo", "seeds": [0, 1], "manifest": {"python": "3.11"}, "sweep_yaml": "name: demo\n"})
    trial = spec()
    tracker.trial_started(trial, {"r1_effective": 6})
    for step in (10, 20, 30):
        tracker.trial_progress(trial.key, progress(step))
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
    assert run.info.run_name == "craft 6·8·8 qv lr 3e-4 · toy/acceptability · seed 0"
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
    dataset = run.inputs.dataset_inputs[0].dataset
    assert (dataset.name, dataset.digest) == ("toy/acceptability", ("ab" * 32)[:36])

    client = MlflowClient(uri)
    assert {item.path for item in client.list_artifacts(sweep.info.run_id)} == {"front.csv", "manifest.json", "sweep.yaml"}
    local = Path(client.download_artifacts(run.info.run_id, "adapter", str(tmp_path)))
    weights = (local / "adapter_model.safetensors").read_bytes()
    assert hashlib.sha256(weights).digest() == hashlib.sha256(bytes(range(256)) * 40).digest()
    assert (tmp_path / "mlartifacts").is_dir(), "artifacts lie beside the database"

"""Trials as a tracker hears of them, and a look at what the tracking store then holds."""

from __future__ import annotations

from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from craft.settings import TrainingSettings
from craft.spec import RunSpec
from orchestrator.plan.trial import Trial
from orchestrator.state.entry import TrialResult


def spec(task: str = "toy/acceptability", seed: int = 0, rank: int = 8, label: str | None = None) -> Trial:
    run = RunSpec(
        model="sentence-transformers/all-MiniLM-L6-v2",
        task=task,
        method="craft",
        parameters={"ranks": ["all", rank, rank], "projections": ["q", "v"]},
        training=TrainingSettings(learning_rate=3e-4),
        seed=seed,
    )
    return Trial(run, f"{rank:010x}", label or f"6·{rank}·{rank} qv lr 3e-4")


def finished(trial: Trial, score: float = 80.0, steps: int = 30) -> TrialResult:
    facts = {"data_fingerprint": "ab" * 32, "device": "cpu"}
    counts = {"trainable_parameters": 328.0, "head_parameters": 770.0, "peak_memory_bytes": 1e9}
    metrics = {"score": score, "accuracy": score}
    return TrialResult(trial.key, "finished", metrics, counts, steps, 12.5, facts=facts)


def progress(step: int, **metrics: float) -> dict:
    points = [{"step": step - 5, "train_loss": 1.0 / step, "learning_rate": 1e-3}]
    return {
        "step": step,
        "total_steps": 30,
        "epoch": step / 10,
        "metrics": metrics or {"search_score": 50.0 + step},
        "points": points,
    }


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

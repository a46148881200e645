"""Tables that MLflow and Optuna export are judged as the sweeps they are of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from craft.tasks.files import DataError
from orchestrator.commands.app import main
from orchestrator.review.past_sweep import PastSweep
from orchestrator.review.run_columns import Call
from orchestrator.review.run_table import read_table
from tests.orchestrator.review.test_run_table import (
    LEVELS,
    SEEDS,
    judge_table,
    judged_like,
    lines_of,
    numbers,
    past,
    score_of,
    trainings,
    write,
)


@pytest.fixture(name="sweep")
def past_sweep(tmp_path: Path) -> PastSweep:
    return past(tmp_path)


@pytest.mark.slow
def test_mlflows_table_of_runs(tmp_path: Path, sweep: PastSweep) -> None:
    """Runs within a run, as a search logs them; the run that holds them and one that failed are no trainings."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_experiment("ranks")
    with mlflow.start_run(run_name="search"):
        mlflow.log_params({"rank": 99, "seed": 99})
        mlflow.log_metrics({"accuracy": 0.1})
        for rank, seed, value in trainings():
            with mlflow.start_run(nested=True):
                mlflow.log_params({"method": "lora", "rank": rank, "seed": seed, "epochs": 3})
                mlflow.log_metrics({"accuracy": value / 100, "train_loss": seed / 7 + rank, "trainable_params": 100 * rank})
    mlflow.search_runs(experiment_names=["ranks"]).to_csv(tmp_path / "runs.csv", index=False)
    judged_like(read_table(tmp_path / "runs.csv"), sweep)
    judged_like(judge_table(mlflow.search_runs(experiment_names=["ranks"])), sweep)


@pytest.mark.slow
def test_a_sweep_of_ours_exported_from_mlflow(tmp_path: Path, sweep: PastSweep) -> None:
    import mlflow

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert main(["replay", str(tmp_path / "runs" / "ranks"), "--tracking-uri", uri]) == 0
    mlflow.set_tracking_uri(uri)
    frame = mlflow.search_runs(search_all_experiments=True)
    assert len(frame) > len(LEVELS) * len(SEEDS), "the runs of the sweep and of its configurations are among them"
    frame.to_csv(tmp_path / "runs.csv", index=False)
    table = read_table(tmp_path / "runs.csv", Call(score="metrics.score", minimize=False, by="tags.craft.label"))
    judged_like(table, sweep)
    assert [row.label for row in table.record.summaries] == [row.label for row in sweep.summaries]


@pytest.mark.slow
def test_optunas_table_of_trials(tmp_path: Path, sweep: PastSweep) -> None:
    """A study over rank and seed; pruned and failed trials are counted as such."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: optuna.Trial) -> float:
        rank, seed = trial.suggest_categorical("rank", [*LEVELS, 16, 32]), trial.suggest_categorical("seed", SEEDS)
        trial.set_user_attr("trainable_parameters", 100 * rank)
        if rank == 16:
            raise optuna.TrialPruned
        if rank == 32:
            raise ZeroDivisionError
        return score_of(rank, seed)

    study = optuna.create_study(sampler=optuna.samplers.GridSampler({"rank": [*LEVELS, 16, 32], "seed": SEEDS}))
    study.optimize(objective, catch=ZeroDivisionError)
    study.trials_dataframe().to_csv(tmp_path / "optuna.csv")
    with pytest.raises(DataError, match="score value --minimize"):
        read_table(tmp_path / "optuna.csv")
    table = read_table(tmp_path / "optuna.csv", Call(score="value", minimize=False))
    by_label = {row.label: row for row in table.record.summaries}
    assert (by_label["rank 16"].stopped, by_label["rank 32"].failed) == (3, 3)
    complete = [row for row in table.record.summaries if row.complete]
    np.testing.assert_allclose(numbers(complete), numbers(sweep.summaries), rtol=1e-6)
    assert table.read[0] == "score: value, more is better"


def test_the_table_of_mlflows_page_has_plain_names(tmp_path: Path, sweep: PastSweep) -> None:
    """Its settings and measurements have no prefix; a measurement differs in every row, a setting does not."""
    rows = [
        {"Start Time": f"2026-01-0{s + 1}", "Duration": "1.2min", "Run ID": f"{r}a{s}", "Name": f"sly-fox-{r}-{s}",
         "User": "me", "Status": "FINISHED", "learning_rate": 0.001, "rank": r, "seed": s, "accuracy": v,
         "curvature": 0.1 + r / 7 + s / 11, "seconds": "" if s == 1 else 60.0, "trainable_params": 100 * r}
        for r, s, v in trainings()
    ]  # fmt: skip
    with pytest.raises(DataError, match="curvature: settings, or measured"):
        read_table(write(tmp_path / "page.csv", rows))
    table = read_table(tmp_path / "page.csv", Call(ignore="curvature"))
    assert "settings: rank" in table.read
    assert [row.value("seconds") for row in table.record.summaries] == [60.0] * 4, "a training without a time has none"
    assert table.record.answer.p_better == sweep.answer.p_better


def test_a_study_says_its_own_direction(tmp_path: Path) -> None:
    head, cells = "number,value,params_rank,params_seed,state,study_direction", "{0},{2},{0},{1},TrialState.COMPLETE,MINIMIZE"
    (tmp_path / "study.csv").write_text(lines_of(head, lambda *row: cells.format(*row)))
    assert read_table(tmp_path / "study.csv", Call(score="value")).read[0].startswith("score: value, less is better")

"""A real MLflow server on loopback, stopped and started in mid-sweep: nothing lost, nothing doubled, nobody waits."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from orchestrator.record.events import Reported
from orchestrator.record.state import Entry
from orchestrator.review.desired_runs import DesiredRuns
from orchestrator.tracking import follower
from orchestrator.tracking.follower import Follower
from tests.mlflow_server import Server
from tests.orchestrator.logged import SweepLog, entry, history, mirror, runs, step_until_equal
from tests.postgres import Missing, postgres

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def database() -> Iterator[tuple[str, list[str]]]:
    try:
        with postgres() as started:
            yield started
    except Missing as why:
        pytest.skip(str(why))


TRIALS = [entry(seed=seed) for seed in range(4)]


def report(sweep: SweepLog, trial: Entry, step: int) -> None:
    rows = [{"step": step - 1, "train_loss": 1 / step}, {"step": step, "search_score": float(step)}]
    sweep.add(Reported, key=trial.key, rows=rows, epoch=step / 10, total_steps=40)


def sweep_with_an_outage(server: Server, folder: Path) -> None:
    """Runs four trials of 20 evaluations each; from the seventh to the fourteenth the server is away."""
    sweep = SweepLog(folder)
    sweep.start(*TRIALS)
    process = Follower(folder, server.uri)
    sweep.run(*TRIALS)
    for step in range(2, 42, 2):
        for trial in TRIALS:
            report(sweep, trial, step)
        time.sleep(0.15)
        if step == 14:
            process.wait(120)
            server.kill()
        if step == 28:
            assert process.wait(0) > 0
            server.start()
    for trial in TRIALS:
        adapter = folder / "adapters" / trial.key
        adapter.mkdir(parents=True)
        (adapter / "adapter_model.safetensors").write_bytes(trial.key.encode() * 1000)
        sweep.finish(trial, 70.0, adapter=f"adapters/{trial.key}", steps=40, metrics={"score": 70.0})
    sweep.close()
    assert process.wait(120) == 0
    process.stop()


def check_the_record(uri: str, folder: Path) -> None:
    client = MlflowClient(uri)
    found = list(client.search_runs([client.get_experiment_by_name("demo").experiment_id]))
    assert sorted(run.data.tags["craft.kind"] for run in found) == ["configuration", "sweep", *["trial"] * 4]
    assert {run.info.status for run in found} == {"FINISHED"}
    by_key = {run.data.tags["craft.key"]: run for run in found}
    for trial in TRIALS:
        run = by_key[trial.key]
        points = client.get_metric_history(run.info.run_id, "search_score")
        assert [(point.step, point.value) for point in points] == [(step, float(step)) for step in range(2, 42, 2)]
        losses = client.get_metric_history(run.info.run_id, "train_loss")
        assert [point.step for point in losses] == list(range(1, 41, 2))
        copy = client.download_artifacts(run.info.run_id, "adapter/adapter_model.safetensors", str(folder))
        assert Path(copy).read_bytes() == trial.key.encode() * 1000


def test_a_server_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    server = Server(f"sqlite:///{tmp_path / 'server.db'}", tmp_path)
    with closing(server):
        server.start()
        sweep_with_an_outage(server, tmp_path / "runs")
        check_the_record(server.uri, tmp_path)


def test_postgresql_without_a_server(tmp_path: Path, database: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    backend, restart = database
    monkeypatch.chdir(tmp_path)  # artifacts go into the current folder
    (trial, *_), sweep = TRIALS, SweepLog(tmp_path / "runs")
    sweep.start(trial)
    sweep.run(trial)
    report(sweep, trial, 2)
    copy = mirror(sweep.folder, backend)
    subprocess.run(restart, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    report(sweep, trial, 4)
    assert follower.replay(sweep.folder, backend, DesiredRuns, 120) == 0
    step_until_equal(copy, sweep.folder)
    assert history(backend, runs(backend)["trial", trial.key], "search_score") == [(2, 2.0), (4, 4.0)]

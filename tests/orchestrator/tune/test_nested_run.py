"""A sweep of nested ranks on real Ray, with a tracking store: trainings run once, and each rank is a trial with its adapter."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator import session
from orchestrator.driver.options import RunOptions
from orchestrator.driver.outcome import SweepOutcome
from orchestrator.plan.plan import Plan
from orchestrator.record.ledger import Ledger
from orchestrator.review.past_sweep import find_sweep
from orchestrator.tune.runner import run_sweep
from tests.orchestrator.nested_sweep import nested_plan, nested_stand_in, size_of

pytestmark = pytest.mark.slow


def run(folder: Path, plan: Plan, behaviour: dict[int, str], monkeypatch: pytest.MonkeyPatch, resume: bool) -> SweepOutcome:
    train = nested_stand_in(str(folder / "log"), behaviour)
    monkeypatch.setattr(session, "_prepare", lambda *_: None)
    monkeypatch.setattr(session, "_page", lambda *_: None)
    monkeypatch.setattr(session, "run_sweep", functools.partial(run_sweep, train=train))
    options = RunOptions(folder / "t", cpus=2, resume=resume, retry_failed=resume, verbosity="quiet")
    console = Console(file=io.StringIO())
    return session.run_session(plan, options, f"sqlite:///{folder}/mlflow.db", console, "again")


def test_a_sweep_of_nested_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = nested_plan(tmp_path, seeds="[0, 1]")
    outcome = run(tmp_path, plan, {0: "dies once", 1: "nan"}, monkeypatch, resume=False)
    training, failed = plan.trainings
    assert (outcome.finished, outcome.failed) == ([training.key], [failed.key])
    assert {outcome.results[one.key].error for one in plan.trained_by(failed)} == {
        "training diverged: the loss is nan at step 1"
    }
    starts = sorted((tmp_path / "log").read_text().splitlines())
    assert starts == ["start 8 0 0", "start 8 0 2", "start 8 1 0"]

    outcome = run(tmp_path, nested_plan(tmp_path, seeds="[0, 1]"), {}, monkeypatch, resume=True)
    assert outcome.complete
    assert (tmp_path / "log").read_text().count("start") == 4
    assert {size_of(one.run): outcome.results[one.key].metrics["score"] for one in plan.trials} == {2: 52.0, 4: 54.0, 8: 58.0}
    lines = [json.loads(line)["key"] for line in Ledger(tmp_path / "t").path.read_text().splitlines()]
    assert lines[-3:] == [one.key for one in plan.trained_by(failed)]

    for name, uri in ((str(tmp_path / "t"), None), ("t", f"sqlite:///{tmp_path}/mlflow.db")):
        record = find_sweep(name, uri)
        assert [one.score.mean for one in sorted(record.summaries, key=lambda one: one.score.mean)] == [52.0, 54.0, 58.0]
        nested_in = {one.configuration: one.nested_in for one in record.summaries}
        assert nested_in == {one.id: one.nested_in for one in plan.configurations}
        for one in plan.trials:
            scratch = tmp_path / f"fetched-{one.key}-{uri is None}"
            adapter = record.adapter(one.key, scratch)
            assert json.loads((adapter / "run.json").read_text()) == {"rank": size_of(one.run)}
    _check_store(tmp_path, plan)
    table = (tmp_path / "t" / "front.csv").read_text()
    assert table.count(plan.configurations[-1].id) == 3  # its own row, and the two that name it

    # The folder moved: the ledger's places are gone, the checkpoints came along.
    (tmp_path / "t").rename(tmp_path / "moved")
    record = find_sweep(str(tmp_path / "moved"))
    small = plan.trials[0]
    assert json.loads((record.adapter(small.key, tmp_path / "fetched") / "run.json").read_text()) == {
        "rank": size_of(small.run)
    }


def _check_store(folder: Path, plan: Plan) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "t"]
    runs = {run.data.tags["craft.key"]: run for run in client.search_runs([experiment.experiment_id])}
    for one in plan.trials:
        stored = runs[one.key]
        assert stored.info.status == "FINISHED"
        assert stored.data.tags.get("craft.training") == (one.training_key if one.nested_in else None)
        assert stored.data.params["nested"] == "all,2,2; all,4,4; all,8,8"
        curve = [(point.step, point.value) for point in client.get_metric_history(stored.info.run_id, "search_score")]
        assert curve == [(step, 10.0 * step + size_of(one.run)) for step in (1, 2, 3)]
        assert "adapter" in [item.path for item in client.list_artifacts(stored.info.run_id)]
    for one in plan.configurations:
        assert runs[one.id].data.tags.get("craft.nested_in") == one.nested_in

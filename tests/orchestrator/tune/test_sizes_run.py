"""A sweep with sizes on real Ray, with a tracking store: trainings run once, and each output is a trial with its adapter."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from orchestrator import session
from orchestrator.driver.options import RunOptions
from orchestrator.driver.outcome import SweepOutcome
from orchestrator.plan.plan import Plan
from orchestrator.record.ledger import Ledger
from orchestrator.review.past_sweep import find_sweep
from orchestrator.review.pick import pick
from orchestrator.tune.runner import run_sweep
from tests.orchestrator.sized_sweep import size_of, sized_plan, stand_in

pytestmark = pytest.mark.slow


def run(folder: Path, plan: Plan, behaviour: dict[int, str], monkeypatch: pytest.MonkeyPatch, resume: bool) -> SweepOutcome:
    train = stand_in(str(folder / "log"), behaviour)
    monkeypatch.setattr(session, "_prepare", lambda *_: None)
    monkeypatch.setattr(session, "_page", lambda *_: None)
    monkeypatch.setattr(session, "run_sweep", functools.partial(run_sweep, train=train))
    options = RunOptions(folder / "t", cpus=2, resume=resume, retry_failed=resume, verbosity="quiet")
    console = Console(file=io.StringIO())
    return session.run_session(plan, options, f"sqlite:///{folder}/mlflow.db", console, "again")


def test_a_sweep_with_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sized_plan(tmp_path, seeds="[0, 1]")
    outcome = run(tmp_path, plan, {0: "dies cutting", 1: "nan"}, monkeypatch, resume=False)
    training, failed = plan.trials
    assert (outcome.finished, outcome.failed) == ([training.key], [failed.key])
    assert {outcome.results[one.key].error for one in failed.outputs} == {"training diverged: the loss is nan at step 1"}
    starts = sorted((tmp_path / "log").read_text().splitlines())
    assert starts == ["start 0 0", "start 0 3", "start 1 0"], "after a death while it cut, nothing was trained again"

    outcome = run(tmp_path, sized_plan(tmp_path, seeds="[0, 1]"), {}, monkeypatch, resume=True)
    assert outcome.complete
    assert (tmp_path / "log").read_text().count("start") == 4
    assert {size_of(one): outcome.results[one.key].metrics["score"] for one in plan.outputs} == {20: 20, 40: 40, 80: 80}
    lines = [json.loads(line)["key"] for line in Ledger(tmp_path / "t").path.read_text().splitlines()]
    assert lines[-3:] == [one.key for one in failed.outputs]

    for name, uri in ((str(tmp_path / "t"), None), ("t", f"sqlite:///{tmp_path}/mlflow.db")):
        record = find_sweep(name, uri)
        found = {one.label: (one.score.mean, one.value("trainable_parameters"), one.complete) for one in record.summaries}
        assert found == {
            "CRAFT 8, q v, cut to 20": (20.0, 19.0, True),
            "CRAFT 8, q v, cut to 40": (40.0, 39.0, True),
            "CRAFT 8, q v": (80.0, 80.0, True),
        }
        chosen = pick("under:30", record.summaries, record.sweep.objectives)
        assert chosen.summary.configuration == plan.configurations[0].sizes[0].id
        for one in plan.outputs:
            adapter = record.adapter(one.key, tmp_path / f"fetched-{one.key}-{uri is None}")
            assert json.loads((adapter / "run.json").read_text()) == {"size": size_of(one)}
    _check_store(tmp_path, plan)

    # The folder moved: the ledger's places are gone, the checkpoints came along.
    (tmp_path / "t").rename(tmp_path / "moved")
    small = plan.outputs[0]
    adapter = find_sweep(str(tmp_path / "moved")).adapter(small.key, tmp_path / "fetched")
    assert json.loads((adapter / "run.json").read_text()) == {"size": size_of(small)}


def _check_store(folder: Path, plan: Plan) -> None:
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (experiment,) = [one for one in client.search_experiments() if one.name == "t"]
    runs = {run.data.tags["craft.key"]: run for run in client.search_runs([experiment.experiment_id])}
    for training in plan.trials:
        for one in training.outputs:
            stored = runs[one.key]
            assert stored.info.status == "FINISHED"
            expected = {"cut_from": training.key, "cut_to": f"parameters:{size_of(one)}"} if one is not training else {}
            assert {name: value for name, value in stored.data.params.items() if name.startswith("cut_")} == expected
            assert "adapter" in [item.path for item in client.list_artifacts(stored.info.run_id)]

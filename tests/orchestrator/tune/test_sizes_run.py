"""Sweeps with sizes, one on real Ray: trainings run once, each output is a trial with its adapter, every rule knows both."""

from __future__ import annotations

import functools
import io
from pathlib import Path

import pytest
from mlflow import MlflowClient
from rich.console import Console

from orchestrator.commands import app, session
from orchestrator.driver.display import SweepOutcome
from orchestrator.plan.plan import Plan
from orchestrator.record.events import Ended
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events
from orchestrator.record.options import Options
from orchestrator.results.summary import Summary
from orchestrator.review.past_sweep import find_sweep, read_folder
from orchestrator.review.pick import pick
from orchestrator.run import main
from tests.orchestrator.local_engine import without_ray
from tests.orchestrator.recorded import results_of
from tests.orchestrator.sized_sweep import size_of, sized_plan, sized_training, text_of
from tests.orchestrator.stand_in import starts

pytestmark = pytest.mark.slow


def run(folder: Path, plan: Plan, behaviour: dict[tuple[int, int], str], resume: bool) -> SweepOutcome:
    options = Options(cpus=2, resume=resume, retry_failed=resume, verbosity="quiet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_prepare", lambda *_: None)
        patch.setattr(session, "_page", lambda *_: None)
        train = sized_training(folder / "log", behaviour)
        patch.setattr(session, "drive", functools.partial(session.drive, train=train))
        console = Console(file=io.StringIO())
        return session.run_session(plan, options, f"sqlite:///{folder}/mlflow.db", console)


def test_a_sweep_with_sizes(tmp_path: Path) -> None:
    plan = sized_plan(tmp_path, seeds="[0, 1]")
    outcome = run(tmp_path, plan, {(8, 0): "dies cutting", (8, 1): "nan"}, resume=False)
    job, failed = plan.jobs
    assert [[entry.key for entry in outcome.ended(status)] for status in ("finished", "failed")] == [[job.key], [failed.key]]
    assert {results_of(outcome)[key].error for key in failed.keys} == {"training diverged: the loss is nan at step 1"}
    assert sorted(starts(tmp_path / "log")) == [(8, 0, 0), (8, 0, 3), (8, 1, 0)], (
        "after a death while it cut, nothing was trained again"
    )

    outcome = run(tmp_path, sized_plan(tmp_path, seeds="[0, 1]"), {}, resume=True)
    assert outcome.complete
    assert len(starts(tmp_path / "log")) == 4
    results = results_of(outcome)
    assert {size_of(trial): results[trial.key].metrics["score"] for trial in plan.trials} == {20: 20, 40: 40, 80: 80}
    events = [event for event, _ in read_events(SweepFolder(tmp_path / "t").record)]
    assert [event.result.key for event in events if isinstance(event, Ended)][-3:] == failed.keys

    for name, uri in ((str(tmp_path / "t"), None), ("t", f"sqlite:///{tmp_path}/mlflow.db")):
        record = find_sweep(name, uri)
        found = {
            summary.label: (summary.score.mean, summary.value("trainable_parameters"), summary.complete)
            for summary in record.summaries
        }
        assert found == {
            "CRAFT 8, q v, cut to 1/4": (20.0, 19.0, True),
            "CRAFT 8, q v, cut to 1/2": (40.0, 39.0, True),
            "CRAFT 8, q v": (80.0, 80.0, True),
        }
        chosen = pick("under:30", record.summaries, record.sweep.objectives)
        assert chosen.summary.configuration == plan.configurations[0].id
        for trial in plan.trials:
            adapter = record.adapter(trial.key, tmp_path / f"fetched-{trial.key}-{uri is None}")
            assert (adapter / "adapter_model.safetensors").read_text() == text_of(trial)
    _check_store(tmp_path, plan)

    # The folder moved: the places in the log are gone, the checkpoints came along.
    (tmp_path / "t").rename(tmp_path / "moved")
    small = plan.trials[0]
    adapter = find_sweep(str(tmp_path / "moved")).adapter(small.key, tmp_path / "fetched")
    assert (adapter / "adapter_model.safetensors").read_text() == text_of(small)


def _check_store(folder: Path, plan: Plan) -> None:
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (experiment,) = [experiment for experiment in client.search_experiments() if experiment.name == "t"]
    runs = {run.data.tags["craft.key"]: run for run in client.search_runs([experiment.experiment_id])}
    for job in plan.jobs:
        for trial in job.trials:
            stored = runs[trial.key]
            assert stored.info.status == "FINISHED"
            expected = {"cut_from": job.key, "cut_to": f"parameters:{size_of(trial)}"} if trial is not job.training else {}
            assert {name: value for name, value in stored.data.params.items() if name.startswith("cut_")} == expected
            assert "adapter" in [item.path for item in client.list_artifacts(stored.info.run_id)]


SWEEP = """
name: t
model: {model}
tasks: [toy/sentiment]
seeds: [0]
training: {{epochs: 4, batch_size: 8, max_length: 16, train_examples: 64, eval_examples: 40, search_examples: 40}}
space:
  # The second ranks are the same on this model of three layers; the constraint drops a size.
  - method: craft
    ranks: {{values: [[all, 8, 8], [3, 8, 8]]}}
    learning_rate: {{values: [1e-12, 1e-3, 1e-2, 3e-2, 0.1, 1.0]}}
    sizes: [40, 120]
constraints: {{trainable_parameters: {{min: 60}}}}
scheduler: {{name: promotion, factor: 2}}
{rules}
"""


@pytest.mark.parametrize("rules", ["budget: {trials: 6}", "search: {algorithm: tpe, configurations: 4}"])
def test_outputs_follow_their_training_under_every_rule(tmp_path: Path, tiny_bert: str, rules: str) -> None:
    file, runs = tmp_path / "t.yaml", tmp_path / "runs"
    file.write_text(SWEEP.format(model=tiny_bert, rules=rules))
    flags = ["--storage", str(runs), "--tracking-uri", f"sqlite:///{tmp_path}/mlflow.db", "--cpus", "2", "--quiet"]
    with without_ray():
        assert main([str(file), *flags]) == 0
    results = results_of(runs / "t")
    record = read_folder(runs / "t")
    by_label = {summary.label: summary for summary in record.summaries}
    cuts = {label.partition(", cut to")[0]: one for label, one in by_label.items() if ", cut to 43.8 %" in label}
    assert len(by_label) == 2 * len(cuts), "each training has the one size that the constraint leaves"
    assert len(cuts) == len({cut.configuration for cut in cuts.values()}) <= 6, "of equal ranks one is trained"
    for label, cut in cuts.items():
        whole = by_label[label]
        assert (cut.finished, cut.failed, cut.stopped, sorted(cut.scores)) == (
            whole.finished,
            whole.failed,
            whole.stopped,
            sorted(whole.scores),
        )
        if whole.complete:
            assert cut.complete
            assert 60 <= cut.value("trainable_parameters") <= 120 < whole.value("trainable_parameters")
        elif whole.stopped:
            assert "score" not in cut.metrics, "what was stopped is not cut"
    ended = {how for one in by_label.values() for how in _statuses(one)}
    assert ended == {"finished", "stopped"}
    with without_ray():
        assert main([str(file), *flags, "--resume"]) == 0
    assert results_of(runs / "t") == results
    best = [str(runs / "t"), "--pick", "under:130", "--to", str(tmp_path / "adapter")]
    assert app.main(["take", *best]) == 0
    assert (tmp_path / "adapter" / "adapter_config.json").exists()


def _statuses(one: Summary) -> set[str]:
    return {name for name in ("finished", "failed", "stopped") if getattr(one, name)}

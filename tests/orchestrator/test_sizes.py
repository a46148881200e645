"""Sizes of a training: in the file, the plan, the record, the worker, under every rule that judges trainings, on real Ray."""

from __future__ import annotations

import functools
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from craft.spec import RECOVERY, RunSpec
from craft.trainer.checkpoint import verify
from craft.trainer.training import train_run
from orchestrator.commands import session
from orchestrator.driver.display import SweepOutcome
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Job, PlannedTrial
from orchestrator.record.options import Options
from orchestrator.review.past_sweep import find_sweep
from orchestrator.review.pick import pick
from orchestrator.sweepfile.space.blocks import size_labels
from orchestrator.worker.surroundings import WorkerSettings
from orchestrator.worker.worker import work
from tests.orchestrator.logged import runs
from tests.orchestrator.plans import driving, toy_plan
from tests.orchestrator.record.played import size_of, whole
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import stand_in, starts


def sized_plan(folder: Path, block: str = "sizes: [20, 40]", more: str = "", seeds: str = "[0]") -> Plan:
    """The plan of a sweep with one block of CRAFT, whose whole adapter has 80 parameters."""
    space = f"seeds: {seeds}\nspace:\n  - {{method: craft, ranks: [all, 8, 8], {block}}}\n"
    return toy_plan(folder, f"{space}storage: {folder}\n{more}", whole)


@pytest.mark.parametrize(
    ("block", "sizes"),
    [
        ("sizes: [40, 20, 80, 900]", {20: "1/4", 40: "1/2"}),
        ("sizes: 3", {10: "1/8", 28: "35 %"}),
        ("sizes: [3, 60, 79]", {3: "1/27", 60: "75 %", 79: "98.8 %"}),
        ("dropout: 0.0", {}),
    ],
)
def test_each_size_is_a_configuration_and_a_trial_of_its_training(tmp_path: Path, block: str, sizes: dict[int, str]) -> None:
    plan = sized_plan(tmp_path, block, seeds="[0, 1]")
    (trained,) = plan.trained
    cuts = [size for size in plan.configurations if size.source == trained]
    assert [size.counts.trainable_parameters for size in cuts] == [*sizes]
    assert [size.label for size in cuts] == [f"CRAFT 8, q v, cut to {share}" for share in sizes.values()]
    assert trained.id == sized_plan(tmp_path, "dropout: 0.0").trained[0].id, "sizes are no part of the training's identity"
    assert len(plan.jobs) == plan.most_jobs == 2
    assert len(plan.trials) == 2 * (len(sizes) + 1)
    for job in plan.jobs:
        assert [size_of(trial) for trial in job.trials] == [80, *sizes]
        assert {cut.source for cut in job.cuts} <= {job.key}
        assert len({*job.keys}) == len(sizes) + 1
        assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_sizes_of_equal_shares_are_labelled_by_their_numbers() -> None:
    assert size_labels([2_000_000, 2_000_001, 4_000_000], 16_000_000) == ["2,000,000", "2,000,001", "1/4"]


def test_a_constraint_leaves_out_sizes_or_the_training(tmp_path: Path) -> None:
    two, rule = "learning_rate: {values: [0.001, 0.01]}, sizes: [20, 40]", "constraints: {trainable_parameters: {min: 30}}\n"
    plan = sized_plan(tmp_path, two, rule)
    assert [size_of(trial) for trial in plan.trials] == [40, 80, 40, 80]
    dropped = [(drop.configuration.label[-10:], drop.reason) for drop in plan.dropped]
    assert dropped == [("cut to 1/4", "trainable_parameters 20 is below min 30")] * 2
    assert plan.duplicates == []
    with driving(sized_plan(tmp_path, two, f"{rule}search: {{algorithm: tpe, configurations: 1}}\n"), tmp_path) as driver:
        assert [size_of(trial) for trial in driver.next_job().trials] == [80, 40]


def worked(folder: Path, job: Job, train: Any) -> list[dict[str, Any]]:
    """The results of a worker; its last checkpoint is kept as storage would."""
    settings, reports = WorkerSettings(str(folder / "storage"), str(folder / "scratch"), 1, train=train), list[dict[str, Any]]()
    attempt = len(list((folder / "storage").glob("attempt-*"))) + 1

    def report(metrics: dict[str, Any], checkpoint: Path | None) -> None:
        if checkpoint is not None:
            place = folder / "storage" / f"attempt-{attempt}" / job.key / f"checkpoint_{len(reports):06d}"
            shutil.copytree(checkpoint, place)
        reports.append(json.loads(json.dumps(metrics)))

    work(job.key, json.dumps(job.to_json()), settings, report)
    return list(reports[-1]["results"])


@pytest.mark.slow
def test_sizes_that_a_file_asks_for_later_are_cut_from_the_finished_adapter(tmp_path: Path, tiny_bert: str) -> None:
    """They are the same as those that are cut in the training, bit for bit; smaller micro-batches change no name."""
    training = {"max_steps": 2, "train_examples": 16, "eval_examples": 16, "max_length": 24, "batch_size": 8}
    run = RunSpec(model=tiny_bert, task="toy/sentiment", method="lora", parameters={"rank": 4}, training=training)
    cuts = tuple(PlannedTrial(run.cut_to(f"parameters:{size}", RECOVERY), f"cut{size}", "") for size in (200, 500))
    job = Job(PlannedTrial(run, "c", ""), cuts)
    asked: list[int] = []

    def train(spec: RunSpec, directory: Path, **how: Any) -> Any:
        asked.append(spec.training.batch_size)
        if spec.training.batch_size == 8:
            raise RuntimeError("CUDA out of memory.")
        return train_run(spec, directory, **how)

    _, *at_once = worked(tmp_path / "one", job, train)
    assert [result["key"] for result in at_once] == [cut.key for cut in cuts]
    assert all("micro-batch" in note for result in at_once for note in result["notes"])
    worked(tmp_path / "two", replace(job, cuts=cuts[:1]), train)
    _, *later = worked(tmp_path / "two", job, train)
    assert asked == [8, 4, 8, 4]
    (kept,) = (tmp_path / "two" / "storage" / "attempt-2").glob("*/checkpoint_*")
    for adapter in (kept / "adapter", *kept.glob("cuts/*/adapter")):
        verify(adapter)
    later.sort(key=lambda result: result["counts"]["trainable_parameters"])
    for result, other in zip(at_once, later, strict=True):
        assert [result[name] for name in ("key", "metrics", "counts")] == [other[name] for name in ("key", "metrics", "counts")]


def run_plan(folder: Path, behaviour: dict[tuple[int, int], str], resume: bool) -> SweepOutcome:
    """Runs a sweep with a stand-in whose whole adapters score 80, their size."""
    train = stand_in(str(folder / "log"), behaviour, finish=lambda spec: {"score": 80.0, "search_score": 80.0})
    options = Options(cpus=2, resume=resume, retry_failed=resume, quiet=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_prepare", lambda *_: None)
        patch.setattr(session, "_page", lambda *_: None)
        patch.setattr(session, "drive", functools.partial(session.drive, train=train))
        console, uri = Console(file=io.StringIO()), f"sqlite:///{folder}/mlflow.db"
        return session.run_session(sized_plan(folder, seeds="[0, 1]"), options, uri, console)


@pytest.mark.slow
def test_trainings_run_once_on_real_ray_and_each_output_is_a_trial_with_its_adapter(tmp_path: Path) -> None:
    job, failed = sized_plan(tmp_path, seeds="[0, 1]").jobs
    outcome = run_plan(tmp_path, {(8, 0): "dies cutting", (8, 1): "nan"}, resume=False)
    assert [[entry.key for entry in outcome.ended(status)] for status in ("finished", "failed")] == [[job.key], [failed.key]]
    assert {results_of(outcome)[key].error for key in failed.keys} == {"training diverged: the loss is nan at step 1"}
    assert sorted(starts(tmp_path / "log")) == [(8, 0, 0), (8, 0, 3), (8, 1, 0)], "nothing was trained again to be cut"

    outcome = run_plan(tmp_path, {}, resume=True)
    assert outcome.complete
    assert len(starts(tmp_path / "log")) == 4
    # The folder moves: the places in the log are gone, the checkpoints come along.
    for name, uri in ((str(tmp_path / "t"), None), ("t", f"sqlite:///{tmp_path}/mlflow.db"), (str(tmp_path / "moved"), None)):
        if "moved" in name:
            (tmp_path / "t").rename(name)
        record = find_sweep(name, uri)
        rows = record.summaries
        found = {row.label: (row.score.mean, row.value("trainable_parameters"), row.complete) for row in rows}
        assert found == {
            "CRAFT 8, q v, cut to 1/4": (20.0, 19.0, True),
            "CRAFT 8, q v, cut to 1/2": (40.0, 39.0, True),
            "CRAFT 8, q v": (80.0, 80.0, True),
        }
        assert pick("under:30", rows, record.sweep.objectives).summary.label == "CRAFT 8, q v, cut to 1/4"
        for trial in (*job.trials, *failed.trials):
            adapter = record.adapter(trial.key, tmp_path / "fetched" / Path(name).name / trial.key)
            text = str(size_of(trial)) if trial.run.cut_from else f"8 {trial.run.seed}"
            assert (adapter / "adapter_model.safetensors").read_text() == text

    table = runs(f"sqlite:///{tmp_path}/mlflow.db", "t")
    for cut in (*job.cuts, *failed.cuts):
        stored = table["trial", cut.key]
        params = {name: value for name, value in stored.data.params.items() if name.startswith("cut_")}
        assert params == {"cut_from": cut.source, "cut_to": f"parameters:{size_of(cut)}"}
        assert stored.info.status == "FINISHED"

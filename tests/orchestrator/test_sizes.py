"""Sizes of a training: in the file, the plan, the record, the worker, and under every rule that judges trainings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from craft.spec import RECOVERY, RunSpec
from craft.trainer.checkpoint import verify
from craft.trainer.training import train_run
from orchestrator.plan.trial import Job, PlannedTrial
from orchestrator.record.events import Ended
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events
from orchestrator.results.summary import summarize_entries
from orchestrator.sweepfile.space.blocks import size_labels
from orchestrator.worker.surroundings import WorkerSettings
from orchestrator.worker.worker import work
from tests.orchestrator.driven import driving, outcomes
from tests.orchestrator.sized_sweep import size_of, sized_plan


@pytest.mark.parametrize(
    ("block", "sizes"),
    [
        ("sizes: [40, 20, 80, 900]", {20: "1/4", 40: "1/2"}),
        ("sizes: 4", {10: "1/8", 20: "1/4", 40: "1/2"}),
        ("sizes: 3", {10: "1/8", 28: "35 %"}),
        ("sizes: [3, 60, 79]", {3: "1/27", 60: "75 %", 79: "98.8 %"}),
        ("", {}),
    ],
)
def test_each_size_is_a_configuration_and_a_trial_of_its_training(tmp_path: Path, block: str, sizes: dict[int, str]) -> None:
    wanted = [*sizes]
    plan = sized_plan(tmp_path, block or "dropout: 0.0", seeds="[0, 1]")
    (trained,) = plan.trained
    cuts = [size for size in plan.configurations if size.source == trained]
    assert [size.counts.trainable_parameters for size in cuts] == wanted
    assert [size.label for size in cuts] == [f"CRAFT 8, q v, cut to {share}" for share in sizes.values()]
    assert trained.id == sized_plan(tmp_path, "dropout: 0.0").trained[0].id, "sizes are no part of the training's identity"
    assert len(plan.jobs) == plan.most_jobs == 2
    assert len(plan.trials) == 2 * (len(wanted) + 1)
    for job in plan.jobs:
        assert [size_of(trial) for trial in job.trials] == [80, *wanted]
        assert {cut.source for cut in job.cuts} <= {job.key}
        assert len({*job.keys}) == len(wanted) + 1
        assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_a_constraint_leaves_out_sizes_or_the_training(tmp_path: Path) -> None:
    two = "learning_rate: {values: [0.001, 0.01]}, sizes: [20, 40]"
    plan = sized_plan(tmp_path, two, "constraints: {trainable_parameters: {min: 30}}\n")
    assert [size_of(trial) for trial in plan.trials] == [40, 80, 40, 80]
    assert [(drop.configuration.label[-10:], drop.reason) for drop in plan.dropped] == [
        ("cut to 1/4", "trainable_parameters 20 is below min 30")
    ] * 2
    assert plan.duplicates == []
    learning = sized_plan(
        tmp_path, two, "constraints: {trainable_parameters: {min: 30}}\nsearch: {algorithm: tpe, configurations: 1}\n"
    )
    with driving(learning, tmp_path / "learning") as driver:
        job = driver.next_job()
        assert [size_of(trial) for trial in job.trials] == [80, 40]


def test_sizes_of_equal_shares_are_labelled_by_their_numbers() -> None:
    assert size_labels([2_000_000, 2_000_001, 4_000_000], 16_000_000) == ["2,000,000", "2,000,001", "1/4"]


def test_trials_of_a_job_start_and_end_together_each_with_its_own_numbers(tmp_path: Path) -> None:
    plan = sized_plan(tmp_path)
    (job,) = plan.jobs
    with driving(plan, tmp_path) as driver:
        assert driver.next_job() == job
        driver.record_start(job.key)
        progress = {"step": 1, "total_steps": 6, "epoch": 1.0, "metrics": {"search_score": 1.0}, "points": [], "time": 5e8}
        assert not driver.record_report(job.key, progress)
        assert list(driver.queue.running) == [trial.trial for trial in driver.display.progress().running] == [job.key]
        assert {entry.phase for entry in driver.state.requested} == {"running"}
        driver.record_end(job.key, outcomes(job, lambda trial: 100 - size_of(trial)))
        assert driver.is_over
        now = driver.display.progress()
        assert (now.trainings.finished, now.trainings_planned) == (1, 1)
        outcome = driver.outcome(None, None)
    ended = [event for event, _ in read_events(SweepFolder(tmp_path).record) if isinstance(event, Ended)]
    assert [(event.result.key, event.adapter) for event in ended] == [(key, str(Path(key).resolve())) for key in job.keys]
    summaries = {summary.label.rpartition(" ")[2]: summary for summary in summarize_entries(outcome.state.requested)}
    assert {label: summary.score.mean for label, summary in summaries.items()} == {"1/4": 80.0, "1/2": 60.0, "v": 20.0}
    assert summaries["1/4"].parameters["cut_from"] == job.key
    assert [entry.key for entry in outcome.ended("finished")] == [job.key]
    assert outcome.complete
    with driving(plan, tmp_path) as driver:
        assert driver.next_job() is None
        later = driver.outcome(None, None)
    assert later.complete


def worked(folder: Path, job: Job, train: Any) -> list[dict[str, Any]]:
    """The reports of a worker; its last checkpoint is kept as storage would."""
    settings, reports = WorkerSettings(str(folder / "storage"), str(folder / "scratch"), 1, train=train), list[dict[str, Any]]()
    attempt = len(list((folder / "storage").glob("attempt-*"))) + 1

    def report(metrics: dict[str, Any], checkpoint: Path | None) -> None:
        if checkpoint is not None:
            place = folder / "storage" / f"attempt-{attempt}" / job.key / f"checkpoint_{len(reports):06d}"
            shutil.copytree(checkpoint, place)
        reports.append(json.loads(json.dumps(metrics)))

    work(job.key, json.dumps(job.to_json()), settings, report)
    return reports


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

    at_once = worked(tmp_path / "one", job, train)[-1]["results"][1:]
    assert [result["key"] for result in at_once] == [cut.key for cut in cuts]
    assert all("micro-batch" in note for result in at_once for note in result["notes"])
    worked(tmp_path / "two", replace(job, cuts=cuts[:1]), train)
    later = worked(tmp_path / "two", job, train)[-1]["results"][1:]
    assert asked == [8, 4, 8, 4]
    (kept,) = (tmp_path / "two" / "storage" / "attempt-2").glob("*/checkpoint_*")
    for adapter in (kept / "adapter", *kept.glob("cuts/*/adapter")):
        verify(adapter)
    later.sort(key=lambda result: result["counts"]["trainable_parameters"])
    for result, other in zip(at_once, later, strict=True):
        assert [result[name] for name in ("key", "metrics", "counts")] == [other[name] for name in ("key", "metrics", "counts")]

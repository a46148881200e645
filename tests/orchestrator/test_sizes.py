"""Sizes of a training: in the file, the plan, the record, the worker, and under every rule that judges trainings."""

from __future__ import annotations

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
from orchestrator.driver.outcome import outcome_of
from orchestrator.plan.table import print_plan
from orchestrator.plan.trial import Job, Outcome, PlannedTrial, TrialResult
from orchestrator.record.events import Ended
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_events, read_state
from orchestrator.results.summary import summarize_entries
from orchestrator.sweepfile.space.blocks import size_labels
from orchestrator.worker.surroundings import WorkerSettings
from orchestrator.worker.worker import work
from tests.orchestrator.driven import driving, outcomes, run_all
from tests.orchestrator.sized_sweep import size_of, sized_plan, sized_training, text_of


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
        assert job is not None
        assert [size_of(trial) for trial in job.trials] == [80, 40]


def test_the_table_and_the_budget_count_trainings(tmp_path: Path) -> None:
    plan = sized_plan(tmp_path, seeds="[0, 1]", more="budget: {trials: 2}\n")
    screen = io.StringIO()
    print_plan(plan, Console(file=screen, width=200, highlight=False), {plan.trained[0].id: 34})
    said = screen.getvalue()
    assert "1 configuration x 1 task x 2 seeds = 2 trials, 34 optimizer steps" in said
    assert "cuts: 2 configurations" in said
    assert [line.split()[-1] for line in said.splitlines() if line.startswith("CRAFT")] == ["cut", "cut", "34"]


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
        outcome = outcome_of(driver, None, None)
    ended = [event for event, _ in read_events(SweepFolder(tmp_path).record) if isinstance(event, Ended)]
    assert [(event.result.key, event.adapter) for event in ended] == [(key, str(Path(key).resolve())) for key in job.keys]
    summaries = {summary.label.rpartition(" ")[2]: summary for summary in summarize_entries(outcome.state.requested)}
    assert {label: summary.score.mean for label, summary in summaries.items()} == {"1/4": 80.0, "1/2": 60.0, "v": 20.0}
    assert summaries["1/4"].parameters["cut_from"] == job.key
    assert [entry.key for entry in outcome.ended("finished")] == [job.key]
    assert outcome.new == {*job.keys}
    assert outcome.complete
    with driving(plan, tmp_path) as driver:
        assert driver.next_job() is None
        later = outcome_of(driver, None, None)
    assert later.complete
    assert not later.new, "the time of an earlier session is not of this one"


@pytest.mark.parametrize("recorded", [[0], [0, 2]])
def test_a_job_without_all_its_results_runs_again_and_keeps_those_it_has(tmp_path: Path, recorded: list[int]) -> None:
    plan = sized_plan(tmp_path)
    (job,) = plan.jobs
    with driving(plan, tmp_path) as driver:
        driver.record(*(Ended(result=TrialResult(job.keys[place], "finished", {"score": 99.0})) for place in recorded))
    with driving(plan, tmp_path) as driver:
        assert driver.next_job() == job
        driver.record_start(job.key)
        driver.record_end(job.key, outcomes(job, size_of))
    entries = read_state(SweepFolder(tmp_path).record).entries
    scores = [99.0 if place in recorded else float(size_of(trial)) for place, trial in enumerate(job.trials)]
    assert [entries[key].result.metrics["score"] for key in job.keys] == scores
    with driving(plan, tmp_path) as driver:
        assert (driver.next_job(), driver.display.progress().trainings.finished) == (None, 1)


@pytest.mark.parametrize("how", ["failed", "never promoted", "interrupted"])
def test_cuts_of_a_training_that_does_not_finish_end_as_it_does_without_scores(tmp_path: Path, how: str) -> None:
    plan = sized_plan(tmp_path, seeds="[0, 1]", more="scheduler: {name: promotion, grace: 1}\n")
    job, other = plan.jobs
    progress = {"step": 1, "total_steps": 6, "epoch": 1.0, "metrics": {"search_score": 7.0}, "points": [], "time": 5e8}
    with driving(plan, tmp_path) as driver:
        assert driver.next_job() == job
        driver.record_start(job.key)
        driver.record_report(job.key, progress)
        if how == "failed":
            driver.record_end(job.key, [Outcome(TrialResult(job.key, "failed", error="the loss is nan", retryable=True))])
        elif how == "interrupted":
            assert driver.stop() is None
        else:
            driver.record_leave(job.key)
            assert {driver.state.entries[key].phase for key in job.keys} == {"paused"}
            driver.end_waiting()
    entries = read_state(SweepFolder(tmp_path).record).entries
    results = [entries[key].result for key in job.keys]
    if how == "interrupted":
        assert {entries[key].phase for key in job.keys} == {"waiting"}
        assert results == [None] * 3
        return
    assert {result.error for result in results} == {"the loss is nan" if how == "failed" else None}
    assert [result.metrics for result in results] == [{} if how == "failed" else {"search_score": 7.0}, {}, {}]
    with driving(plan, tmp_path) as driver:
        assert list(driver.queue.waiting) == ([job.key, other.key] if how == "failed" else [])


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


def test_a_worker_keeps_cuts_with_their_adapters_and_reports_them_again(tmp_path: Path) -> None:
    (job,) = sized_plan(tmp_path).jobs
    log = tmp_path / "log"
    last = worked(tmp_path, job, sized_training(log, {}))[-1]["results"]
    scores = [(result["key"], result["metrics"]["score"], result["seconds"]) for result in last]
    assert scores == [(job.key, 80.0, 1.0), (job.cuts[0].key, 20.0, 1.0), (job.cuts[1].key, 40.0, 1.0)]
    (kept,) = (tmp_path / "storage" / "attempt-1" / job.key).glob("*/cuts")
    for cut in job.cuts:
        verify(kept / cut.key / "adapter")
        assert (kept / cut.key / "adapter" / "adapter_model.safetensors").read_text() == text_of(cut)
    # The driver died before it wrote any of this down; the next worker reports it again and trains nothing.
    again = worked(tmp_path, job, sized_training(log, {}))[-1]["results"]
    assert again[0] == last[0]
    assert sorted(again[1:], key=str) == sorted(last[1:], key=str)
    assert log.read_text().count("start") == 1


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


RATES = "learning_rate: {values: [0.001, 0.01, 0.1]}, sizes: [20, 40]"


def seeds_by_rate(ran: list[PlannedTrial]) -> dict[float, list[int]]:
    seeds: dict[float, list[int]] = {}
    for one in ran:
        seeds.setdefault(one.run.training.learning_rate, []).append(one.run.seed)
    return seeds


def test_each_output_of_a_training_has_the_rate_that_is_best_for_it(tmp_path: Path) -> None:
    plan = sized_plan(tmp_path, RATES, "replication: {seeds: [1, 2], tuned: [learning_rate]}\n")
    assert plan.most_jobs == 3 + 3 * 2
    scores = {0.001: {20: 90, 40: 50, 80: 50}, 0.01: {20: 70, 40: 70, 80: 70}, 0.1: {20: 10, 40: 75, 80: 90}}
    ran = run_all(plan, tmp_path, lambda trial: scores[trial.run.training.learning_rate][size_of(trial)], size_of)
    assert seeds_by_rate(ran) == {0.001: [0, 1, 2], 0.01: [0], 0.1: [0, 1, 2]}
    summaries = summarize_entries(read_state(SweepFolder(tmp_path).record).requested)
    chosen = [summary for summary in summaries if not summary.tunes]
    assert [(summary.complete, summary.value("trainable_parameters")) for summary in chosen] == [
        (True, 20.0),
        (True, 40.0),
        (True, 80.0),
    ]
    assert {
        (summary.tuning.candidates, summary.tuning.trials, summary.tuning.choice) for summary in chosen if summary.tuning
    } == {(3, 3, "learning_rate 0.001"), (3, 3, "learning_rate 0.1")}

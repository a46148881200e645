"""Trials that start from another trial's adapter: named in the plan, held back until that one is done, given its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from craft.results import Counts, RunResult
from craft.spec import RunSpec
from craft.trainer.checkpoint import write_folder
from orchestrator.plan.configuration import flat_parameters
from orchestrator.plan.trial import Job, PlannedTrial, TrialResult
from orchestrator.worker.surroundings import WorkerSettings
from orchestrator.worker.worker import work
from tests.orchestrator.driven import driving, outcomes
from tests.orchestrator.plans import toy_plan

FILE = """\
tasks: [glue/mrpc, glue/rte, glue/mnli]
seeds: [0, 1]
space: [{method: lora, rank: {values: [1, 2]}}]
warm_start: {glue/mrpc: glue/mnli, glue/rte: glue/mnli}
"""


def test_each_trial_names_the_run_of_its_own_configuration_and_seed(tmp_path: Path) -> None:
    plan = toy_plan(tmp_path, FILE)
    at = {(trial.configuration, trial.run.seed, trial.run.task): trial for trial in plan.trials}
    assert len(at) == 12
    for (configuration, seed, task), trial in at.items():
        begin = trial.run.warm_start
        if task == "glue/mnli":
            assert begin is None
        else:
            assert begin.run == at[configuration, seed, "glue/mnli"].key
            assert flat_parameters(trial.run)["warm_start"] == begin.run
            assert Job.from_json(json.loads(json.dumps(Job(trial).to_json()))) == Job(trial)
    cold = toy_plan(tmp_path, FILE.rpartition("warm_start")[0])
    names = {trial.key for trial in plan.trials} & {trial.key for trial in cold.trials}
    assert names == {trial.key for trial in plan.trials if trial.run.task == "glue/mnli"}
    # Another training of the source is another start.
    other = toy_plan(tmp_path, FILE + "task_training: {glue/mnli: {epochs: 7}}\n")
    assert not {trial.key for trial in plan.trials} & {trial.key for trial in other.trials}


def test_trials_wait_for_their_source_and_others_go_ahead(tmp_path: Path) -> None:
    jobs = list[Job]()
    with driving(toy_plan(tmp_path, FILE), tmp_path) as driver:
        while (job := driver.next_job()) is not None:
            driver.record_start(job.key)
            jobs.append(job)
        assert [job.training.run.task for job in jobs] == ["glue/mnli"] * 4, "of both configurations"
        driver.record_end(jobs[1].key, outcomes(jobs[1], lambda trial: 50.0))
        job = driver.next_job()
        assert job.source == jobs[1].key


def run_of(spec: PlannedTrial, folder: Path) -> tuple[list[RunSpec], TrialResult]:
    """What a worker trains for a trial, and what it reports."""
    seen: list[RunSpec] = []
    reports: list[dict[str, Any]] = []

    def train(run: RunSpec, directory: Path, **_more: Any) -> RunResult:
        seen.append(run)
        (directory / "adapter").mkdir()
        return RunResult({"score": 70.0}, Counts(10, 2, 100, 40), directory / "adapter", 1, 2, 1.0)

    settings = WorkerSettings(str(folder / "storage"), str(folder / "scratch"), 1, train=train)  # type: ignore[arg-type]
    work(spec.key, json.dumps(Job(spec).to_json()), settings, lambda metrics, checkpoint: reports.append(metrics))
    return seen, TrialResult.from_json(reports[-1]["results"][0])


def test_the_worker_hands_over_the_finished_sources_adapter(tmp_path: Path) -> None:
    trials = toy_plan(tmp_path, FILE).trials
    mrpc = next(trial for trial in trials if trial.run.task == "glue/mrpc")
    place = tmp_path / "storage" / "attempt-1" / mrpc.run.warm_start.run / "checkpoint_000001"

    def unfinished(aside: Path) -> None:
        (aside / "state.json").write_text("{}")

    write_folder(place, unfinished)
    seen, result = run_of(mrpc, tmp_path)
    assert not seen
    assert result.status == "failed"
    assert result.retryable, "it is not this trial's fault"
    assert mrpc.run.warm_start.run in str(result.error)

    def finished(aside: Path) -> None:
        (aside / "result.json").write_text(json.dumps(TrialResult(mrpc.run.warm_start.run, "finished").to_json()))
        (aside / "adapter").mkdir()
        (aside / "adapter" / "run.json").write_text("{}")

    write_folder(place.with_name("checkpoint_000002"), finished)
    seen, result = run_of(mrpc, tmp_path)
    assert result.status == "finished"
    assert seen[0].key == mrpc.key
    assert seen[0].warm_start.adapter == str(place.with_name("checkpoint_000002") / "adapter")

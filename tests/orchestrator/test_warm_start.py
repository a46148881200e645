"""Trials that start from another trial's adapter: named in the plan, and held back until that one is done."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.plan.configuration import flat_parameters
from orchestrator.plan.trial import Job
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

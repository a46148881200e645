"""Sweeps of a few lines, their plans without a model, for which the test says how many parameters a run trains, and a driver
without Ray: tests start its jobs and say how they end."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.driver.display import Display
from orchestrator.driver.driver import Driver
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Job, Outcome, PlannedTrial, TrialResult
from orchestrator.record.folder import SweepFolder
from orchestrator.record.options import Options
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.sweep import Sweep

CONFIG = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100}
CONFIG |= {"num_attention_heads": 2, "intermediate_size": 64}
HEAD = {"name": "name: t\n", "model": "model: m\n", "tasks": "tasks: [toy/paraphrase]\n"}
Size = int | Callable[[RunSpec], int]
Score = Callable[[PlannedTrial], float]


def config_alone(folder: Path) -> str:
    """Makes the folder of a BERT of two layers of width 32 without weights, which is enough to plan; returns its path."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def toy_sweep(folder: Path, text: str, *overrides: str) -> Sweep:
    """Writes a file with this text and loads it; the sections of HEAD need not be in it."""
    keys = {line.partition(":")[0] for line in text.splitlines()}
    file = folder / "sweep.yaml"
    file.write_text("".join(line for key, line in HEAD.items() if key not in keys) + text)
    return load_sweep(file, overrides)


def count(sweep: Sweep, size: Size = 10, memory: Callable[[RunSpec], int] = lambda run: 1000) -> Plan:
    """Makes the plan of a sweep whose runs train `size` parameters and need `memory` bytes."""

    def counts(run: RunSpec) -> Counts:
        trained = size if isinstance(size, int) else size(run)
        return Counts(trained, 2, 10_000, 4 * trained)

    return make_plan(sweep, Planner(sweep, counts, memory))


def toy_plan(folder: Path, text: str, size: Size = 10) -> Plan:
    return count(toy_sweep(folder, text), size)


def rank(run: RunSpec) -> int:
    """100 parameters a rank."""
    return 100 * int(run.parameters["rank"])


@contextmanager
def driving(plan: Plan, folder: Path, **options: Any) -> Iterator[Driver]:
    """A session that has begun, with the record in `folder`."""
    display = Display(io.StringIO(), "quiet")
    driver = Driver(plan, SweepFolder(folder.absolute()), Options(resume=True, **options), display)
    driver.begin()
    try:
        yield driver
    finally:
        driver.close()


def start_next(driver: Driver) -> Job:
    """Starts the next job."""
    job = driver.next_job()
    driver.record_start(job.key)
    return job


def finished(trial: PlannedTrial, score: Score, size: Score = lambda trial: 10.0, seconds: float = 1.0) -> TrialResult:
    """A result with the same score on both splits."""
    value, counts = float(score(trial)), {"trainable_parameters": float(size(trial))}
    return TrialResult(trial.key, "finished", {"score": value, "search_score": value}, counts, seconds=seconds)


def outcomes(job: Job, score: Score, size: Score = lambda trial: 10.0) -> Sequence[Outcome]:
    """The outcomes of a job whose trials all finish, with adapters named after them; its training takes 9 s, a cut 1 s."""
    return [
        Outcome(finished(trial, score, size, 9.0 if trial is job.training else 1.0), Path(trial.key)) for trial in job.trials
    ]


def run_some(
    plan: Plan, folder: Path, end: Callable[[Job], Sequence[Outcome]], at_most: int = 1000, notes: list[str] | None = None
) -> list[PlannedTrial]:
    """Runs what is wanted, one job at a time, until so many have ended; `notes` gets what the strategy said."""
    ran = list[PlannedTrial]()
    with driving(plan, folder) as driver:
        while len(ran) < at_most and (job := driver.next_job()) is not None:
            driver.record_start(job.key)
            driver.record_end(job.key, end(job))
            ran.append(job.training)
        assert driver.is_over or len(ran) == at_most
        if notes is not None:
            notes += driver.notes
    return ran

"""Sweeps whose engine is played: their files, what each trial scores, and what is wanted of them at the end."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from craft.spec import RunSpec
from orchestrator.driver.driver import Driver
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Job, Outcome, PlannedTrial, TrialResult
from orchestrator.record.events import Event
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.search.stages import make_strategy
from tests.orchestrator import plans

STEPS = 3
LORA = "space: [{method: lora, rank: {values: %s}, learning_rate: {values: [0.001, 0.01]}}]\n"
FILES = {
    "grid": ["seeds: [0]\n" + LORA % [1, 2], "seeds: [0, 1]\n" + LORA % [2, 1], "seeds: [1]\n" + LORA % [4]],
    "cuts": [
        f"seeds: {seeds}\nspace: [{{method: craft, ranks: [all, 8, 8], sizes: {sizes}}}]\n"
        for seeds, sizes in (("[0, 1]", "[20, 40]"), ("[0, 1]", "[20, 30, 40]"), ("[1, 2]", "[30]"))
    ],
    "promotion": [
        f"seeds: {seeds}\nscheduler: {{name: promotion, factor: 2}}\n" + LORA % ranks
        for seeds, ranks in (([0], [1, 2, 4]), ([0, 1], [1, 2]), ([0], [1, 2]))
    ],
    "promotion of what is cut": [
        f"seeds: {seeds}\nscheduler: {{name: promotion, factor: 2}}\n"
        "space: [{method: craft, ranks: [all, 8, 8], sizes: [20, 40], learning_rate: {values: [0.001, 0.01, 0.1]}}]\n"
        for seeds in ([0], [0, 1])
    ],
    "warm start": [f"seeds: {seeds}\nwarm_start: {{toy/sentiment: toy/paraphrase}}\n" + LORA % [1] for seeds in ([0], [0, 1])],
    "learned": [
        f"seeds: [0]\nsearch: {{algorithm: tpe, configurations: {configurations}}}\n{more}"
        "space: [{method: lora, rank: {values: [1, 2]}, learning_rate: {min: 0.001, max: 0.1, distribution: log_uniform}}]\n"
        for configurations, more in ((3, ""), (5, ""), (5, "scheduler: {name: promotion, factor: 2}\n"))
    ],
    "until answered": [
        f"seeds: {seeds}\nsearch: {{until: answered}}\n" + LORA % ranks
        for seeds, ranks in (([0], [1, 2, 4]), ([0, 1], [1, 2]), ([0], [2, 4, 8]))
    ],
    "fair": [
        f"seeds: {seeds}\ncompare: fair\n"
        f"space: [{{method: lora, rank: {{values: {ranks}}}, learning_rate: {{values: {rates}}}}}]\n"
        for seeds, ranks, rates in (
            ([0], [1, 2], [0.001, 0.01]),
            ([0, 1], [1, 2], [0.001, 0.01]),
            ([0], [1, 2, 4, 8], [0.001, 0.003, 0.01, 0.03]),
        )
    ],
}
"""The files of a sweep: a later session may have another one."""


@cache
def plan_of(kind: str, variant: int) -> Plan:
    head = f"tasks: [toy/paraphrase, toy/sentiment]\ntraining: {{epochs: {STEPS}}}\n"
    with tempfile.TemporaryDirectory() as folder:
        return plans.toy_plan(Path(folder), head + FILES[kind][variant], whole)


def whole(run: RunSpec) -> int:
    """The parameters of an adapter before it is cut."""
    ranks = run.parameters.get("ranks")
    return 10 * ranks[-1] if ranks else 100 * run.parameters["rank"]


def size_of(trial: PlannedTrial) -> int:
    """The most parameters of an output."""
    return int(trial.run.cut_from.to.split(":")[1]) if trial.run.cut_from else whole(trial.run)


def score_of(trial: PlannedTrial, step: int = STEPS) -> float:
    luck = int(trial.key[:2], 16) % 7 / 5
    return 60 + math.log2(size_of(trial)) - 3 * abs(math.log10(trial.run.training.learning_rate) + 2) + luck + step


def finished(trial: PlannedTrial) -> TrialResult:
    return replace(plans.finished(trial, score_of, size_of), steps=STEPS)


@cache
def undisturbed(kind: str, variant: int) -> list[str]:
    """The trials that are wanted at the end of a sweep to which nothing happens."""
    plan = plan_of(kind, variant)
    with tempfile.TemporaryDirectory() as folder:
        plans.run_some(plan, Path(folder), lambda job: [Outcome(finished(trial)) for trial in job.trials])
        return [trial.key for trial in make_strategy(plan).wanted(read_state(SweepFolder(Path(folder)).record))]


class Watched(Driver):
    """Remembers the session's events."""

    events: list[Event]

    def record(self, *events: Event) -> None:
        self.events = [*getattr(self, "events", []), *events]
        super().record(*events)


def same_file(plan: Plan, other: Plan) -> bool:
    return plan.sweep.model_dump() == other.sweep.model_dump()


def job_of(driver: Driver, key: str) -> Job:
    job = driver.queue.job(key)
    assert job is not None
    return job


def progress(trial: PlannedTrial, step: int) -> dict[str, Any]:
    points = [{"step": step, "train_loss": 1.0 / step}]
    score = {"search_score": score_of(trial, step)}
    return {"metrics": score, "points": points, "step": step, "total_steps": STEPS, "epoch": float(step), "time": float(step)}

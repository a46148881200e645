"""Fair sweeps without trainings: a score is a function of the trial."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Job, Outcome, PlannedTrial, TrialResult
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.results.front import mark_front
from orchestrator.results.summary import Summary, summarize_entries
from tests.orchestrator.driven import run_some
from tests.orchestrator.plans import rank, toy_plan

TASKS = ["toy/paraphrase", "toy/sentiment"]
RATES = [0.001, 0.01, 0.1]
FAIR = f"""
seeds: [0, 1, 2]
compare: fair
tuned: {{learning_rate: {{values: {RATES}}}}}
space:
  - {{method: lora, rank: {{values: [1, 2]}}}}
  - {{method: lora, rank: 4, learning_rate: 0.005, tuned: false}}
"""
HAND = f"""
seeds: [1000]
replication: {{seeds: [0, 1, 2], tuned: [learning_rate]}}
space:
  - {{method: lora, rank: {{values: [1, 2]}}, learning_rate: {{values: {RATES}}}}}
  - {{method: lora, rank: 4, learning_rate: 0.005}}
"""
FIRST_STAGE = 2 * (2 * 3 + 3)
"""Trials before the choice: two tasks; two ranks with three rates and one seed that tunes, and three seeds of what is fixed."""
MEASURED = 2 * 2 * 3
CHOICE = {1: [0.01, 0.001], 2: [0.001, 0.001], 4: [0.005]}
"""The best rates of each rank by task: of rank 1 another one on each."""


def by_rate(trial: PlannedTrial) -> float | None:
    """Rank 2 diverges at 0.1."""
    rate, rank = trial.run.training.learning_rate, trial.run.parameters["rank"]
    if (rank, rate) == (2, 0.1):
        return None
    best = CHOICE[rank][TASKS.index(trial.run.task) % len(CHOICE[rank])]
    return 80.0 - 10 * abs(math.log10(rate / best)) + trial.run.seed % 10


def plan_of(folder: Path, text: str, more: str = "") -> Plan:
    folder.mkdir(exist_ok=True)
    return toy_plan(folder, f"tasks: {TASKS}\nstorage: {folder}\n{text}{more}", rank)


def run(
    plan: Plan,
    score: Callable[[PlannedTrial], float | None] = by_rate,
    notes: list[str] | None = None,
    loss: Callable[[PlannedTrial], float] = lambda trial: 0.5,
    facts: Callable[[PlannedTrial], dict[str, str]] = lambda trial: {},
) -> list[PlannedTrial]:
    """Runs what the plan still asks for; a score of None is a training that diverged, without cuts. Each trial takes 10 s."""
    folder = plan.sweep.folder
    folder.mkdir(exist_ok=True)
    (folder / "sweep.yaml").write_text(plan.sweep.to_yaml())

    def end(job: Job) -> list[Outcome]:
        if score(job.training) is None:
            return [Outcome(TrialResult(job.key, "failed", seconds=10.0, error="training diverged"))]
        outcomes = []
        for trial in job.trials:
            value = score(trial)
            # The reported score says the opposite: nothing may be chosen by it.
            metrics = {"search_score": value, "search_loss": loss(trial), "score": 100 - value}
            outcomes.append(Outcome(TrialResult(trial.key, "finished", metrics, seconds=10.0, facts=dict(facts(trial)))))
        return outcomes

    return run_some(plan, folder, end, notes=notes)


def judged(plan: Plan) -> list[Summary]:
    state = read_state(SweepFolder(plan.sweep.folder).record)
    return mark_front(summarize_entries(state.requested), plan.sweep.objectives)


def chosen(plan: Plan) -> dict[int, list[float]]:
    """The rates of each rank's complete configuration, by task."""
    rates = {}
    for summary in judged(plan):
        if summary.complete:
            by_task = summary.tuning.values.get("learning_rate") or {"": summary.parameters["learning_rate"]}
            rates[summary.parameters["rank"]] = list(map(float, by_task.values()))
    return rates

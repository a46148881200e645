"""Small sweeps under `compare: fair`, run without Ray by scores that are known."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path

from ray.tune.search import Searcher
from rich.console import Console

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.driver.display import Display
from orchestrator.driver.recorder import Recorder
from orchestrator.plan.configuration import Configuration
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.table import print_plan
from orchestrator.plan.trial import Trial
from orchestrator.record.ledger import Ledger
from orchestrator.record.tracker import Tracker
from orchestrator.results.front import mark_front
from orchestrator.results.summary import Summary, summarize
from orchestrator.search.proposers import propose
from orchestrator.search.replication import Replicating
from orchestrator.state.entry import TrialResult
from orchestrator.sweepfile.load import load_sweep
from orchestrator.tune.trial_source import TrialSource

RATES = "[0.001, 0.01, 0.1]"
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
replication: {{seeds: [0, 1, 2], choose: best, tuned: [learning_rate]}}
space:
  - {{method: lora, rank: {{values: [1, 2]}}, learning_rate: {{values: {RATES}}}}}
  - {{method: lora, rank: 4, learning_rate: 0.005}}
"""
BY_RANK = FAIR.replace(f"learning_rate: {{values: {RATES}}}", "rank: {values: [1, 2, 4, 8]}").replace(
    "rank: {values: [1, 2]}", "learning_rate: {values: [0.001, 0.01]}"
)
FIRST_STAGE = 2 * (2 * 3 + 3)
"""Trials before the choice: two tasks; two ranks with three rates and one seed that tunes, and three seeds of what is fixed."""
MEASURED = 2 * 2 * 3
BEST = {
    ("toy/acceptability", 1): 0.01,
    ("toy/sentiment", 1): 0.001,
    ("toy/acceptability", 2): 0.001,
    ("toy/sentiment", 2): 0.001,
}


def by_rate(trial: Trial) -> float | None:
    """Rank 1 has another best rate on each task; rank 2 diverges at 0.1."""
    rate, rank, task = trial.run.training.learning_rate, trial.run.parameters["rank"], trial.run.task
    if (rank, rate) == (2, 0.1):
        return None
    return 80.0 - 10 * abs(math.log10(rate / BEST.get((task, rank), 0.005))) + trial.run.seed % 10


def plan_of(folder: Path, text: str, more: str = "") -> Plan:
    folder.mkdir(exist_ok=True)
    file = folder / "file.yaml"
    file.write_text(f"name: t\nmodel: m\ntasks: [toy/acceptability, toy/sentiment]\nstorage: {folder}\n{text}{more}")
    sweep = load_sweep(file)
    return make_plan(sweep, Planner(sweep, lambda run: Counts(size_of(run), 2, 10_000, 4 * size_of(run))))


def size_of(run: RunSpec) -> int:
    return 100 * int(run.parameters["rank"])


def run(
    plan: Plan,
    score: Callable[[Trial], float | None] = by_rate,
    tracker: Tracker | None = None,
    at_most: int = 1000,
) -> list[Trial]:
    """Runs what the plan still asks for, without Ray; a score of None is a training that diverged. Each trial takes 10 s."""
    folder = plan.sweep.folder
    folder.mkdir(exist_ok=True)
    (folder / "sweep.yaml").write_text(plan.sweep.to_yaml())
    ledger, ran = Ledger(folder), list[Trial]()
    with Display(0, io.StringIO(), "quiet") as display:
        recorder = Recorder(plan, ledger, display, tracker)
        proposer = Replicating(propose(plan, folder), plan, recorder)

        def trials(one: Configuration) -> list[Trial]:
            recorder.add(plan.trials_of(one.id))
            return plan.trials_of(one.id)

        source = TrialSource(proposer, trials, recorder.standing.is_settled)
        while len(ran) < at_most and (config := source.suggest(str(len(ran)))) not in (Searcher.FINISHED, None):
            trial = Trial.from_json(json.loads(config["trial"]))
            key, value = trial.key, score(trial)
            recorder.started(key)
            if value is None:
                recorder.ended(TrialResult(key, "failed", seconds=10.0, error="training diverged"))
            else:
                # The reported score says the opposite: nothing may be chosen by it.
                recorder.ended(TrialResult(key, "finished", {"search_score": value, "score": 100 - value}, seconds=10.0))
            ran.append(trial)
    ledger.close()
    return ran


def judged(plan: Plan) -> list[Summary]:
    return mark_front(summarize(plan.trials, Ledger(plan.sweep.folder).results(), plan.counts), plan.sweep.objectives)


def chosen(plan: Plan) -> dict[int, list[float]]:
    """The rates of each rank's complete configuration, by task."""
    found = {}
    for one in judged(plan):
        if one.complete:
            assert one.tuning is not None
            rates = one.tuning.values.get("learning_rate") or {"": one.parameters["learning_rate"]}
            found[one.parameters["rank"]] = list(map(float, rates.values()))
    return found


def printed(plan: Plan) -> str:
    console = Console(file=io.StringIO(), width=250)
    print_plan(plan, console, {one.id: 10 for one in plan.configurations})
    return console.file.getvalue()  # type: ignore[attr-defined]

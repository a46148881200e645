"""What tuning does to a reported score: the bias of a seed that chose, simulated; and one rate for all tasks, or one for each.

    python -m tests.benchmarks.tuning_bias [--draws 200]
    python -m tests.benchmarks.tuning_bias --record docs/measurements/records/tuning.csv

The simulation runs `compare: fair` as a sweep does, over trials whose true scores are known: sixteen configurations, four
rates, three tasks. On the first task a training collapses by chance, the more often the higher the rate. The record has every
rate of every configuration with the seed that tuned: each rule chooses by the search split, and that seed's reported split
judges.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean

import numpy as np

from craft.results import Counts
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import Trial
from orchestrator.results.front import mark_front
from orchestrator.results.summary import summarize_entries
from orchestrator.search.stages import make_strategy
from orchestrator.state.entry import TrialResult
from orchestrator.state.events import Ended, Wanted
from orchestrator.state.state import State, fold
from orchestrator.sweepfile.load import load_sweep
from tests.benchmarks.trials import read_trials

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
TASKS = ("toy/similarity", "toy/sentiment", "toy/paraphrase")
COLLAPSE = {3e-4: 0.1, 1e-3: 0.3, 3e-3: 0.5, 1e-2: 0.9}
"""How often a training on the first task collapses, which costs DEPTH points."""
DEPTH = 55.0
SEARCH_NOISE, REPORTED_NOISE = 3.0, 1.0
"""Points: the spread of a score on a search split of 200 examples, and on a larger reported split."""

SWEEP = """
name: simulated
model: m
tasks: [{tasks}]
seeds: [0, 1, 2]
compare: fair
space: [{{method: lora, rank: {{values: {ranks}}}, learning_rate: {{values: {rates}}}}}]
"""

Scores = Mapping[tuple[str, str], float]
"""By candidate and task."""


def plan_of() -> Plan:
    """Makes the plan of the simulated sweep."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "simulated.yaml"
        ranks, rates = list(range(1, 17)), list(RATES)
        file.write_text(SWEEP.format(tasks=", ".join(TASKS), ranks=ranks, rates=rates))
        sweep = load_sweep(file)
    return make_plan(sweep, Planner(sweep, lambda run: Counts(100 * run.parameters["rank"], 2, 10_000, 400)))


def truth(trial: Trial) -> float:
    """The expected score: each task and configuration has its own best rate, and collapses count with their share."""
    task, rate, rank = TASKS.index(trial.run.task), trial.run.training.learning_rate, trial.run.parameters["rank"]
    best = (1, 2, 2)[task] + (rank + task) % 2
    expected = 75.0 - 3.0 * abs(RATES.index(rate) - best)
    return expected if task else expected - COLLAPSE[rate] * DEPTH


def draw(trial: Trial, random: np.random.Generator) -> TrialResult:
    """A training's end; its luck is in both scores, the luck of the examples in each for itself."""
    task, rate = TASKS.index(trial.run.task), trial.run.training.learning_rate
    share = 0.0 if task else COLLAPSE[rate]
    score = truth(trial) + DEPTH * share - DEPTH * (random.random() < share) + random.normal()
    search, reported = (score + spread * random.normal() for spread in (SEARCH_NOISE, REPORTED_NOISE))
    return TrialResult(trial.key, "finished", {"search_score": search, "score": reported})


def one_sweep(plan: Plan, random: np.random.Generator) -> float:
    """The mean of all reported scores, minus that of their true values."""
    strategy, state, results = make_strategy(plan), State(), dict[str, TrialResult]()
    while new := [trial for trial in strategy.wanted(state) if trial.key not in results]:
        results |= {trial.key: draw(trial, random) for trial in new}
        wanted = Wanted(keys=[trial.key for trial in new], entries=[trial.entry() for trial in new])
        state = fold([wanted, *(Ended(result=results[trial.key]) for trial in new)], state)
    measured = [trial for trial in strategy.wanted(state) if trial.tunes is None]
    summaries = mark_front(summarize_entries(state.asked_for), plan.sweep.objectives)
    return fmean(cell.score.mean for cell in summaries if cell.complete) - fmean(map(truth, measured))


def bias(draws: int, seed: int = 0) -> tuple[float, float]:
    """Simulates how much too high the reported mean is; returns that and its standard error."""
    random, plan = np.random.default_rng(seed), plan_of()
    too_high = np.array([one_sweep(plan, random) for _ in range(draws)])
    return float(too_high.mean()), float(too_high.std(ddof=1) / draws**0.5)


def rules_compared(record: Path) -> list[str]:
    """A row for each rule: what the reported split has of the rates that it chooses, as a Markdown table."""
    entries = [cell for cell in read_trials(record) if cell.tunes is not None and cell.result is not None]
    search, reported = (
        {(cell.configuration, cell.task): cell.result.metrics[name] for cell in entries if cell.result is not None}
        for name in ("search_score", "score")
    )
    full = {cell.configuration for cell in entries if cell.method == "full"}
    tasks, groups = list(dict.fromkeys(cell.task for cell in entries)), dict[str, dict[str, None]]()
    for cell in entries:
        groups.setdefault(str(cell.tunes), {})[cell.configuration] = None

    def scaled(scores: Scores) -> Scores:
        """Each task between the lowest score of any trial, at least 0, and full fine-tuning at its best rate."""
        ends = {}
        for task in tasks:
            every = {name: score for (name, of), score in scores.items() if of == task}
            ends[task] = max(0.0, min(every.values())), max(every[name] for name in full)
        return {key: 100 * (score - ends[key[1]][0]) / (ends[key[1]][1] - ends[key[1]][0]) for key, score in scores.items()}

    def over_tasks(scores: Scores) -> Callable[[str, str], float]:
        return lambda name, task: fmean(scores[name, cell] for cell in tasks)

    rules: dict[str, Callable[[str, str], float]] = {
        "one rate, by the mean over tasks": over_tasks(search),
        "one rate, by the normalized mean": over_tasks(scaled(search)),
        "a rate for each task": lambda name, task: search[name, task],
        "one rate, the best in hindsight": over_tasks(reported),
        "each task's best in hindsight": lambda name, task: reported[name, task],
    }
    lines = [f"| the rule | mean | normalized | {' | '.join(tasks)} |", "| --- " * (len(tasks) + 3) + "|"]
    for title, judged in rules.items():
        picked = [(max(group, key=lambda name: judged(name, task)), task) for group in groups.values() for task in tasks]
        by_task = [fmean(reported[key] for key in picked if key[1] == task) for task in tasks]
        normal = fmean(scaled(reported)[key] for key in picked)
        lines.append(f"| {title} | {' | '.join(f'{value:.2f}' for value in (fmean(by_task), normal, *by_task))} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=200, help="simulated sweeps for each rule (default: %(default)s)")
    parser.add_argument(
        "--record", type=Path, metavar="FILE.csv", help="compare rules on the trials of a recorded sweep instead"
    )
    arguments = parser.parse_args()
    if arguments.record:
        print("\n".join(rules_compared(arguments.record)))
        return
    mean, error = bias(arguments.draws)
    print(f"reported means are too high by {mean:+.2f} ± {error:.2f}")


if __name__ == "__main__":
    main()

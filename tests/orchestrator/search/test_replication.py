"""Further seeds go to the configurations of which it is not known whether they are on the front."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import Job, Outcome, PlannedTrial
from orchestrator.state.entry import TrialResult
from tests.orchestrator.driven import run_some
from tests.orchestrator.plans import rank, toy_plan

Score = Callable[[int, float, int], float]
GRID = "[{method: lora, rank: {values: [1, 2, 4]}, learning_rate: {values: [0.001, 0.01]}}]"


def by_rank_and_rate(rank: int, rate: float, seed: int) -> float:
    """0.01 is worse by two points; 2 is no better than 1, and a rank of 4 is far better."""
    return {1: 70.0, 2: 70.0, 4: 90.0}[rank] - (2.0 if rate == 0.01 else 0.0) + 0.1 * seed


def plan_of(folder: Path, replication: str, more: str = "search: {algorithm: grid}\n", space: str = GRID) -> Plan:
    tasks = "tasks: [toy/paraphrase, toy/sentiment]\nseeds: [0]\n"
    return toy_plan(folder, f"{tasks}space: {space}\nreplication: {replication}\n{more}", rank)


def run(plan: Plan, folder: Path, score: Score = by_rank_and_rate) -> list[PlannedTrial]:
    """Runs what the plan still asks for; the reported score says the opposite, since nothing may be chosen by it."""

    def end(job: Job) -> list[Outcome]:
        run = job.training.run
        value = score(run.parameters["rank"], run.training.learning_rate, run.seed)
        counts = {"trainable_parameters": float(rank(run))}
        metrics = {"search_score": value, "score": 100 - value}
        return [Outcome(TrialResult(job.key, "finished", metrics, counts))]

    return run_some(plan, folder, end)


def seeds_of(trials: list[PlannedTrial]) -> dict[tuple[int, float], set[int]]:
    found: dict[tuple[int, float], set[int]] = {}
    for trial in trials:
        run = trial.run
        found.setdefault((run.parameters["rank"], run.training.learning_rate), set()).add(run.seed)
    return found


def test_further_seeds_go_where_the_front_is_not_known(tmp_path: Path) -> None:
    luck = {0: 0.0, 1: 1.5, 2: -1.5, 3: 1.0, 4: -1.0}

    def score(rank: int, rate: float, seed: int) -> float:
        # 2 is a little ahead of the smaller 1, less than the luck of a seed; 4 is far ahead of both.
        return {1: 70.0, 2: 70.4, 4: 95.0}[rank] - (30.0 if rate == 0.01 else 0.0) + luck[seed] * (1 if rank == 1 else -1)

    ran = run(plan_of(tmp_path, "{seeds: [1, 2, 3, 4], margin: 1.0}"), tmp_path, score)
    seeds = seeds_of(ran)
    assert seeds[2, 0.001] == {0, 1, 2, 3, 4}, "undecided to the last"
    assert seeds[1, 0.001] == seeds[4, 0.001] == {0, 1}, "nothing is smaller than 1, and 4 is known: one seed more, no other"
    assert all(seeds[rank, 0.01] == {0} for rank in (1, 2, 4))


def test_it_goes_with_a_searcher_that_learns_and_keeps_to_the_budget(tmp_path: Path) -> None:
    space = "[{method: lora, rank: {values: [1, 2, 4]}, learning_rate: {min: 1e-4, max: 1e-1, distribution: log_uniform}}]"
    more = "search: {algorithm: tpe, configurations: 5}\nbudget: {trials: 15}\n"

    def score(rank: int, rate: float, seed: int) -> float:
        return 10.0 * rank

    plan = plan_of(tmp_path, "{seeds: [1, 2, 3, 4, 5]}", more, space)
    ran = run(plan, tmp_path, score)
    assert len({trial.configuration for trial in ran}) == 5
    assert 10 < len(ran) <= 15
    assert Counter(trial.run.seed for trial in ran)[0] == 10

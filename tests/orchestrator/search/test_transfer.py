"""Rates that one rank of a method finds and the others take, under `compare: fair`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.plan.table import print_plan
from orchestrator.plan.trial import PlannedTrial
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.results.summary import summarize_entries
from orchestrator.review.front_tables import caption, describe_tuning
from orchestrator.review.past_sweep import read_folder
from tests.orchestrator.plans import toy_plan
from tests.orchestrator.recorded import printed
from tests.orchestrator.search.test_fair import TASKS, chosen, judged, plan_of, run

RANKS = [1, 2, 4, 8, 16]
BLOCK = f"  - {{method: lora, rank: {{values: {RANKS}}}}}\n"
TRANSFERRED = f"seeds: [0, 1]\ncompare: fair\nspace:\n{BLOCK}"
Best = dict[tuple[str, int], float]
"""The best rate by task and rank, where it is not 0.003."""
ONE_STEP: Best = {(TASKS[0], 1): 0.01, (TASKS[1], 16): 0.001, (TASKS[1], 8): 0.001}
EDGE: Best = {(task, rank): 0.03 for task in TASKS for rank in RANKS}
TWO_STEPS: Best = {(TASKS[0], 1): 0.03, (TASKS[0], 2): 0.01}


def by(best: Best) -> Callable[[PlannedTrial], float]:
    def score(trial: PlannedTrial) -> float:
        rate = best.get((trial.run.task, trial.run.parameters["rank"]), 0.003)
        return 80.0 - 10 * abs(math.log10(trial.run.training.learning_rate / rate)) + trial.run.seed % 10

    return score


@pytest.mark.parametrize(
    ("best", "tuned", "rates", "said"),
    [
        ({}, 2 * (4 + 3 + 3), {}, "one serves all ranks"),
        ({(TASKS[0], 2): 0.03}, 2 * (4 + 3 + 3), {}, "one serves all ranks"),
        (ONE_STEP, 2 * (4 + 3 + 3) + 2, {1: [0.01, 0.003], 16: [0.003, 0.001]}, "one serves all ranks"),
        (
            TWO_STEPS,
            2 * (4 + 3 + 3) + 2 + 5,
            {1: [0.03, 0.003], 2: [0.01, 0.003]},
            "tuned at more ranks, because LoRA r1, q v (toy/paraphrase) needs another",
        ),
        (EDGE, 2 * (5 + 2 + 2), {rank: [0.03, 0.03] for rank in RANKS}, "one serves"),
    ],
    ids=["same", "between", "one step", "two steps", "at the edge"],
)
def test_ends_are_checked_and_a_side_on_which_the_rate_is_another_is_tuned(
    tmp_path: Path, best: Best, tuned: int, rates: dict[int, list[float]], said: str
) -> None:
    plan = plan_of(tmp_path, TRANSFERRED)
    assert plan.most_jobs == 18 + 20  # LoRA's own rate for rank 4, 1.7e-3, is next to 0.001: this and its neighbours
    shown = printed(lambda console: print_plan(plan, console, {row.id: 10 for row in plan.configurations}))
    assert "rates: 18 trainings instead of 50, tuned at LoRA r4, q v" in shown
    notes = list[str]()
    ran = run(plan, by(best), notes=notes)
    assert len(ran) == len({trial.key for trial in ran}) == tuned + 20
    pairs = {rank: [given[0], given[-1]] for rank, given in chosen(plan).items()}
    assert pairs == {rank: rates.get(rank, [0.003, 0.003]) for rank in RANKS}
    assert f"rates: {tuned} trainings instead of 50: {said}" in notes[0]


def test_a_method_without_a_rate_of_its_own_tries_all(tmp_path: Path) -> None:
    blocks = "  - {method: peft, peft_type: LILY}\n  - {method: bitfit}\n  - {method: lotr, rank: 2}\n"
    plan = toy_plan(tmp_path, f"storage: {tmp_path}\nseeds: [0]\ncompare: fair\nspace:\n{blocks}")
    assert {family.groups[0][0].method: len(family.first) for family in plan.families} == {"peft": 5, "bitfit": 3, "lotr": 5}
    ran = run(plan, lambda trial: 90 - abs(math.log10(trial.run.training.learning_rate / 3e-3)))
    assert len(ran) == (5 + 3 + 5) + 3
    measured = {summary.method: summary.parameters["learning_rate"] for summary in judged(plan) if summary.complete}
    assert measured == {"peft LILY": 3e-3, "bitfit": 3e-3, "lotr": 3e-3}, "BitFit's lowest rate is never tried"


def test_a_configuration_says_whose_rate_it_has(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TRANSFERRED)
    run(plan, by(TWO_STEPS))
    summaries = [summary for summary in judged(plan) if summary.complete]
    tuned = {summary.parameters["rank"]: describe_tuning(summary) for summary in summaries}
    assert tuned == {
        1: "learning_rate 0.03/0.003, 8 trials, 1 min 20 s, highest learning_rate on paraphrase",
        2: "learning_rate 0.01/0.003, as LoRA r4, q v, 5 trials, 50 s",
        4: "learning_rate 0.003, 8 trials, 1 min 20 s",
        8: "learning_rate 0.003, as LoRA r4, q v",
        16: "learning_rate 0.003, 6 trials, 1 min 00 s",
    }
    assert all(summary.tuning.lucks.keys() == summary.tasks.keys() for summary in summaries), "also where the rate is another's"
    words = caption(summaries, plan.sweep.objectives)
    assert "each tuned by 5 to 8 trials of seed 1000, which is in no score, but 2 by those of another rank" in words
    past = [summary for summary in read_folder(plan.sweep.folder).summaries if summary.complete]
    assert {summary.parameters["rank"]: describe_tuning(summary) for summary in past} == tuned
    entries = read_state(SweepFolder(plan.sweep.folder).record).requested
    renamed = [
        replace(entry, trial=replace(entry.trial, label="the middle one")) if entry.trial.parameters["rank"] == 4 else entry
        for entry in entries
    ]
    again = {row.parameters["rank"]: row.tuning.transferred for row in summarize_entries(renamed) if row.complete}
    assert [rank for rank, label in again.items() if label == "the middle one"] == [2, 8], "it does not depend on a label"
    by_rank = {entry.trial.parameters["rank"]: entry.trial for entry in entries if entry.trial.is_reported}
    assert by_rank[8].transferred == by_rank[4].configuration


@pytest.mark.parametrize(
    ("space", "more", "candidates"),
    [
        ("  - {method: lora, rank: {values: [1, 2]}}\n", "", 6),
        (BLOCK.replace("rank:", "learning_rate: {values: [0.001, 0.01]}, rank:"), "", 6),
        (BLOCK, "warm_start: {toy/sentiment: toy/paraphrase}\n", 25),
        (BLOCK + BLOCK.replace("rank:", "projections: [q], rank:"), "", 2 * 9),
        ("".join(f"  - {{method: lora, rank: {rank}}}\n" for rank in RANKS), "", 9),
        ("  - {method: lora, rank: {values: [1, 2, 4]}, dropout: {values: [0.0, 0.1]}}\n", "", 2 * 9),
        ("  - {method: vera, rank: {values: [1, 2, 4]}}\n", "", 9),
    ],
    ids=["two ranks", "two rates", "warm start", "projections", "blocks", "dropout", "another method"],
)
def test_where_rates_are_transferred(tmp_path: Path, space: str, more: str, candidates: int) -> None:
    plan = plan_of(tmp_path, f"seeds: [0]\ncompare: fair\nspace:\n{space}", more)
    groups = sum(len(family.groups) for family in plan.families)
    assert plan.most_jobs == 2 * (candidates + groups)

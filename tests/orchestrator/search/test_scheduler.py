"""The scheduler: its rule against the definition, and who is next."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator.record.state import Entry
from orchestrator.search.scheduler import Candidate, Promotion, candidate_of
from tests.orchestrator.plans import rank, toy_plan


def one(name: str, cost: float = 1.0, task: str = "rte", seed: int = 0) -> Candidate:
    return Candidate(f"{name} {task} {seed}", name, (task, seed), (cost,))


class Told(NamedTuple):
    """A report at the only rung, of epoch 1."""

    candidate: Candidate
    score: float


def may_go_on(at: int, reports: list[Told], went: list[int], factor: float) -> bool:
    """The definition, over all reports so far: whether the trial of a report may go on, after those at the places `went`."""
    one = reports[at]
    there = [place for place, other in enumerate(reports) if other.candidate.group == one.candidate.group]
    if len({reports[place].score for place in there}) == 1:
        return True
    rivals = [place for place in there if reports[place].candidate.costs <= one.candidate.costs]
    better = sum(reports[place].score > one.score for place in rivals)
    equals = sum(reports[place].score == one.score for place in rivals if place in went)
    return better + equals < max(1, math.floor(len(rivals) / factor))


@pytest.mark.parametrize("seed", range(30))
def test_whoever_is_among_the_best_of_its_rivals_goes_on_and_may_do_so_later(seed: int) -> None:
    """Rivals are no larger adapters, on the same task with the same seed."""
    draw = random.Random(seed)
    factor = draw.choice([2.0, 3.0, 4.0])
    rule, reports, went, later = Promotion(1.0, factor), list[Told](), list[int](), 0
    for number in range(60):
        candidate = one(f"c{number}", float(draw.randint(1, 4)), draw.choice(["rte", "mrpc"]), draw.choice([0, 0, 0, 1]))
        reports.append(Told(candidate, float(draw.randint(0, 6))))
        expected = may_go_on(number, reports, went, factor)
        assert rule.pauses(candidate, 1.0, reports[number].score) is not expected
        if expected:
            went.append(number)
        for place in {*range(number)} - {*went}:
            name = reports[place].candidate.configuration
            expected = may_go_on(place, reports, went, factor)
            assert rule.may_be_promoted(name) is expected
            if expected and draw.random() < 0.5:
                rule.promote(name)
                went.append(place)
                later += 1
    assert later


def test_a_report_that_is_known_changes_nothing() -> None:
    rule = Promotion(1.0, 2.0)
    for name, score in (("a", 3.0), ("b", 2.0), ("c", 1.0)):
        rule.pauses(one(name), 1.0, score)
    assert not rule.may_be_promoted("b")
    assert not rule.pauses(one("b"), 1.0, 9.0), "a worker that continues from a checkpoint reports again what it had reported"
    assert not rule.may_be_promoted("b")
    assert not any(rule.pauses(one("c"), 2.0, score) for score in (None, float("nan"), "high"))


def test_the_end_of_a_trial_is_a_rung_too() -> None:
    rule = Promotion(100.0, 2.0)
    assert all(rule.pauses(one(name), 2.0, score, last=True) for name, score in (("a", 3.0), ("b", 2.0), ("c", 1.0)))
    assert [rule.may_be_promoted(name) for name in "abc"] == [True, False, False]
    assert rule.next_turn({"b": [one("b")]}) == one("b"), "only its result, which was lost, or a size is missing"
    assert rule.next_turn({"b": [one("b", task="mrpc")]}) is None, "another trial of it waits"
    rule.pauses(one("d"), 2.0, 0.0, last=True)
    assert [rule.may_be_promoted(name) for name in "abcd"] == [True, True, False, False]


def test_the_next_trial_is_on_the_task_that_tells_configurations_apart() -> None:
    rule = Promotion()
    trials = [one("x", task="cola"), one("x", task="mrpc")]
    assert rule.next_of(trials).group[0] == "cola"  # nothing is known: the file's order
    for name, mrpc in (("a", 70.0), ("b", 68.0)):
        rule.pauses(one(name, task="cola"), 0.5, 0.0)
        rule.pauses(one(name, task="mrpc"), 0.5, mrpc)
    assert rule.next_of(trials).group[0] == "mrpc"


def test_cost_is_what_the_objectives_know_beforehand(tmp_path: Path) -> None:
    text = "space: [{method: lora, rank: {values: [1, 8]}}]\n"
    plan = toy_plan(tmp_path, text + "objectives: {score: maximize, seconds: minimize, trainable_parameters: minimize}\n", rank)
    entries = [Entry(trial.trial) for trial in plan.trials]
    small, large = (candidate_of(entry, plan.sweep.objectives) for entry in entries)
    assert (small.costs, large.costs) == ((100,), (800,))
    assert small.group == large.group == ("toy/paraphrase", 0)

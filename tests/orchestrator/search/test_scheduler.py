"""The scheduler: its rule against the definition, and who is next."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.plan.trial import Trial
from orchestrator.search.scheduler import Promotion, make_scheduler
from tests.orchestrator.plans import rank, toy_plan

Told = tuple[Trial, float, float, bool]


def one(name: str, cost: float = 1.0, task: str = "rte", seed: int = 0) -> Trial:
    return Trial(f"{name} {task} {seed}", name, name, "lora", task, seed, "honest", {}, planned={"adapter_bytes": cost})


def rule_of(grace: float = 1.0, factor: float = 3.0) -> Promotion:
    return Promotion({"score": "maximize", "adapter_bytes": "minimize"}, grace, factor)


def may_be_promoted(reports: Sequence[Told], went: Sequence[int], at: int, factor: float) -> bool:
    """The definition, over all reports so far, each of which is at one rung: whether the trial of report `at` may go on.

    Args:
        went: places in `reports` of those that went on, before.
    """
    candidate, epoch, score, _ = reports[at]
    group = (candidate.task, candidate.seed)
    there = [place for place, (other, when, _, _) in enumerate(reports) if (other.task, other.seed) == group and when == epoch]
    if len({reports[place][2] for place in there}) == 1:
        return True
    rivals = [place for place in there if reports[place][0].planned["adapter_bytes"] <= candidate.planned["adapter_bytes"]]
    better = sum(reports[place][2] > score for place in rivals)
    equals = sum(reports[place][2] == score for place in rivals if place in went)
    return better + equals < max(1, math.floor(len(rivals) / factor))


@pytest.mark.parametrize("seed", range(30))
def test_whoever_is_among_the_best_of_its_rivals_goes_on_and_may_do_so_later(seed: int) -> None:
    draw = random.Random(seed)
    factor = draw.choice([2.0, 3.0, 4.0])
    rule = rule_of(1.0, factor)
    reports: list[Told] = []
    went: list[int] = []
    later = 0
    for number in range(60):
        told = (
            one(f"c{number}", float(draw.randint(1, 4)), draw.choice(["rte", "mrpc"])),
            1.0,
            float(draw.randint(0, 6)),
            False,
        )
        reports.append(told)
        expected = may_be_promoted(reports, went, number, factor)
        assert rule.pauses(*told) is not expected
        if expected:
            went.append(number)
        for place in range(number):
            if place not in went:
                expected = may_be_promoted(reports, went, place, factor)
                assert rule.may_be_promoted(reports[place][0].configuration) is expected
                if expected and draw.random() < 0.5:
                    rule.promote(reports[place][0].configuration)
                    went.append(place)
                    later += 1
    assert later


def test_a_report_that_is_known_changes_nothing() -> None:
    rule = rule_of(1.0, 2.0)
    for name, score in (("a", 3.0), ("b", 2.0), ("c", 1.0)):
        rule.pauses(one(name), 1.0, score)
    assert not rule.may_be_promoted("b")
    assert not rule.pauses(one("b"), 1.0, 9.0), "a worker that continues from a checkpoint reports again what it had reported"
    assert not rule.may_be_promoted("b")
    assert not any(rule.pauses(one("c"), 2.0, score) for score in (None, float("nan"), "high"))


def test_the_end_of_a_trial_is_a_rung_too() -> None:
    rule = rule_of(100.0, 2.0)
    assert all(rule.pauses(one(name), 2.0, score, last=True) for name, score in (("a", 3.0), ("b", 2.0), ("c", 1.0)))
    assert [rule.may_be_promoted(name) for name in "abc"] == [True, False, False]
    rule.pauses(one("d"), 2.0, 0.0, last=True)
    assert [rule.may_be_promoted(name) for name in "abcd"] == [True, True, False, False]


def test_a_trained_trial_whose_result_was_lost_is_not_thrown_away() -> None:
    rule = rule_of(100.0, 3.0)
    for name, score in (("a", 90.0), ("b", 80.0)):
        assert rule.pauses(one(name), 2.0, score, last=True)
    assert not rule.may_be_promoted("b")
    job, other = (SimpleNamespace(key=trial.key, training=trial) for trial in (one("b"), one("b", task="mrpc")))
    assert rule.next_job([job], ()) is job, "only its result, or a size, is missing"
    assert rule.next_job([other], ()) is None, "another trial of it waits"


def test_other_tasks_and_other_seeds_and_larger_adapters_never_count() -> None:
    rule = rule_of()
    for place in range(9):
        for epoch in (1, 3, 9, 27):
            rule.pauses(one(f"t{place}", task="sst2"), epoch, 99.0)
            rule.pauses(one(f"t{place}", seed=1), epoch, 99.0)
            rule.pauses(one(f"t{place}", cost=1000), epoch, 99.0)
    assert not any(rule.pauses(one("new", cost=10), epoch, 1.0) for epoch in (1, 3, 9, 27))
    assert rule.pauses(one("equal", cost=1000), 1, 1.0), "of equal size, one of the same low scores waits"


def test_cost_is_what_the_objectives_know_beforehand(tmp_path: Path) -> None:
    objectives = "objectives: {score: maximize, seconds: minimize, trainable_parameters: minimize}\n"
    for cheap_first in (True, False):
        text = f"space: [{{method: lora, rank: {{values: [1, 8]}}}}]\nscheduler: {{name: promotion}}\n{objectives}"
        plan = toy_plan(tmp_path, text, rank)
        small, large = (trial.trial for trial in plan.trials)
        rule = make_scheduler(plan.sweep)
        first, second = (small, large) if cheap_first else (large, small)
        assert not rule.pauses(first, 1.0, 90.0)
        assert rule.pauses(second, 1.0, 10.0) is cheap_first, "only what is no larger counts as a rival"

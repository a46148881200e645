"""The scheduler: its rule against the definition, who is next, and a sweep that learns and promotes, run and continued."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from craft.spec import RunSpec
from orchestrator.driver.display import SweepOutcome
from orchestrator.plan.trial import Trial
from orchestrator.search.scheduler import Promotion, make_scheduler
from tests.orchestrator.local_engine import without_ray
from tests.orchestrator.plans import rank, toy_plan
from tests.orchestrator.recorded import results_of
from tests.orchestrator.stand_in import run_sweep, stand_in


def one(name: str, cost: float = 1.0, task: str = "rte", seed: int = 0) -> Trial:
    return Trial(f"{name} {task} {seed}", name, name, "lora", task, seed, "honest", {}, planned={"adapter_bytes": cost})


def rule_of(grace: float = 1.0, factor: float = 3.0) -> Promotion:
    return Promotion({"score": "maximize", "adapter_bytes": "minimize"}, grace, factor)


class Arrival(NamedTuple):
    """A report at the only rung, of epoch 1."""

    candidate: Trial
    score: float


def may_go_on(at: int, reports: list[Arrival], went: list[int], factor: float) -> bool:
    """The definition, over all reports so far: whether the trial of a report may go on, after those at the places `went`."""
    one, group = reports[at], (reports[at].candidate.task, reports[at].candidate.seed)
    there = [place for place, other in enumerate(reports) if (other.candidate.task, other.candidate.seed) == group]
    if len({reports[place].score for place in there}) == 1:
        return True
    most = one.candidate.planned["adapter_bytes"]
    rivals = [place for place in there if reports[place].candidate.planned["adapter_bytes"] <= most]
    better = sum(reports[place].score > one.score for place in rivals)
    equals = sum(reports[place].score == one.score for place in rivals if place in went)
    return better + equals < max(1, math.floor(len(rivals) / factor))


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 30))])
def test_whoever_is_among_the_best_of_its_rivals_goes_on_and_may_do_so_later(seed: int) -> None:
    """Rivals are no larger adapters, on the same task with the same seed."""
    draw = random.Random(seed)
    factor = draw.choice([2.0, 3.0, 4.0])
    rule, reports, went, later = rule_of(1.0, factor), list[Arrival](), list[int](), 0
    for number in range(60):
        candidate = one(f"c{number}", float(draw.randint(1, 4)), draw.choice(["rte", "mrpc"]), draw.choice([0, 0, 0, 1]))
        reports.append(Arrival(candidate, float(draw.randint(0, 6))))
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
    job, other = (SimpleNamespace(key=trial.key, training=trial) for trial in (one("b"), one("b", task="mrpc")))
    assert rule.next_job([job], ()) is job, "only its result, which was lost, or a size is missing"
    assert rule.next_job([other], ()) is None, "another trial of it waits"
    rule.pauses(one("d"), 2.0, 0.0, last=True)
    assert [rule.may_be_promoted(name) for name in "abcd"] == [True, True, False, False]


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


def run(folder: Path, trials: int, more: str = "", *, resume: bool = False) -> SweepOutcome:
    def evaluate(spec: RunSpec, step: int) -> float:
        """1e-3 scores best, and it shows from the first epoch on."""
        return 80 - 10 * abs(math.log10(spec.training.learning_rate) + 3) + step

    plan = toy_plan(
        folder,
        "seeds: [0, 1]\nscheduler: {name: promotion}\n"
        "space: [{method: lora, rank: 4, learning_rate: {min: 1e-6, max: 1e-1, distribution: log_uniform}}]\n"
        f"search: {{algorithm: tpe, configurations: {trials}}}\n{more}",
    )
    train = stand_in(str(folder / "log"), {}, evaluate=evaluate, finish=lambda spec: {"search_score": evaluate(spec, 3)})
    with without_ray():
        return run_sweep(plan, folder / "run", resume=resume, cpus=1, quiet=True, train=train)


def drawn(outcome: SweepOutcome) -> list[str | None]:
    """The configurations that were drawn and trained, in order."""
    return [proposal.configuration for proposal in outcome.state.proposals if proposal.verdict is None]


def test_a_sweep_that_learns_is_run_extended_and_never_repeats_itself(tmp_path: Path) -> None:
    """Its first session has no time."""
    over = run(tmp_path, 4, "budget: {wall_clock: 0.001s}\n")
    assert (over.exhausted, over.ended("finished")) == ("budget.wall_clock: 0 s are over", [])
    first = run(tmp_path, 4, "budget: {wall_clock: 1h}\n", resume=True)
    assert (first.exhausted, first.complete, bool(first.trouble)) == (None, True, False)
    outcome = run(tmp_path, 7, resume=True)
    assert drawn(outcome)[:4] == drawn(first)
    assert len({*drawn(outcome)}) == 7
    results = results_of(outcome)
    assert results.keys() == {*outcome.state.wanted}
    trained = Counter(tuple(line.split()[3:]) for line in (tmp_path / "log").read_text().splitlines() if line[:4] == "step")
    assert set(trained.values()) == {1}, "an epoch was trained twice"
    # What is worse than what came before waits after its first epoch, the best runs to its end.
    epochs = Counter(key for _, key in trained)
    best = max(outcome.ended("finished"), key=lambda entry: results[entry.key].metrics["search_score"]).key
    assert results[best].steps == epochs[best] == 3
    assert outcome.ended("stopped")
    assert all(results[entry.key].steps == epochs[entry.key] < 3 for entry in outcome.ended("stopped"))

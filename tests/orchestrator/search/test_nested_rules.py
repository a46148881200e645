"""Nested ranks under the rules: a training goes on while a slice would, and gets further seeds if a slice deserves them."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from orchestrator.driver.display import Display
from orchestrator.driver.recorder import Recorder
from orchestrator.driver.slices import EndedSlice
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import TrialResult, TrialSpec
from orchestrator.record.ledger import Ledger
from orchestrator.results.front import mark_front
from orchestrator.results.summary import summarize
from orchestrator.search.proposers import propose
from orchestrator.search.replication import Replicating
from orchestrator.search.rivals import Entrant
from orchestrator.search.stopping import Halving
from orchestrator.tune.callbacks import as_text
from orchestrator.tune.schedulers import Pausing, scheduler_of
from orchestrator.tune.trial_source import TrialSource, trial_config
from tests.orchestrator.nested_sweep import nested_plan, size_of
from tests.orchestrator.search.test_rules_by_definition import Report, halving_stops

RATES = "learning_rate: {values: [0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008]}"


def told(plan: Plan, training: TrialSpec, epoch: float, total: float, scores: dict[str, float]) -> tuple[Any, dict[str, Any]]:
    """Tune's trial and its report, as schedulers get it."""
    slices = {key: {"search_score": score} for key, score in scores.items() if key != training.key}
    progress = {"total_steps": total, "slices": slices}
    result = as_text({"epoch": epoch, "step": epoch, "search_score": scores[training.key], "progress": progress})
    return SimpleNamespace(config=trial_config(training)), result


@pytest.mark.parametrize("seed", range(4))
def test_asha_stops_a_training_once_the_rule_stops_all_of_its_slices(tmp_path: Path, seed: int) -> None:
    plan = nested_plan(tmp_path, block=RATES, more="scheduler: {name: asha, grace: 1, factor: 2}\n", seeds="[0, 1]")
    scheduler, draw, reports = scheduler_of(plan), random.Random(seed), list[Report]()
    assert scheduler is not None
    rule, beaten = Halving(1, 2), dict[str, float]()
    left, epochs = {one.key: one for one in plan.trainings}, dict.fromkeys((one.key for one in plan.trainings), 0)
    stopped, spared = set[str](), 0
    while left:
        training = draw.choice(list(left.values()))
        epochs[training.key] += 1
        epoch = float(epochs[training.key])
        slices = plan.trained_by(training)
        scores = {one.key: 50 + 10 * draw.random() for one in slices}
        said = []
        for one in slices:
            group = (one.run.task, one.run.seed)
            reports.append((Entrant(one.key, one.configuration, group, (10.0 * size_of(one.run),)), epoch, scores[one.key]))
            said.append(halving_stops(rule, reports, beaten))
            beaten |= {one.key: epoch} if said[-1] else {}
        spared += any(said) and not all(said)
        expected = epoch < 8 and (all(said) or training.configuration in stopped)
        stopped |= {training.configuration} if expected else set()
        decision = scheduler.on_trial_result(None, *told(plan, training, epoch, 8.0, scores))
        assert decision == (TrialScheduler.STOP if expected else TrialScheduler.CONTINUE)
        if epoch == 8 or expected:
            del left[training.key]
    assert stopped
    assert spared


def test_a_paused_training_goes_on_when_one_of_its_slices_is_promoted(tmp_path: Path) -> None:
    more = "scheduler: {name: promotion, grace: 1, factor: 2}\n"
    plan = nested_plan(tmp_path, "{nested: [[all, 2, 2], [all, 4, 4]]}", RATES, more)
    scheduler = scheduler_of(plan)
    assert isinstance(scheduler, Pausing)
    trainings = plan.trainings
    waiting = {one.key: one for one in trainings}

    def report(number: int, small: float, large: float) -> str:
        training = trainings[number]
        assert scheduler.choose([training], set()) == training
        del waiting[training.key]
        first, second = plan.trained_by(training)
        said = scheduler.on_trial_result(None, *told(plan, training, 1.0, 8.0, {first.key: small, second.key: large}))
        if said == TrialScheduler.STOP:
            waiting[training.key] = training
        return said

    assert report(0, 60.0, 60.0) == TrialScheduler.CONTINUE  # nobody to compare with
    assert report(1, 50.0, 70.0) == TrialScheduler.CONTINUE  # its larger slice is the best
    assert report(2, 40.0, 50.0) == TrialScheduler.STOP  # both wait
    assert scheduler.choose([trainings[2]], set()) is None
    assert report(3, 30.0, 30.0) == TrialScheduler.STOP
    assert report(4, 20.0, 20.0) == TrialScheduler.STOP
    assert report(5, 10.0, 10.0) == TrialScheduler.STOP
    # Of six small slices three may go on: the third is the third best, so its training does.
    assert scheduler.choose([trainings[5], trainings[2]], set()) == trainings[2]
    assert scheduler.choose([trainings[5]], set()) is None


def run(plan: Plan, folder: Path, score: Callable[[TrialSpec], float]) -> list[TrialSpec]:
    """Runs what the plan asks for, one training at a time, without Ray; returns the trials that Ray would have seen."""
    ledger = Ledger(folder)
    ran: list[TrialSpec] = []
    with Display(0, io.StringIO(), "quiet") as display:
        recorder = Recorder(plan, ledger, display)
        proposer = Replicating(propose(plan, folder), plan, recorder)
        source = TrialSource(proposer, lambda one: plan.trials_of(one.id), recorder.standing.is_settled)
        while (config := source.suggest(str(len(ran)))) not in (Searcher.FINISHED, None):
            trial = TrialSpec.from_json(json.loads(config["trial"]))
            results = {
                one.key: TrialResult(one.key, "finished", {"search_score": score(one), "score": 0.0})
                for one in plan.trained_by(trial)
            }
            recorder.started(trial.key)
            own = results.pop(trial.key)
            recorder.ended(own, None, [EndedSlice(one) for one in results.values()])
            source.on_trial_complete(str(len(ran)))
            ran.append(trial)
    ledger.close()
    return ran


def seeds_by_rate(ran: list[TrialSpec]) -> dict[float, list[int]]:
    seeds: dict[float, list[int]] = {}
    for one in ran:
        seeds.setdefault(one.run.training.learning_rate, []).append(one.run.seed)
    return seeds


def test_a_training_gets_further_seeds_with_all_its_slices_if_one_may_be_on_the_front(tmp_path: Path) -> None:
    plan = nested_plan(
        tmp_path, block="learning_rate: {values: [0.001, 0.01, 0.1]}", more="replication: {seeds: [1], margin: 1.0}\n"
    )
    best = {2: 0.001, 4: 0.001, 8: 0.01}  # the rate under which each rank is best
    ran = run(
        plan,
        tmp_path,
        lambda one: size_of(one.run) + (90.0 if one.run.training.learning_rate == best[size_of(one.run)] else 60.0),
    )
    assert {size_of(one.run) for one in ran} == {8}
    assert seeds_by_rate(ran) == {0.001: [0, 1], 0.01: [0, 1], 0.1: [0]}
    assert len(plan.trials) == 3 * 5
    assert set(Ledger(tmp_path).finished()) == {one.key for one in plan.trials}


def test_one_rate_is_chosen_for_a_training_by_the_mean_over_its_slices(tmp_path: Path) -> None:
    more = "replication: {seeds: [1, 2], choose: best, tuned: [learning_rate]}\n"
    plan = nested_plan(tmp_path, block="learning_rate: {values: [0.001, 0.01, 0.1]}", more=more)
    assert (plan.most_trials, plan.most_trainings) == (3 * 3 + 3 * 2, 3 + 2)
    scores = {0.001: {2: 90.0, 4: 50.0, 8: 50.0}, 0.01: {2: 70.0, 4: 70.0, 8: 70.0}, 0.1: {2: 10.0, 4: 80.0, 8: 90.0}}
    ran = run(plan, tmp_path, lambda one: scores[one.run.training.learning_rate][size_of(one.run)])
    # The best of a single slice is elsewhere, for each of the three slices.
    assert seeds_by_rate(ran) == {0.001: [0], 0.01: [0, 1, 2], 0.1: [0]}
    assert len(plan.trials) == 3 * 5
    found = mark_front(summarize(plan.trials, Ledger(tmp_path).results(), plan.counts), plan.sweep.objectives)
    assert [(one.complete, one.value("trainable_parameters"), one.nested_in is None) for one in found] == [
        (True, 20.0, False),
        (True, 40.0, False),
        (True, 80.0, True),
    ]
    assert {one.nested_in or one.configuration for one in found} == {found[-1].configuration}
    assert {(one.tuning.candidates, one.tuning.trials, one.tuning.choice) for one in found if one.tuning} == {
        (3, 3, "learning_rate 0.01")
    }


def test_a_budget_of_trials_for_further_seeds_counts_trainings(tmp_path: Path) -> None:
    more = "replication: {seeds: [1, 2], choose: best, tuned: [learning_rate]}\nbudget: {trials: 4}\n"
    plan = nested_plan(tmp_path, block="learning_rate: {values: [0.001, 0.01]}", more=more)
    assert plan.most_trainings == 4
    ran = run(plan, tmp_path, lambda one: -one.run.training.learning_rate)
    assert [(one.run.training.learning_rate, one.run.seed) for one in ran] == [(0.001, 0), (0.01, 0), (0.001, 1), (0.001, 2)]

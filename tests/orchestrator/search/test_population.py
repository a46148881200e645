"""Population based training: who goes on from whom, what is moved, and that a sweep cut anywhere makes the same members."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from ray.tune.search import Searcher

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.driver.display import Display
from orchestrator.driver.recorder import Recorder
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import TrialResult, TrialSpec
from orchestrator.record.ledger import Ledger
from orchestrator.search.population import Population, generations, step
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.space.dimensions import Choice, Range
from orchestrator.tune.trial_source import TrialSource

SPACE = (
    "{method: craft, ranks: {values: [[all, 4, 4], [all, 8, 8], [all, 16, 16]]}, projections: {values: [[q, v], [k, o]]}, "
    "learning_rate: {min: 1e-4, max: 1e-1, distribution: log_uniform}}"
)


def counted(run: RunSpec) -> Counts:
    return Counts(2 * int(run.parameters["ranks"][1]) ** 2, 2, 10_000, 400)


def plan_of(folder: Path, more: str = "", scheduler: str = "{name: pbt, interval: 1, share: 0.25}", search: str = "") -> Plan:
    (folder / "sweep.yaml").write_text(
        f"name: t\nmodel: m\ntasks: [toy/acceptability]\nseeds: [0, 1]\ntraining: {{epochs: 4}}\nspace: [{SPACE}]\n"
        f"search: {search or '{algorithm: random, trials: 8}'}\nscheduler: {scheduler}\n{more}"
    )
    sweep = load_sweep(folder / "sweep.yaml")
    return make_plan(sweep, Planner(sweep, counted))


def run(plan: Plan, folder: Path, at_most: int = 1000, fails: str = "") -> list[TrialSpec]:
    """Runs what the plan asks for, one trial at a time; a trial's score grows with its learning rate and its generation."""
    ledger = Ledger(folder)
    ran: list[TrialSpec] = []
    with Display(0, io.StringIO(), "quiet") as display:
        recorder = Recorder(plan, ledger, display)
        source = TrialSource(Population(plan, recorder), lambda one: plan.trials_of(one.id), recorder.standing.is_settled)
        while len(ran) < at_most and (config := source.suggest(str(len(ran)))) not in (Searcher.FINISHED, None):
            trial = TrialSpec.from_json(json.loads(config["trial"]))
            begin = trial.run.warm_start
            assert begin is None or recorder.standing.is_settled(begin.run)
            recorder.started(trial.key)
            score = 1000 * trial.run.training.learning_rate + trial.run.seed
            counts = {"trainable_parameters": float(counted(trial.run).trainable_parameters)}
            if trial.configuration == fails:
                recorder.ended(TrialResult(trial.key, "failed", error="it diverged"))
            else:
                recorder.ended(TrialResult(trial.key, "finished", {"search_score": score, "score": score}, counts))
            ran.append(trial)
    ledger.close()
    return ran


def test_generations_go_on_from_the_trial_of_their_parent_with_their_own_seed(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert plan.expected_trials == 8 * 2 * 4
    ran = run(plan, tmp_path)
    assert len(ran) == len({trial.key for trial in ran}) == 8 * 2 * 4
    by_key = {trial.key: trial for trial in ran}
    depth: dict[str, int] = {}
    for trial in ran:
        begin = trial.run.warm_start
        parent = by_key[begin.run] if begin else None
        depth[trial.key] = depth[parent.key] + 1 if parent else 0
        assert trial.run.training.epochs == 1
        if parent:
            assert (parent.run.task, parent.run.seed) == (trial.run.task, trial.run.seed)
            assert parent.run.parameters["projections"] == trial.run.parameters["projections"]
    assert Counter(depth.values()) == {0: 16, 1: 16, 2: 16, 3: 16}


def test_the_worst_are_replaced_by_moved_copies_and_the_others_go_on_as_they_are(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    run(plan, tmp_path)
    names = {one.id: one for one in plan.configurations}
    second = [one for one in plan.configurations if one.parent is not None and one.parent.parent is None]
    same = [one for one in second if (one.parameters, one.training) == (one.parent.parameters, one.parent.training)]
    changed = [one for one in second if one not in same]
    assert (len(same), len(changed)) == (6, 2)
    rates = {one.id: one.training["learning_rate"] for one in plan.configurations if one.parent is None}
    for one in changed:
        assert one.parent is not None
        # The score grows with the learning rate, so on every front the largest lead, and copies move from there.
        assert rates[one.parent.id] > sorted(rates.values())[3]
        ratio = one.training["learning_rate"] / one.parent.training["learning_rate"]
        assert ratio == pytest.approx(1.25) or ratio == pytest.approx(0.8) or one.training["learning_rate"] in (1e-4, 1e-1)
    gone = set(rates) - {one.parent.id for one in second if one.parent is not None}
    assert gone
    assert all(one.id in names for one in second)


@pytest.mark.parametrize("cut", [5, 16, 20, 40])
def test_a_sweep_cut_anywhere_goes_on_to_the_same_members(tmp_path: Path, cut: int) -> None:
    whole = {trial.key for trial in run(plan_of(tmp_path), tmp_path / "whole")}
    first = run(plan_of(tmp_path), tmp_path / "cut", at_most=cut)
    second = run(plan_of(tmp_path), tmp_path / "cut")
    assert Counter(trial.key for trial in [*first, *second]) == Counter(whole)
    assert run(plan_of(tmp_path), tmp_path / "cut") == []


def test_a_member_that_failed_is_replaced_and_constraints_hold(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "constraints: {trainable_parameters: {max: 200}}\n")
    bad = plan.configurations[0].id
    run(plan, tmp_path, fails=bad)
    assert all(one.parent is None or one.parent.id != bad for one in plan.configurations)
    assert all(one.counts.trainable_parameters <= 200 for one in plan.configurations)
    assert len([one for one in plan.configurations if one.parent is None]) == 8


def test_a_step_stays_in_its_dimension() -> None:
    draw = random.Random(0)
    ranks = Choice((["all", 4, 4], ["all", 16, 16], ["all", 8, 8]))
    assert {tuple(step(ranks, ["all", 8, 8], draw)) for _ in range(20)} == {("all", 4, 4), ("all", 16, 16)}
    assert {tuple(step(ranks, ["all", 16, 16], draw)) for _ in range(20)} == {("all", 8, 8), ("all", 16, 16)}
    assert step(Choice((["q", "v"], ["k", "o"])), ["q", "v"], draw) == ["q", "v"]
    assert {step(Range(1, 8, "int_uniform"), 2, draw) for _ in range(20)} == {1, 3}
    assert {step(Range(0.1, 1.0, "uniform"), 1.0, draw) for _ in range(20)} == {1.0, 0.8}
    assert generations(4, 0.5) == 8


@pytest.mark.parametrize(
    ("more", "scheduler", "search", "message"),
    [
        ("", "{name: pbt}", "{algorithm: tpe, trials: 8}", "pbt changes configurations itself and cannot serve tpe"),
        ("", "{name: pbt, interval: 4}", "", "not two or more generations of 4"),
        ("", "{name: pbt, interval: 1.5}", "", "not two or more generations"),
        ("", "{name: pbt, factor: 3}", "", "pbt does not take factor"),
        ("replication: {seeds: [5]}\n", "{name: pbt}", "", "replication: goes with configurations that stay"),
    ],
)
def test_what_it_cannot_serve_is_refused(tmp_path: Path, more: str, scheduler: str, search: str, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        plan_of(tmp_path, more, scheduler, search)

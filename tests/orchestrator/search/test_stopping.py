"""What every rule keeps to, and with which trials it compares a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from craft.results import Counts
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.search.judge import Decision, Rule, rule_of
from orchestrator.search.rivals import Entrant, entrant
from orchestrator.sweepfile.algorithms import SCHEDULERS
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.settings import SchedulerSettings

SETTINGS = {name: SchedulerSettings.model_validate({"name": name}) for name in SCHEDULERS}
STOPPING = [name for name, row in SCHEDULERS.items() if row.rule]


def one(name: str, cost: float = 1.0, task: str = "rte", seed: int = 0) -> Entrant:
    return Entrant(f"{name}-{task}-{seed}", name, (task, seed), (cost,))


def stops(rule: Rule, *told: Any) -> bool:
    """Whether the trial must not train on: a rule that pauses is held to the same."""
    return rule.report(*told) is not Decision.GO_ON


def replay(rule: Rule, curves: Mapping[Entrant, Sequence[float]]) -> dict[str, int]:
    """Epochs each trial did when all run side by side, an epoch at a time in the order given."""
    done: dict[str, int] = {}
    stopped: set[str] = set()
    for epoch in range(1, 1 + max(map(len, curves.values()))):
        for trial, scores in curves.items():
            if trial.key not in stopped:
                done[trial.configuration] = epoch
                if stops(rule, trial, epoch, scores[epoch - 1]):
                    stopped.add(trial.key)
    return done


@pytest.mark.parametrize("name", STOPPING)
def test_other_tasks_and_other_seeds_never_count(name: str) -> None:
    rule = rule_of(SETTINGS[name])
    assert rule is not None
    for place in range(9):
        for epoch in (1, 3, 9, 27):
            rule.report(one(f"t{place}", task="sst2"), epoch, 99.0)
            rule.report(one(f"t{place}", seed=1), epoch, 99.0)
    assert not any(stops(rule, one("new"), epoch, 1.0) for epoch in (1, 3, 9, 27))


@pytest.mark.parametrize("name", STOPPING)
def test_a_small_adapter_is_never_stopped_by_larger_ones(name: str) -> None:
    rule = rule_of(SETTINGS[name])
    assert rule is not None
    for place in range(30):
        for epoch in (1, 3, 9, 27):
            rule.report(one(f"large{place}", cost=1000), epoch, 99.0)
    assert not any(stops(rule, one("small", cost=10), epoch, 1.0) for epoch in (1, 3, 9, 27))
    # Of equal size, one of the same low scores is stopped.
    assert any(stops(rule, one("equal", cost=1000), epoch, 1.0) for epoch in (1, 3, 9, 27))


@pytest.mark.parametrize("name", STOPPING)
def test_telling_a_report_again_changes_nothing(name: str) -> None:
    curves = {one(f"t{place}"): [50.0 + place * epoch for epoch in range(9)] for place in range(6)}
    rule, again = rule_of(SETTINGS[name]), rule_of(SETTINGS[name])
    assert rule is not None
    assert again is not None
    for trial, scores in curves.items():
        again.report(trial, 1, scores[0])
        again.report(trial, 1, scores[0])
        rule.report(trial, 1, scores[0])
    assert replay(rule, curves) == replay(again, curves)


def sweep_text(more: str) -> str:
    return f"name: t\nmodel: m\ntasks: [toy/acceptability]\nspace: [{{method: lora, rank: {{values: [1, 8]}}}}]\n{more}"


def test_cost_is_what_the_objectives_know_beforehand(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(sweep_text("objectives: {score: maximize, seconds: minimize, trainable_parameters: minimize}\n"))
    sweep = load_sweep(file)
    plan = make_plan(sweep, Planner(sweep, lambda run: Counts(10 * run.parameters["rank"], 2, 100, 40)))
    small, large = (entrant(sweep, trial, one) for trial, one in zip(plan.trials, plan.configurations, strict=True))
    assert (small.costs, large.costs) == ((10,), (80,))
    assert large.competes_with(small.costs)
    assert not small.competes_with(large.costs)
    assert small.group == large.group == ("toy/acceptability", 0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("scheduler: {name: hyperband, brackets: 3}\n", "hyperband was removed.*take promotion"),
        ("scheduler: {name: none, grace: 3}\n", "none does not take grace; it has no settings"),
        ("scheduler: {name: promotio}\n", "Did you mean 'promotion'"),
        ("scheduler: {name: promotion, grace: 3}\ntraining: {epochs: 3}\n", "nothing would ever be stopped"),
        ("scheduler: {name: promotion}\nobjectives: {trainable_parameters: minimize}\n", "stops by the score"),
    ],
)
def test_what_a_scheduler_cannot_do_is_refused_when_the_file_is_read(tmp_path: Path, more: str, message: str) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(sweep_text(more))
    with pytest.raises(SweepError, match=message):
        load_sweep(file)

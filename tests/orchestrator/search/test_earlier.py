"""A searcher that begins with what earlier sweeps found: which of it counts, and that it counts once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from optuna.trial import TrialState

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator.plan.parameters import flat_parameters
from orchestrator.plan.plan import Plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import TrialResult
from orchestrator.record.ledger import Ledger
from orchestrator.search.warm_start import planned
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.tools.journal import Journal
from tests.orchestrator.search.test_study import propose, run_all, stored

RATES = "[1e-5, 1e-4, 1e-3, 1e-2]"
GRID = f"{{method: lora, rank: {{values: [1, 2, 4]}}, learning_rate: {{values: {RATES}}}, dropout: {{values: [0.0, 0.1]}}}}"
RANGE = "{method: lora, rank: {min: 1, max: 2}, learning_rate: {min: 5e-5, max: 1e-2, distribution: log_uniform}}"


def counted(run: RunSpec) -> Counts:
    return Counts(100 * run.parameters["rank"], 2, 10_000, 400 * run.parameters["rank"])


def plan_of(folder: Path, name: str, space: str, search: str, more: str = "tasks: [toy/acceptability]\n") -> Plan:
    file = folder / f"{name}.yaml"
    file.write_text(f"name: {name}\nmodel: m\nspace: [{space}]\nsearch: {search}\nstorage: {folder}\n{more}")
    sweep = load_sweep(file)
    return planned(sweep, Planner(sweep, counted))


def score(run: RunSpec) -> float:
    return 80 - 8 * abs(math.log10(run.training.learning_rate) + 3) + run.parameters["rank"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a grid named `first`, run but for its last trial."""
    plan = plan_of(tmp_path, "first", GRID, "{algorithm: grid}")
    home = tmp_path / "first"
    home.mkdir()
    (home / "sweep.yaml").write_text(plan.sweep.to_yaml())
    with Journal(home / "journal.jsonl") as journal:
        ledger = Ledger(home)
        for trial in plan.trials[:-1]:
            run = trial.run
            names = {"configuration": trial.configuration, "label": trial.label, "method": run.method}
            names |= {"key": trial.key, "task": run.task, "seed": run.seed, "protocol": run.protocol}
            journal.append({"kind": "trial_started", "time": 0, "params": flat_parameters(run), **names})
            metrics = {"search_score": score(run), "score": 0.0}
            ledger.add(TrialResult(trial.key, "finished", metrics, {"trainable_parameters": 100 * run.parameters["rank"]}))
        ledger.close()
    return tmp_path


def test_points_of_this_space_are_told_with_their_search_scores(folder: Path) -> None:
    plan = plan_of(folder, "second", RANGE, "{algorithm: tpe, trials: 3, learn_from: [first]}")
    # Without dropout, ranks 1 and 2, rates within the range: the others are no points of this space.
    assert len(plan.earlier) == 2 * 3
    for one in plan.earlier:
        rank, rate = one.point.parameters["rank"], one.point.training["learning_rate"]
        assert one.values["trainable_parameters"] == 100 * rank
        assert one.values["score"] == pytest.approx(80 - 8 * abs(math.log10(rate) + 3) + rank)
    by_path = plan_of(folder, "second", RANGE, f"{{algorithm: tpe, trials: 3, learn_from: ['{folder / 'first'}']}}")
    assert by_path.earlier == plan.earlier


def test_the_study_has_each_result_once_however_often_it_is_resumed(folder: Path) -> None:
    search = "{algorithm: tpe, trials: 3, learn_from: [first]}"
    for _ in range(2):
        seen = run_all(propose(plan_of(folder, "second", RANGE, search), folder / "second"), at_most=2)
    trials = stored(folder / "second")
    told = [trial for trial in trials if "earlier" in trial.user_attrs]
    assert len(told) == len({trial.user_attrs["earlier"] for trial in told}) == 6
    assert all(trial.state == TrialState.COMPLETE for trial in told)
    # They cost nothing of the sweep's own: it still proposes as many as it was asked for.
    assert len(trials) - len(told) >= 3
    assert seen


@pytest.mark.parametrize("algorithm", ["tpe", "nsga2", "nsga3"])
def test_what_is_learnt_is_used(folder: Path, algorithm: str) -> None:
    # All of them draw at random to begin with: with a grid to begin with they go to the best learning rates at once.
    space = (
        f"{{method: lora, rank: {{values: [1, 2, 4]}}, learning_rate: {{values: {RATES}}}, dropout: {{values: [0.0, 0.1]}}}}"
    )
    more = "tasks: [toy/acceptability]\nobjectives: {score: maximize}\n"
    cold = plan_of(folder, "cold", space, f"{{algorithm: {algorithm}, trials: 6}}", more)
    warm = plan_of(folder, "warm", space, f"{{algorithm: {algorithm}, trials: 6, learn_from: [first]}}", more)

    def answer(one) -> dict[str, float]:
        return {"score": 80 - 8 * abs(math.log10(one.training["learning_rate"]) + 3) + one.parameters["rank"]}

    means = [sum(answer(one)["score"] for one in run_all(propose(plan), answer)) for plan in (cold, warm)]
    assert means[1] > means[0]


@pytest.mark.parametrize(
    ("space", "search", "more", "message"),
    [
        (RANGE, "{algorithm: tpe, trials: 3, learn_from: [frist]}", "tasks: [toy/acceptability]\n", "is no sweep .*frist"),
        (
            RANGE,
            "{algorithm: tpe, trials: 3, learn_from: [first]}",
            "tasks: [toy/sentiment]\n",
            "of the tasks toy/acceptability",
        ),
        (
            RANGE,
            "{algorithm: tpe, trials: 3, learn_from: [first]}",
            "tasks: [toy/acceptability]\ntraining: {epochs: 9}\n",
            "none of the 23 complete configurations of first is a point of this space",
        ),
        (RANGE, "{algorithm: random, trials: 3, learn_from: [first]}", "tasks: [toy/acceptability]\n", "random learns nothing"),
    ],
)
def test_what_says_nothing_here_is_refused(folder: Path, space: str, search: str, more: str, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        plan_of(folder, "second", space, search, more)

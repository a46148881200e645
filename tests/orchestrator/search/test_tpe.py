"""TPE over blocks: what it looks at of a long study, what it says of running trials, and that a resume changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from orchestrator.plan.configuration import Configuration
from orchestrator.search import tpe
from orchestrator.search.dimensions import Encoding
from orchestrator.search.tpe import BlockTpe, Memory
from tests.orchestrator.search.test_study import CRAFT, LORA, plan_of, propose, run_all, stored, value


def study_of(values: list[tuple[float, float]], running: tuple[int, ...] = ()) -> optuna.Study:
    study = optuna.create_study(directions=["maximize", "minimize"])
    for number, pair in enumerate(values):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        if number not in running:
            study.tell(trial, pair)
    return study


def test_of_a_short_study_nothing_is_left_out() -> None:
    study = study_of([(number % 7, number % 5) for number in range(tpe.LATEST)])
    assert [trial.number for trial in Memory().of(study)] == list(range(tpe.LATEST))


def test_of_a_long_one_the_latest_stay_and_the_best_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpe, "LATEST", 10)
    monkeypatch.setattr(tpe, "BEST", 4)
    # 3 and 17 are on the front of all, 20 and 21 are next to it, 5 has not ended.
    values = [(50.0, 100.0 + number) for number in range(40)]
    values[3], values[17], values[20], values[21] = (90.0, 50.0), (80.0, 10.0), (89.0, 60.0), (79.0, 20.0)
    study = study_of(values, running=(5,))
    looked_at = [trial.number for trial in Memory().of(study)]
    assert looked_at == [3, 17, 20, 21, 5, *range(30, 40)]
    # The same whether asked at every suggestion or once at the end, as after a resume.
    memory = Memory()
    for length in range(1, 41):
        last = memory.of(study_of(values[:length], running=(5,)))
    assert [trial.number for trial in last] == looked_at


def test_a_suggestion_has_the_dimensions_of_its_block_alone(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "tpe", 24, f"{LORA}, {CRAFT}")
    run_all(propose(plan, tmp_path / "run"))
    told = 0
    for trial in stored(tmp_path / "run"):
        parts = [text for name, text in trial.system_attrs.items() if name.startswith("tpe:relative_params")]
        if parts:
            told += 1
            assert json.loads(parts[0]) == trial.params
    assert told > 5


def test_where_one_block_is_good_and_the_other_not_the_good_one_is_searched(tmp_path: Path) -> None:
    other = LORA.replace("method: lora,", "method: lora, weight_decay: {values: [0.0, 0.1]},")
    plan = plan_of(tmp_path, "tpe", 40, f"{other}, {LORA}")

    def answer(one: Configuration) -> dict[str, float]:
        return {"score": value(one)["score"] - (30 if one.path == ("space", 0) else 0), "trainable_parameters": 1.0}

    seen = run_all(propose(plan), answer)
    assert sum(one.path == ("space", 1) for one in seen[20:]) > 14


@pytest.mark.parametrize("cut", [25, 33])
def test_a_long_study_goes_on_after_a_resume_as_if_never_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(tpe, "LATEST", 12)
    monkeypatch.setattr(tpe, "BEST", 3)
    whole = [one.id for one in run_all(propose(plan_of(tmp_path, "tpe", 40), tmp_path / "whole"))]
    run_all(propose(plan_of(tmp_path, "tpe", 40), tmp_path / "cut"), at_most=cut)
    plan = plan_of(tmp_path, "tpe", 40)
    run_all(propose(plan, tmp_path / "cut"))
    assert [one.id for one in plan.configurations] == whole
    assert all(trial.state == TrialState.COMPLETE for trial in stored(tmp_path / "cut"))


def test_what_it_takes_of_optuna_is_still_there(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "tpe", 12)
    run_all(propose(plan, tmp_path / "run"))
    study = optuna.create_study(directions=["maximize", "minimize"])
    study.add_trials(stored(tmp_path / "run"))
    study.sampler = BlockTpe(Encoding(plan.sweep.blocks), Memory(), 0)
    trial = study.ask()
    Encoding(plan.sweep.blocks).suggest(trial)
    assert trial.relative_params == trial.params

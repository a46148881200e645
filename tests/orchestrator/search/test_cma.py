"""CMA-ES without pickles: it finds what there is to find, keeps to its space, and its whole state is the study's results."""

from __future__ import annotations

import math
from pathlib import Path

import optuna
import pytest
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from orchestrator.record.folder import SweepFolder
from orchestrator.search.cma import CmaSampler, from_unit, to_unit
from orchestrator.sweepfile.mistakes import SweepError
from tests.orchestrator.search.test_study import plan_of, propose, run_all

ONE = "objectives: {score: maximize}\n"
TWO = "objectives: {score: maximize, trainable_parameters: minimize}\n"
SPACE = "{method: lora, rank: {values: [1, 2, 4, 8, 16, 32]}, learning_rate: {min: 1e-5, max: 1e-1, distribution: log_uniform}}"


@pytest.mark.parametrize(
    "distribution",
    [
        FloatDistribution(-2.0, 6.0),
        FloatDistribution(1e-5, 1e-1, log=True),
        IntDistribution(0, 4),
        IntDistribution(1, 64, log=True),
    ],
)
def test_a_dimension_is_the_unit_interval(distribution: BaseDistribution) -> None:
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    for share in (0.0, 0.2, 0.5, 0.77, 1.0):
        value = from_unit(distribution, share)
        assert distribution.low <= value <= distribution.high
        assert from_unit(distribution, to_unit(distribution, value)) == pytest.approx(value)
    assert from_unit(distribution, 0.0) == pytest.approx(distribution.low)
    assert from_unit(distribution, 1.0) == pytest.approx(distribution.high)
    assert from_unit(distribution, 7.0) == distribution.high


def _minimize(sampler: str, seed: int) -> float:
    study = optuna.create_study()
    for number in range(120):
        one = 1000 * seed + number
        study.sampler = CmaSampler(one) if sampler == "cmaes" else optuna.samplers.RandomSampler(seed=one)
        trial = study.ask()
        values = [trial.suggest_float(name, -3.0, 3.0) for name in "abcd"]
        study.tell(trial, sum((value - 1.0) ** 2 for value in values))
    return study.best_value


def test_it_comes_nearer_than_chance() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for seed in range(3):
        assert _minimize("cmaes", seed) < 0.1 * _minimize("random", seed)


def test_its_file_holds_no_pickles_and_a_resumed_study_goes_on_the_same(tmp_path: Path) -> None:
    def planned():
        return plan_of(tmp_path, "cmaes", 24, SPACE, ONE)

    whole = [one.id for one in run_all(propose(planned(), tmp_path / "whole"))]
    first = [one.id for one in run_all(propose(planned(), tmp_path / "cut"), at_most=13)]
    rest = [one.id for one in run_all(propose(planned(), tmp_path / "cut"))]
    assert [*first, *rest] == whole
    assert "cma:" not in SweepFolder(tmp_path / "whole").study.read_text()


def test_it_learns_what_breaks_a_constraint(tmp_path: Path) -> None:
    more = ONE + "constraints: {trainable_parameters: {max: 800}}\n"
    proposer = propose(plan_of(tmp_path, "cmaes", 30, SPACE, more))
    seen = run_all(proposer, lambda one: {"score": 80 - 10 * abs(math.log10(one.training["learning_rate"]) + 3)})
    assert all(one.counts.trainable_parameters <= 800 for one in seen)
    near = [abs(math.log10(one.training["learning_rate"]) + 3) for one in seen]
    assert sum(near[-10:]) < sum(near[:10])


@pytest.mark.parametrize(
    ("space", "more", "message"),
    [
        (SPACE, TWO, "cmaes aims at one objective and there are: score, trainable_parameters"),
        ("{method: lora, rank: {min: 1, max: 8}, projections: {values: [[q, v], [k, o]]}}", ONE, "projections.*have no order"),
        ("{method: lora, rank: 4}", ONE, "nothing to search"),
        (f"{SPACE}, {SPACE}", ONE, "one method block and the space has 2"),
    ],
)
def test_what_it_cannot_search_is_refused(tmp_path: Path, space: str, more: str, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        plan_of(tmp_path, "cmaes", 10, space, more)

"""The Gaussian processes' searcher: its gains against the hypervolume itself, what it sees of a space, what it asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from orchestrator.plan.configuration import Configuration
from orchestrator.results import pareto
from orchestrator.search.gp import FIRST, BlockGp, _Features, _gained, _Process
from orchestrator.search.tpe import Memory
from orchestrator.sweepfile.space.dimensions import Block, Choice, Point, Range, neighbours, point
from tests.orchestrator.search.test_study import CRAFT, LORA, plan_of, propose, run_all, stored


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_a_gain_is_what_the_hypervolume_grows_by(objectives: int) -> None:
    draw = np.random.default_rng(objectives)
    for _ in range(20):
        reached = draw.random((draw.integers(1, 9), objectives))
        reached[-1] = reached[0]  # one twice
        corner = np.full(objectives, 0.9)  # some points lie beyond it
        outcomes = draw.random((7, objectives)) * 1.1 - 0.05
        directions: list[pareto.Direction] = ["minimize"] * objectives
        before = pareto.hypervolume(reached, directions, corner)
        expected = [pareto.hypervolume(np.vstack([reached, one]), directions, corner) - before for one in outcomes]
        np.testing.assert_allclose(_gained(reached, corner, outcomes), expected, atol=1e-12)


def test_a_process_knows_what_it_was_told_and_doubts_what_lies_far_off() -> None:
    at = np.linspace(0, 0.5, 12)[:, None]
    process = _Process(at, np.sin(6 * at[:, 0]))
    mean, deviation = process(np.array([[0.25], [1.0]]))
    assert mean[0] == pytest.approx(np.sin(1.5), abs=0.05)
    assert deviation[0] < 0.1 * deviation[1]
    believing = process.believing(np.array([[1.0]]), np.array([0.7]))
    assert believing(np.array([[1.0]]))[0][0] == pytest.approx(0.7, abs=0.1)


def test_blocks_share_what_has_the_same_name() -> None:
    craft = Block(0, "craft", {"ranks": Choice((["all", 8, 8], ["all", 32, 32])), "learning_rate": Choice((1e-3, 1e-1))})
    lora = Block(1, "lora", {"rank": Choice((1, 4, 16)), "learning_rate": Range(1e-4, 1e-2, "log_uniform")})
    rows = _Features((craft, lora))(
        [
            point(craft, {"ranks": ["all", 8, 8], "learning_rate": 1e-3}),
            point(craft, {"ranks": ["all", 32, 32], "learning_rate": 1e-1}),
            point(lora, {"rank": 4, "learning_rate": 1e-3}),
        ]
    )
    # Which block, ranks on a linear axis (8 to 32), the learning rate and the rank on a log one; 0.5 where there is none.
    np.testing.assert_allclose(rows, [[1, 0, 0, 1 / 3, 0.5], [1, 0, 1, 1, 0.5], [0, 1, 0.5, 1 / 3, 0.5]], atol=1e-12)


def test_neighbours_differ_in_one_dimension() -> None:
    block = Block(0, "lora", {"rank": Choice((1, 4, 16)), "learning_rate": Range(1e-4, 1e-2, "log_uniform")})
    near = point(block, {"rank": 4, "learning_rate": 1e-3})
    found = list(neighbours((block,), near, seed=0))
    assert [one.parameters["rank"] for one in found if one.training == near.training] == [1, 16]
    assert all(one.parameters == near.parameters or one.training == near.training for one in found)
    assert len(found) == 5


def score(one: Configuration) -> dict[str, float]:
    """Better for large adapters, best at a learning rate of 1e-3; CRAFT below LoRA."""
    rate = float(one.training.get("learning_rate", 1e-3)) if one.method == "lora" else 1e-3
    parameters = float(one.known["trainable_parameters"])
    return {
        "trainable_parameters": parameters,
        "score": 10 * np.log10(parameters) - 20 * abs(np.log10(rate) + 3) - 10 * (one.method == "craft"),
    }


def test_over_several_blocks_it_asks_for_nothing_twice_and_finds_the_front_before_the_end(tmp_path: Path) -> None:
    lora = LORA.replace("{min: 1e-5, max: 1e-1, distribution: log_uniform}", "{values: [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]}")
    plan = plan_of(tmp_path, "gp", 36, f"{lora}, {CRAFT}")
    order = run_all(propose(plan, tmp_path / "run"), score)
    trials = stored(tmp_path / "run")
    assert all(trial.state == TrialState.COMPLETE for trial in trials)
    assert len(order) == 36
    # An even point may be one that was asked for, which is answered from the results; a computed one never is.
    assert len({repr(trial.params) for trial in trials[FIRST:]}) == len(trials) - FIRST
    values = [[score(one)[name] for name in ("score", "trainable_parameters")] for one in order]
    last = int(np.flatnonzero(pareto.front(values, ["maximize", "minimize"])).max())
    assert last < len(order) // 2 + FIRST // 2, "the front was found no sooner than by going through all of them"


@pytest.mark.parametrize("few", [True, False])
def test_what_is_known_before_training_is_counted_where_points_are_few(few: bool) -> None:
    rates = Choice((1e-4, 1e-3)) if few else Range(1e-4, 1e-3, "log_uniform")
    block = Block(0, "lora", {"rank": Choice((1, 4, 16)), "learning_rate": rates})

    def known(one: Point) -> dict[str, float] | None:
        rank = one.parameters["rank"]
        return None if rank == 4 else {"trainable_parameters": 1000.0 - rank}

    sampler = BlockGp((block,), Memory(), 0, 0, known)
    points = [point(block, {"rank": rank, "learning_rate": 1e-3}) for rank in (16, 1)]
    counted = sampler._counted(points, "trainable_parameters")
    assert (counted is None) is not few
    if counted is not None:
        np.testing.assert_array_equal(counted, [984, 999])
    assert sampler._counted(points, "score") is None
    candidates = sampler._candidates(optuna.create_study(), [])
    assert (4 in {one.parameters["rank"] for one in candidates}) is not few, "what cannot be built is a candidate"

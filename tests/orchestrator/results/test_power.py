"""Before a sweep runs it is said in how many of ten such sweeps there will be an answer (more in tests/benchmarks/power.py)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from craft.results import Counts
from orchestrator.plan.configuration import Configuration
from orchestrator.results.front import enough_of
from orchestrator.results.power import Members, assume, foresee, members_of, power_lines
from orchestrator.review.prospect import past_states
from orchestrator.sweepfile.settings import Enough
from tests.benchmarks import power as benchmark
from tests.benchmarks.answer import Simulation
from tests.benchmarks.plateaus import Plateaus
from tests.orchestrator.plans import count, rank, toy_sweep
from tests.orchestrator.recorded import over_seeds, record

RULE = Enough()


def members(*sizes: int) -> Members:
    return [(str(size), Configuration(str(size), "", "lora", {}, {}, Counts(size, 2, 10_000, 4))) for size in sizes]


@pytest.mark.slow
def test_more_seeds_and_rows_and_a_wider_margin_answer_more() -> None:
    some = members(*(100 * 2**place for place in range(8)))
    outlook = assume(some)
    three, five = outlook.answered(3, 872, RULE), outlook.answered(5, 872, RULE)
    assert three < five < outlook.answered(50, 10**6, RULE)
    assert three < outlook.answered(3, 4000, RULE)
    assert three < outlook.answered(3, 872, Enough(within=2)) < outlook.answered(3, 872, Enough(within=50)) == 1.0
    assert outlook.answered(3, 872, Enough(sure=0.99)) < three
    assert outlook.answered(5, 100, RULE) < 0.1, "few rows"
    assert assume(some, tuned=True).answered(3, 2000, RULE) < outlook.answered(3, 2000, RULE) - 0.1, "the luck of a choice"


@pytest.mark.slow
@pytest.mark.parametrize(("generator", "world"), [(Simulation, "three tasks"), (Plateaus, "few rows"), (Plateaus, "peak")])
def test_a_pilot_says_how_many_sweeps_have_an_answer(generator: type[Simulation], world: str) -> None:
    """The worlds differ: nearly none of `few rows` have an answer, and more than half of `three tasks`."""
    said, answers = list[float](), list[bool]()
    for seed in range(24):
        sweep = generator(world, np.random.default_rng(seed))
        rows = float(sweep.rows * sweep.tasks)
        outlook = foresee(benchmark.members_of(sweep), sweep.mark([*sweep.truths], 3), rows, "")
        said.append(outlook.answered(3, rows, RULE))
        answers.append(enough_of(sweep.mark([*sweep.truths], 3, 3)) is not None)
    assert abs(np.mean(said) - np.mean(answers)) < 0.25  # three standard errors of 24 sweeps
    if 0.2 < np.mean(answers) < 0.8:
        assert np.mean(said, where=answers) > np.mean(said, where=np.logical_not(answers))


def test_sizes_that_no_sweep_has_take_the_nearest_of_their_method() -> None:
    """The pilot's small LoRAs are 20 points behind its large ones: a plan of large ones alone is open, one with both is not."""
    sweep = Simulation("flat", np.random.default_rng(0))
    pilot = sweep.mark([*sweep.truths], 3)
    own = foresee(benchmark.members_of(sweep), pilot, float(sweep.rows), "")
    again = foresee(list(reversed(benchmark.members_of(sweep))), pilot, float(sweep.rows), "")
    assert own.truths.mean(axis=0) == pytest.approx(again.truths.mean(axis=0)[::-1])
    sizes = [int(row.counts["trainable_parameters"]) for row in pilot if row.method == "lora"]
    near = foresee(members(*(size + 1 for size in sizes)), pilot, float(sweep.rows), "")
    levels = {row.configuration: row.counts["expected"] for row in pilot}
    nearest = [levels[row.configuration] for row in pilot if row.method == "lora"]
    assert near.truths.mean(axis=0) == pytest.approx(nearest, abs=0.5)


SPACE = "space: [{method: lora, rank: {values: [1, 2, 4, 8]}}]\n"
EXAMPLES = {"toy/paraphrase": (100, 400)}


def lines(folder: Path, text: str, *overrides: str, space: str = SPACE, examples: Any = EXAMPLES) -> list[str]:
    plan = count(toy_sweep(folder, text + space, f"storage={folder / 'runs'}", *overrides), rank)
    return [*power_lines(plan, examples, past_states(plan.sweep))]


def test_a_plan_says_how_many_of_ten_have_an_answer(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, "seeds: [0, 1, 2]\n", "training.eval_examples=400")
    said = re.fullmatch(
        r"3 seeds and 400 scored rows: an answer in about (\d) of 10 such sweeps; 5 seeds (\d); twice the rows (\d) "
        r"\(a larger eval_examples\); assumed: seeds, rows and sizes as on GLUE at scores near 75",
        line,
    )
    assert 1 <= int(said[1]) <= int(said[2]) <= 9
    assert int(said[1]) <= int(said[3]) <= 9
    (three,) = lines(tmp_path, "seeds: [0, 1, 2]\n")
    assert "twice the rows" not in three
    assert lines(tmp_path, "seeds: [0]\n") == [f"fewer than 3 seeds give no answer; {three}"]
    (until,) = lines(tmp_path, "search: {until: answered}\nseeds: [0]\n")
    assert until.startswith("up to 5 seeds where they decide and 400 scored rows: an answer in about ")
    at = [int(re.findall(r"about (\d) of 10", said)[0]) for said in (three, until)]
    assert at[0] <= at[1]


@pytest.mark.parametrize(("spread", "low", "high"), [(0.1, 9, 10), (8.0, 0, 1), (0.0, 11, 11)])
def test_a_recorded_sweep_of_the_task_says_how_seeds_spread(spread: float, low: int, high: int, tmp_path: Path) -> None:
    """Four sizes that are 4 points better with each step: seeds that hardly differ decide it, seeds that differ by 8 do not,
    and equal ones say nothing of others."""
    noise = np.random.default_rng(0).normal(0, spread, (4, 3))
    tried = {
        f"LoRA {place}": (100 * 2**place, over_seeds(*(60 + 4 * place + noise[place]), task="toy/paraphrase"))
        for place in range(4)
    }
    record(tmp_path / "runs" / "before", tried, tasks=("toy/paraphrase",), seeds=(0, 1, 2), model="m",
           facts={"reported_examples": 40_000})  # fmt: skip
    (line,) = lines(tmp_path, "seeds: [0, 1, 2]\n", examples={"toy/paraphrase": (100, 40_000)})
    assert ("assumed" in line) == (not spread)
    if spread:
        assert line.endswith("; by 4 configurations of before")
        said = re.search(r"(fewer than 1|more than 9|\d) of 10", line)
        ends = {"fewer than 1": 0, "more than 9": 10}
        assert low <= int(ends.get(said[1], said[1])) <= high
        (other,) = lines(tmp_path, "seeds: [0, 1, 2]\ntasks: [toy/sentiment]\n")
        assert "assumed" in other


def test_candidates_among_which_a_rate_is_chosen_are_one(tmp_path: Path) -> None:
    text = "seeds: [9]\nreplication: {seeds: [0, 1, 2], tuned: [learning_rate]}\n"
    text += "space: [{method: lora, rank: {values: [1, 2]}, learning_rate: {values: [1e-4, 1e-3, 1e-2]}, sizes: [100]}]\n"
    plan = count(toy_sweep(tmp_path, text), rank)
    rows = [(name, row.counts.trainable_parameters, row.cut_to is None) for name, row in members_of(plan)]
    assert [row[1:] for row in rows] == [(100, True), (100, False), (200, True)]
    assert rows[1][0] == rows[2][0] != rows[0][0]


def test_nothing_is_said_of_one_configuration_or_without_the_data(tmp_path: Path) -> None:
    assert lines(tmp_path, "", space=SPACE.replace("[1, 2, 4, 8]", "[1]")) == []
    assert lines(tmp_path, "", examples={}) == []
    more = "objectives: {score: maximize, trainable_parameters: minimize, forgetting: minimize}\nmeasure: {forgetting: true}\n"
    assert lines(tmp_path, more) == [], "with an objective that is not exact there are no probabilities"

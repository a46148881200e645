"""Before a sweep runs it is said how likely it settles a difference: as often as simulated and recorded sweeps do."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import multivariate_normal, nct, t

from orchestrator.judging.power import Size, Spread, assume_spread, effective_rows, measure_spread, power_lines, settles
from orchestrator.plan.plan import MOST_SEEDS
from orchestrator.review.prospect import past_states
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES
from tests.benchmarks.answer import Simulation
from tests.orchestrator.plans import count, rank, toy_sweep
from tests.orchestrator.recorded import over_seeds, record

SPREAD = Spread(residual=0.5, drawn=400, shared=300, source="")


def test_more_seeds_more_rows_and_larger_differences_settle_more() -> None:
    def said(difference: float = 1.0, seeds: int = 3, rows: float = 872) -> float:
        return settles(difference, assume_spread(), Size(seeds, rows, 6), 0.9)

    assert said() < said(seeds=5) < said(seeds=10)
    assert said() < said(rows=2000) < said(rows=math.inf)
    assert said(difference=0) == pytest.approx(0.1, abs=0.001)
    assert said() < said(difference=2) < said(difference=100) == 1.0


def test_a_mean_over_tasks_is_scored_on_the_rows_of_all_where_they_are_equal() -> None:
    assert effective_rows([500, 500, 500]) == pytest.approx(1500)
    assert effective_rows([1000, 250]) == pytest.approx(1 / np.mean([1 / 1000, 1 / 250]) * 2)
    assert effective_rows([math.inf]) == math.inf


def test_the_spread_of_a_sweep_is_that_of_its_rows() -> None:
    """A row is right where a normal variable is below a bound. Two seeds share 0.79 of its variance, all trials 0.62."""
    parts, expected = [], []
    for seed in range(3):
        sweep = Simulation("equal", np.random.default_rng(seed))
        complete, _ = sweep.judge([*sweep.truths], 5)
        measured = measure_spread(complete, DEFAULT_OBJECTIVES, sweep.rows, "")
        assert measured is not None
        parts.append((measured.drawn, measured.shared))
        right = np.mean([*sweep.truths.values()]) / 100
        both = [multivariate_normal.cdf([ndtri(right)] * 2, cov=[[1, share], [share, 1]]) for share in (0.62, 0.79, 1 - 1e-9)]
        expected.append(100**2 * np.diff(both)[::-1])
    assert np.mean(parts, axis=0) == pytest.approx(np.mean(expected, axis=0), rel=0.1)


SPACE = "space: [{method: lora, rank: {values: [1, 2, 4, 8]}}]\n"
EXAMPLES = {"toy/paraphrase": (100, 400)}


def lines(folder: Path, text: str, *overrides: str) -> list[str]:
    plan = count(toy_sweep(folder, text + SPACE, f"storage={folder / 'runs'}", *overrides), rank)
    return [*power_lines(plan, EXAMPLES, past_states(plan.sweep))]


def chances(line: str) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+) %", line)]


def noncentral(variance: float, freedom: float, within: float = 1.0) -> float:
    """The power of the one-sided t test at level 0.1, in percent."""
    return 100 * float(nct.sf(t.ppf(0.9, freedom), freedom, within / np.sqrt(2 * variance)))


def test_seeds_and_rows_of_a_plan_settle_what_is_assumed(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, "seeds: [0, 1, 2]\n", "training.eval_examples=400")
    assert line.startswith(
        "3 seeds and 400 scored rows settle a difference of 1 point between two sizes with a probability of "
    )
    assert line.endswith("(a larger eval_examples); assumed: seeds and rows spread as on GLUE at scores near 75")
    said, five, rows = chances(line)
    assert said < five < rows


def test_fewer_seeds_than_the_answer_asks_for_settle_nothing(tmp_path: Path) -> None:
    (line,) = lines(tmp_path, "seeds: [0]\n")
    assert line.startswith("fewer than 3 seeds settle nothing; 3 seeds and 400 scored rows settle")
    (three,) = lines(tmp_path, "seeds: [0, 1, 2]\n")
    assert chances(line) == chances(three)


def test_a_recorded_sweep_of_the_task_says_how_seeds_spread(tmp_path: Path) -> None:
    seeds = np.random.default_rng(0).normal(0, 0.8, (6, 3))
    scores = [over_seeds(*(80 + row), task="toy/paraphrase") for row in seeds]
    tried = {f"LoRA {place}": (100 * 2**place, row) for place, row in enumerate(scores)}
    file = {"tasks": ["toy/paraphrase"], "seeds": [0, 1, 2]}
    record(tmp_path / "runs" / "before", tried, tasks=("toy/paraphrase",), seeds=(0, 1, 2), model="m", file=file,
           facts={"reported_examples": 400})  # fmt: skip
    (line,) = lines(tmp_path, "seeds: [0, 1, 2]\n")
    assert line.endswith("; by the seeds of 6 configurations of before")
    without_seeds = seeds - seeds.mean(axis=0) - seeds.mean(axis=1, keepdims=True) + seeds.mean()
    variance = (without_seeds**2).sum() / 10
    # The variances are moderated, so their mean is not quite that of all seeds together.
    assert chances(line) == pytest.approx([noncentral(variance / 3, 6), noncentral(variance / 5, 12)], abs=4)
    (other,) = lines(tmp_path, "seeds: [0, 1, 2]\ntasks: [toy/sentiment]\n")
    assert "assumed" in other


def test_a_sweep_whose_seeds_are_equal_says_nothing_of_others(tmp_path: Path) -> None:
    tried = {f"LoRA {place}": (100 * place, over_seeds(80.0, 80.0, 80.0, task="toy/paraphrase")) for place in range(1, 7)}
    record(tmp_path / "runs" / "before", tried, tasks=("toy/paraphrase",), seeds=(0, 1, 2), model="m",
           facts={"reported_examples": 400})  # fmt: skip
    (line,) = lines(tmp_path, "seeds: [0, 1, 2]\n")
    assert "assumed" in line


def test_a_sweep_until_it_is_answered_says_what_its_seeds_can_settle(tmp_path: Path) -> None:
    def said(points: float) -> str:
        return lines(tmp_path, "search: {until: answered}\nseeds: [0, 1]\n", f"enough.within={points}")[1]

    spread = assume_spread()
    hard, easy = (settles(points, spread, Size(MOST_SEEDS, 400, 4), 0.9) for points in (0.5, 2.5))
    assert f"{MOST_SEEDS} seeds, the most, with a probability of {100 * hard:.0f} %" in said(0.5)
    assert "as likely as not" not in said(0.5)
    seeds = int(re.findall(r"(\d+) seeds settle such a difference as likely as not", said(2.5))[0])
    assert settles(2.5, spread, Size(seeds, 400, 4), 0.9) >= 0.5
    assert f"with a probability of {100 * easy:.0f} %" in said(2.5)


def test_nothing_is_said_of_one_configuration_or_without_the_data(tmp_path: Path) -> None:
    plan = count(toy_sweep(tmp_path, SPACE.replace("[1, 2, 4, 8]", "[1]")), rank)
    assert [*power_lines(plan, EXAMPLES, [])] == []
    plan = count(toy_sweep(tmp_path, SPACE), rank)
    assert [*power_lines(plan, {}, [])] == []

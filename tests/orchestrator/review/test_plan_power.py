"""The plan says how likely it settles a difference: by a recorded sweep of its tasks, else by what is assumed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import nct, t

from orchestrator.judging.power import Size, assume_spread, settles
from orchestrator.plan.plan import MOST_SEEDS
from orchestrator.review.forecast import past_states
from orchestrator.review.plan_power import power_lines
from tests.orchestrator.plans import count, rank, toy_sweep
from tests.orchestrator.recorded import over_seeds, record

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

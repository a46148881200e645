"""P(front) and `expected` against honestboard's confidence set and corrected winners, on the stored answers of real sweeps.

honestboard knows the luck of the examples alone, so the seeds' answers to an example are averaged for it.
"""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.results.chances import EXPECTED, P_FRONT, with_chances
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES
from tests.benchmarks.luck import RECORD, Answers, sweep

honestboard = pytest.importorskip("honestboard", reason="pip install -e '.[honestboard]'")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sst2", "qqp", "tickets"])
def test_honestboard_keeps_what_has_a_chance_of_the_front(task: str) -> None:
    answers = Answers(np.load(RECORD), task)
    scores, credits = answers.parts(np.arange(answers.values.shape[2]))
    summaries = with_chances(sweep(scores, credits, answers.sizes, True), DEFAULT_OBJECTIVES)
    names = [one.configuration for one in summaries]
    board = honestboard.Board(names, answers.values.mean(axis=1) / 100)
    costs = dict(zip(names, map(float, answers.sizes), strict=True))
    judged = honestboard.pareto_frontier(board, costs, B=1000)
    frequency = {row["system"]: row["undominated_frequency"] for row in judged["table"]}
    chance = {one.configuration: one.counts[P_FRONT] for one in summaries}
    assert {name for name in names if chance[name] > 0.05} <= set(judged["frontier_set"])
    assert set(judged["observed_frontier"]) <= {name for name in names if chance[name] > 0.4}
    # 200 tickets tell little: a far, large configuration is drawn to the others by the trend, which honestboard has not.
    assert chance == pytest.approx(frequency, abs=0.3 if task == "tickets" else 0.15)
    expected = {one.configuration: one.counts[EXPECTED] for one in summaries}
    for member in honestboard.frontier_curse(board, costs, B=1000, iterate=False):
        corrected = 100 * member["bootstrap"]["estimate"]
        assert expected[member["system"]] == pytest.approx(corrected, abs=1.0), member["system"]

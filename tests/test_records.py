"""Tables of docs/measurements and of the README that come from committed trials are what their commands make of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from orchestrator.review.front_tables import markdown
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES
from tests.benchmarks import energy_and_score, nested_ranks, rates_by_rank, recorded_front
from tests.benchmarks.recorded import finished_trials

ROOT = Path(__file__).parent.parent
MEASUREMENTS = ROOT / "docs/measurements"
RECORDS = MEASUREMENTS / "records"


@pytest.mark.parametrize("task", ["toy", "sst2", "stsb"])
def test_nested_ranks(task: str) -> None:
    (entries,) = finished_trials(sorted(RECORDS.glob(f"nested-{task}*.csv"))).values()
    assert nested_ranks.table(nested_ranks.fronts(entries)) in (MEASUREMENTS / "nested.md").read_text()


@pytest.mark.parametrize("scaling", rates_by_rank.SCALINGS)
def test_rates_by_rank(scaling: str) -> None:
    by_task = finished_trials([RECORDS / "rates.csv"])
    assert len(by_task) == 2
    for entries in by_task.values():
        assert rates_by_rank.table(rates_by_rank.scores_of(entries, scaling)) in (MEASUREMENTS / "nested.md").read_text()


def test_the_fair_comparison() -> None:
    summaries = recorded_front.summaries_of([RECORDS / "glue-fair.csv"])
    table, page = markdown(summaries, DEFAULT_OBJECTIVES), (MEASUREMENTS / "fair.md").read_text()
    assert table in page
    assert recorded_front.by_seed(summaries) in page
    rows = table.splitlines()
    assert "\n".join([*rows[:2], *(row for row in rows if row.startswith("| ● |"))]) in (ROOT / "README.md").read_text()


def test_a_decoder() -> None:
    page = (MEASUREMENTS / "smollm2.md").read_text()
    heads, questions = (recorded_front.summaries_of([RECORDS / f"smollm2-{name}.csv"]) for name in ("heads", "commonsense"))
    assert markdown(heads, DEFAULT_OBJECTIVES) in page
    assert markdown(questions, DEFAULT_OBJECTIVES) in page
    tests = [f"accuracy_{name}" for name in ("boolq", "piqa", "winogrande", "arc_easy", "openbookqa")]
    assert recorded_front.means(questions, tests) in page


def test_energy_and_score() -> None:
    records = [RECORDS / "energy.csv", RECORDS / "smollm2-energy.csv"]
    page = (MEASUREMENTS / "energy.md").read_text()
    groups = energy_and_score.groups_of(records)
    assert len(groups) == 3
    assert energy_and_score.table(groups) in page
    for record in records:
        assert energy_and_score.configurations(energy_and_score.groups_of([record])) in page


def test_rank_correlations() -> None:
    """Against scipy's, and the partial one against the correlation of what a least-squares line leaves of the ranks."""
    values = np.random.default_rng(0).normal(size=(2, 30, 3))
    values[..., 2] += values[..., 0] + values[..., 1]
    values[..., 1] = np.round(values[..., 1])  # ties
    for sample, found in zip(values, energy_and_score.correlations(values), strict=True):
        energy, size, score = (rankdata(column) for column in sample.T)
        expected = [spearmanr(energy, score).statistic, spearmanr(size, score).statistic]
        left = [column - np.polyval(np.polyfit(size, column, 1), size) for column in (energy, score)]
        assert found == pytest.approx([*expected, np.corrcoef(left)[0, 1]])


def test_pairs_of_equal_size() -> None:
    point = energy_and_score.Point
    found = [point(0.1, 8, 50), point(0.2, 8, 60), point(0.3, 8, 55), point(0.3, 8, 50), point(0.9, 16, 40), point(0.2, 16, 40)]
    # 0.1 and 0.2 agree, 0.1 and 0.3 (55) agree, 0.2 disagrees with both 0.3; equal scores and equal energies are left out.
    assert energy_and_score.pairs(found) == (2, 4)

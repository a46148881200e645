"""The tables of docs/measurements that come from committed trials are what their commands make of these."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import nested_ranks, rates_by_rank
from tests.benchmarks.recorded import finished_trials

MEASUREMENTS = Path(__file__).parent.parent / "docs/measurements"
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

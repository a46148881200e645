"""A searcher and a scheduler are one row each: with a row of their own, code that nothing else names runs as all the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.plan.plan import Plan
from orchestrator.search.judge import Decision
from orchestrator.search.proposers import Listed
from orchestrator.search.rivals import Entrant
from orchestrator.simulator.simulation import simulate
from orchestrator.sweepfile.algorithms import SCHEDULERS, SEARCHERS, SchedulerRow, SearcherRow
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.settings import SchedulerSettings
from tests.orchestrator.simulator.test_simulation import record_of, sweep_of, yardstick

HERE = "tests.orchestrator.simulator.test_new_rows"


def backwards(plan: Plan, folder: Path | None) -> Listed:
    """A searcher: the grid from its end."""
    return Listed(plan.configurations[::-1])


class Strict:
    """A scheduler's rule: stops what scores below `rivals`, the setting that it borrows."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.least = settings.rivals

    def report(self, entrant: Entrant, epoch: float, score: float, last: bool = False) -> Decision:
        return Decision.STOP if score < self.least else Decision.GO_ON


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SEARCHERS, "backwards", SearcherRow("the grid from its end", f"{HERE}:backwards", samples=False))
    monkeypatch.setitem(SCHEDULERS, "strict", SchedulerRow("stops what scores too little", f"{HERE}:Strict", ("rivals",)))


@pytest.mark.parametrize("scheduler", ["none", "asha", "median", "promotion", "strict"])
@pytest.mark.parametrize("algorithm", ["grid", "backwards"])
def test_every_searcher_runs_under_every_scheduler(tmp_path: Path, algorithm: str, scheduler: str) -> None:
    record = record_of(tmp_path)
    more = f"scheduler: {{name: {scheduler}}}\n"
    if (algorithm, scheduler) == ("backwards", "promotion"):
        with pytest.raises(SweepError, match=r"promotion .* cannot serve backwards"):
            sweep_of(tmp_path, f"{{algorithm: {algorithm}}}", more)
        return
    sweep = sweep_of(tmp_path, f"{{algorithm: {algorithm}}}", more)
    one, again = (simulate(sweep, record, 3, yardstick(sweep, record)) for _ in range(2))
    assert one.finished + one.stopped == 48
    assert (one.epochs, one.seconds, one.progress) == (again.epochs, again.seconds, again.progress)


def test_the_searcher_chooses_the_order_and_the_scheduler_what_ends(tmp_path: Path) -> None:
    record = record_of(tmp_path)
    measure = yardstick(sweep_of(tmp_path), record)
    forth, back = (simulate(sweep_of(tmp_path, f"{{algorithm: {name}}}"), record, 1, measure) for name in ("grid", "backwards"))
    assert [one.label for one in back.summaries] == [one.label for one in forth.summaries][::-1]
    with pytest.raises(SweepError, match="strict does not take factor; its settings: rivals"):
        sweep_of(tmp_path, more="scheduler: {name: strict, factor: 3}\n")
    strict = simulate(sweep_of(tmp_path, more="scheduler: {name: strict, rivals: 70}\n"), record, 1, measure)
    low = {curve.label for curve in record.curves if curve.evaluations[0][1] < 70}
    assert 0 < len(low) < 24
    assert {one.label for one in strict.summaries} == {curve.label for curve in record.curves} - low
    assert strict.stopped + strict.finished == 48

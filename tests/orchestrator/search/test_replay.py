"""Searchers and schedulers together, replayed on a small made-up record."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from orchestrator.plan.parameters import flat_parameters
from orchestrator.sweepfile.algorithms import SCHEDULERS, SEARCHERS
from orchestrator.sweepfile.sweep import Sweep
from tests.benchmarks.replay.curves import Curve, RecordedCurves, read_record, write_record
from tests.benchmarks.replay.simulation import simulate
from tests.benchmarks.replay.yardstick import Yardstick, whole_record
from tests.orchestrator.plans import count, rank, toy_sweep

RANKS, RATES = [1, 2, 4, 8, 16, 32], ["1e-5", "1e-4", "1e-3", "1e-2"]


def sweep_of(folder: Path, search: str = "{algorithm: grid}", more: str = "") -> Sweep:
    space = f"{{method: lora, rank: {{values: {RANKS}}}, learning_rate: {{values: [{', '.join(RATES)}]}}}}"
    return toy_sweep(folder, f"seeds: [0, 1]\ntraining: {{epochs: 3}}\nspace: [{space}]\nsearch: {search}\n{more}")


def record_of(folder: Path) -> RecordedCurves:
    """Best at 1e-3, better with rank; what is bad shows from the first epoch on. Every trial takes 30 seconds."""
    plan, curves = count(sweep_of(folder), rank), []
    for trial in plan.trials:
        run = trial.run
        decade = math.log10(run.training.learning_rate)
        final = 80 - 10 * abs(decade + 3) + decade / 10 + math.log2(run.parameters["rank"]) + run.seed
        flat = {
            name: value for name, value in flat_parameters(run).items() if name not in ("model", "task", "seed", "protocol")
        }
        points = [(epoch, final - 2 * (3 - epoch)) for epoch in (1.0, 2.0, 3.0)]
        curves.append(
            Curve(trial.label, flat, run.task, run.seed, points, final, final - 1, 30.0, plan.counts[trial.configuration])
        )
    return RecordedCurves(curves)


@pytest.fixture
def record(tmp_path: Path) -> RecordedCurves:
    return record_of(tmp_path)


def yardstick(sweep: Sweep, record: RecordedCurves) -> Yardstick:
    return Yardstick(whole_record(sweep, record)[0], sweep.objectives)


def test_a_record_is_the_same_after_writing_and_reading(tmp_path: Path, record: RecordedCurves) -> None:
    write_record(record.curves, tmp_path / "curves.csv.gz")
    assert read_record(tmp_path / "curves.csv.gz").curves == record.curves


@pytest.mark.parametrize(("workers", "seconds"), [(1, 48 * 30), (5, 10 * 30), (48, 30), (1000, 30)])
def test_time_is_that_of_so_many_workers(tmp_path: Path, record: RecordedCurves, workers: int, seconds: float) -> None:
    sweep = sweep_of(tmp_path)
    one = simulate(sweep, record, workers, yardstick(sweep, record))
    assert one.seconds == pytest.approx(seconds)
    assert (one.epochs, one.finished, one.stopped) == (144, 48, 0)
    assert one.progress[-1][2] == pytest.approx(yardstick(sweep, record).whole)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("algorithm", [name for name, row in SEARCHERS.items() if row.samples])
def test_every_searcher_runs_under_every_scheduler(
    tmp_path: Path, record: RecordedCurves, algorithm: str, scheduler: str
) -> None:
    sweep = sweep_of(tmp_path, f"{{algorithm: {algorithm}, configurations: 12}}", f"scheduler: {{name: {scheduler}}}\n")
    one, again = (simulate(sweep, record, 3, yardstick(sweep, record)) for _ in range(2))
    assert one.finished + one.stopped == 24
    assert (one.epochs, one.seconds, one.progress) == (again.epochs, again.seconds, again.progress)
    assert (one.stopped == 0) == (one.epochs == 72)
    assert (scheduler == "none") <= (one.stopped == 0)

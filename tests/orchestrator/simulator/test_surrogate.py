"""Curves made up from their nearest neighbours, on a grid of known scores: only where asked for, and only what may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator import simulate as command
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.simulator.curves import MissingCurve, RecordedCurves, write_record
from orchestrator.simulator.nearest import Nearest
from orchestrator.simulator.yardstick import everything, whole_record
from orchestrator.sweepfile.space.dimensions import Point
from tests.orchestrator.simulator.test_simulation import RANKS, RATES, counted, record_of, sweep_of

WIDE = "{min: 1e-5, max: 1e-2, distribution: log_uniform}"


def nearest_of(record: RecordedCurves) -> Nearest:
    return Nearest(record, ["rank", "learning_rate"], counted)


def run_of(folder: Path, rank: int, rate: float, more: str = "") -> RunSpec:
    sweep = sweep_of(folder, "{algorithm: tpe, trials: 5}", more, rates=WIDE)
    planner = Planner(sweep, counted)
    return planner.run_spec(
        planner.configuration(Point(0, "lora", {"rank": rank}, {"learning_rate": rate})), "toy/acceptability", 0
    )


def test_what_was_recorded_is_answered_by_the_record(tmp_path: Path) -> None:
    record = record_of(tmp_path)
    nearest = nearest_of(record)
    for trial in make_plan(sweep_of(tmp_path), Planner(sweep_of(tmp_path), counted)).trials:
        assert nearest.curve(trial.run) is record.curve(trial.run)
    assert not nearest.made_up


@pytest.mark.parametrize(
    ("rank", "rate", "like"),
    [(3, 1e-3, (4, 1e-3)), (16, 2e-3, (16, 1e-3)), (16, 5e-3, (16, 1e-2)), (64, 1e-5, (32, 1e-5)), (5, 4e-4, (4, 1e-3))],
)
def test_a_missing_curve_is_that_of_the_nearest_on_a_log_scale(
    tmp_path: Path, rank: int, rate: float, like: tuple[int, float]
) -> None:
    assert like[0] in RANKS
    assert like[1] in map(float, RATES)
    nearest = nearest_of(record_of(tmp_path))
    curve = nearest.curve(run_of(tmp_path, rank, rate))
    assert (curve.parameters["rank"], curve.parameters["learning_rate"], curve.seed) == (*like, 0)
    assert len(nearest.made_up) == 1


def test_costs_are_counted_and_other_settings_are_not_bridged(tmp_path: Path) -> None:
    nearest = nearest_of(record_of(tmp_path))
    assert nearest.counts(run_of(tmp_path, 3, 1e-3)) == Counts(300, 2, 10_000, 1200)
    longer = run_of(tmp_path, 3, 1e-3)
    longer = longer.model_copy(update={"training": longer.training.model_copy(update={"epochs": 9})})
    elsewhere = run_of(tmp_path, 3, 1e-3).model_copy(update={"task": "toy/sentiment"})
    for run in (longer, elsewhere, run_of(tmp_path, 3, 1e-3).model_copy(update={"seed": 7})):
        with pytest.raises(MissingCurve):
            nearest.curve(run)


def test_the_whole_of_a_record_is_that_of_its_grid(tmp_path: Path) -> None:
    record = record_of(tmp_path)
    of_space, epochs = whole_record(sweep_of(tmp_path), record)
    summaries, again = everything(record)
    assert again == epochs
    values = [
        sorted((one.score.mean, one.counts["trainable_parameters"], one.finished) for one in part)
        for part in (of_space, summaries)
    ]
    assert values[0] == values[1]


def test_a_range_is_replayed_by_name_only_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_record(record_of(tmp_path).curves, tmp_path / "curves.csv")
    sweep_of(tmp_path, "{algorithm: tpe, trials: 8}", rates=WIDE)
    given = [str(tmp_path / "sweep.yaml"), "--recorded", str(tmp_path / "curves.csv")]
    assert command.main(given) == 2
    assert "no record holds every value of a range" in capsys.readouterr().err
    monkeypatch.setattr("craft.trainer.counting.planned_counts", counted)
    assert command.main([*given, "--surrogate", "nearest"]) == 0
    out = capsys.readouterr().out
    assert "made up: the curves of 16 trials, from their nearest recorded ones" in out
    assert "16 trials replayed" in out

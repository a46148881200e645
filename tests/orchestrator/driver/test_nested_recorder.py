"""What Ray tells of a training of nested ranks is on record for each of its slices."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.driver.display import Display
from orchestrator.driver.outcome import outcome_of
from orchestrator.driver.recorder import Recorder
from orchestrator.driver.slices import EndedSlice
from orchestrator.plan.plan import Plan
from orchestrator.plan.trial import TrialResult
from orchestrator.record.ledger import Ledger
from orchestrator.results.summary import Summary
from tests.orchestrator.nested_sweep import nested_plan, size_of, training_of


class Heard:
    """A tracker that remembers what it was told."""

    open_configurations: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def hear(*arguments: Any) -> None:
            first, *rest = arguments
            self.events.append((name, getattr(first, "key", first), *rest))

        return hear

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events if event[0] == name]


@contextmanager
def recording(plan: Plan, folder: Path) -> Iterator[tuple[Recorder, Heard, Display]]:
    ledger, heard = Ledger(folder), Heard()
    with Display(plan.expected_trainings, io.StringIO(), "quiet") as display:
        yield Recorder(plan, ledger, display, heard), heard, display
    ledger.close()


def evaluation(plan: Plan, step: int = 1) -> dict[str, Any]:
    """An evaluation of the first training, in which each rank scores its size."""
    training, slices = training_of(plan)
    scores = {one.key: {"search_score": float(size_of(one.run))} for one in slices}
    own = {"search_score": float(size_of(training.run))}
    points = [{"step": step, "train_loss": 1.0}]
    return {"step": step, "total_steps": 6, "epoch": step / 2, "metrics": own, "points": points, "slices": scores}


def finished(plan: Plan) -> tuple[TrialResult, list[EndedSlice]]:
    training, slices = training_of(plan)
    results = {one.key: TrialResult(one.key, "finished", {"score": float(size_of(one.run))}, seconds=9.0) for one in slices}
    own = TrialResult(training.key, "finished", {"score": float(size_of(training.run))}, steps=6, seconds=9.0)
    return own, [EndedSlice(one, Path(key)) for key, one in results.items()]


def test_slices_start_progress_and_end_with_their_training_and_with_their_own_numbers(tmp_path: Path) -> None:
    plan = nested_plan(tmp_path)
    training, slices = training_of(plan)
    keys = [one.key for one in slices] + [training.key]
    ended: list[Summary] = []
    with recording(plan, tmp_path) as (recorder, heard, display):
        recorder.listeners.append(ended.append)
        assert recorder.standing.remaining == [training.key]
        recorder.started(training.key)
        recorder.progressed(training.key, evaluation(plan))
        assert recorder.underway.running == [training.key]
        assert list(display.tally.running) == [training.key]
        result, given = finished(plan)
        recorder.ended(result, Path("whole"), given)
        assert recorder.standing.remaining == []
        assert recorder.underway.seconds == {training.key: 9.0}
        assert (display.tally.done, display.tally.total) == (1, 1)
        outcome = outcome_of(recorder.standing, seconds=1.0)
    assert [key for (key,) in heard.of("trial_started")] == keys
    told = dict(heard.of("trial_progress"))
    assert {key: one["metrics"]["search_score"] for key, one in told.items()} == dict(zip(keys, (2, 4, 8), strict=True))
    assert "points" not in told[keys[0]]
    assert [(one, adapter) for one, adapter in heard.of("trial_ended")] == [
        *((key, Path(key)) for key in keys[:-1]),
        (training.key, Path("whole")),
    ]
    lines = [json.loads(line) for line in Ledger(tmp_path).path.read_text().splitlines()]
    assert [line["key"] for line in lines] == keys
    assert [summary.score.mean for summary in ended] == [2.0, 4.0, 8.0]
    assert [summary.nested_in for summary in ended] == [training.configuration, training.configuration, None]
    assert (outcome.finished, len(outcome.results)) == ([training.key], 3)


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_slices_without_their_trainings_line_are_trained_again_and_written_over(tmp_path: Path, whole: int) -> None:
    plan = nested_plan(tmp_path, seeds="[0, 1]")
    training, slices = training_of(plan)
    ledger = Ledger(tmp_path)
    for one in slices[:whole]:
        ledger.add(TrialResult(one.key, "finished", {"score": 99.0}))
    ledger.close()
    with recording(plan, tmp_path) as (recorder, _, _):
        assert recorder.standing.remaining == [one.key for one in plan.trainings]
        recorder.started(training.key)
        result, given = finished(plan)
        recorder.ended(result, None, given)
        assert recorder.standing.remaining == [plan.trainings[1].key]
    results = Ledger(tmp_path).results()
    assert {size_of(one.run): results[one.key].metrics["score"] for one in [*slices, training]} == {2: 2.0, 4: 4.0, 8: 8.0}
    with recording(plan, tmp_path) as (recorder, _, display):
        assert recorder.standing.remaining == [plan.trainings[1].key]
        assert (display.tally.done, recorder.underway.seconds) == (1, {training.key: 9.0})


def test_the_best_so_far_may_be_a_slice(tmp_path: Path) -> None:
    plan = nested_plan(tmp_path)
    result, given = finished(plan)
    with recording(plan, tmp_path) as (recorder, _, display):
        recorder.started(result.key)
        recorder.ended(result, None, [EndedSlice(replace(one.result, metrics={"score": 99.0})) for one in given])
        assert display.tally.best == (99.0, "CRAFT 2, q v, nested in 8 on toy/acceptability, seed 0")


def test_a_training_without_the_lines_of_its_slices_runs_again(tmp_path: Path) -> None:
    plan = nested_plan(tmp_path)
    ledger = Ledger(tmp_path)
    ledger.add(finished(plan)[0])
    ledger.close()
    with recording(plan, tmp_path) as (recorder, _, _):
        assert recorder.standing.remaining == [plan.trainings[0].key]


def test_a_failed_training_fails_its_slices_for_the_same_reason_and_they_are_retried_together(tmp_path: Path) -> None:
    plan = nested_plan(tmp_path)
    training, slices = training_of(plan)
    with recording(plan, tmp_path) as (recorder, _, display):
        recorder.started(training.key)
        recorder.progressed(training.key, evaluation(plan))
        recorder.ended(TrialResult(training.key, "failed", error="the loss is nan"))
        assert display.tally.failed == 1
    results = Ledger(tmp_path).results()
    assert {(one.status, one.error) for one in results.values()} == {("failed", "the loss is nan")}
    assert len(results) == 3
    ledger = Ledger(tmp_path)
    assert ledger.reopen_failed() == 3
    ledger.close()
    with recording(plan, tmp_path) as (recorder, _, _):
        assert recorder.standing.remaining == [training.key]
        recorder.started(training.key)
        result, given = finished(plan)
        recorder.ended(result, None, given[:1])
    results = Ledger(tmp_path).results()
    assert results[slices[0].key].status == results[training.key].status == "finished"
    assert results[slices[1].key].error == "its training finished and told nothing of these ranks"


def test_a_stopped_training_stops_its_slices_and_spares_its_other_seeds(tmp_path: Path) -> None:
    plan = nested_plan(tmp_path, seeds="[0, 1]", block="learning_rate: {values: [0.001, 0.01]}")
    training, slices = training_of(plan)
    with recording(plan, tmp_path) as (recorder, heard, _):
        recorder.started(training.key)
        recorder.progressed(training.key, evaluation(plan))
        recorder.stopped(training.key)
        others = [one.key for one in plan.trainings if one.configuration != training.configuration]
        assert recorder.standing.remaining == others
        assert len(heard.of("configuration_ended")) == 3
    results = Ledger(tmp_path).results()
    assert {size_of(one.run): results[one.key].metrics for one in [*slices, training]} == {
        rank: {"search_score": float(rank)} for rank in (2, 4, 8)
    }
    assert {one.status for one in results.values()} == {"stopped"}
    assert len(results) == 6
    with recording(plan, tmp_path) as (recorder, _, _):
        assert recorder.standing.remaining == others


def test_interrupted_and_paused_slices_keep_their_last_scores(tmp_path: Path) -> None:
    plan = nested_plan(tmp_path, seeds="[0, 1]")
    training, slices = training_of(plan)
    with recording(plan, tmp_path) as (recorder, heard, _):
        recorder.started(training.key)
        recorder.progressed(training.key, evaluation(plan))
        recorder.paused(training.key)
        assert [key for (key,) in heard.of("trial_paused")] == [*(one.key for one in slices), training.key]
        recorder.started(training.key)
        recorder.progressed(training.key, evaluation(plan, 2))
        recorder.interrupted()
    results = Ledger(tmp_path).results()
    assert [(results[one.key].status, results[one.key].metrics) for one in [*slices, training]] == [
        ("interrupted", {"search_score": float(rank)}) for rank in (2, 4, 8)
    ]
    with recording(plan, tmp_path) as (recorder, _, _):
        assert recorder.standing.remaining == [one.key for one in plan.trainings]
        recalled = {one.key: replace(results[one.key], status="stopped") for one in [*slices, training]}
        recorder.not_promoted(recalled)
        ended = recorder.standing.results
    assert {ended[one.key].status for one in plan.trials} == {"stopped"}
    assert [ended[one.key].metrics for one in [*slices, training]] == [{"search_score": float(rank)} for rank in (2, 4, 8)]
    assert all("never among the best" in ended[one.key].notes[0] for one in plan.trials)

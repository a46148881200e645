"""Replays of a small made-up record: what they cost, what they refuse, and that nothing is made up."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from craft.results import Counts
from craft.spec import RunSpec
from orchestrator import simulate as command
from orchestrator.plan.parameters import flat_parameters
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.plan.trial import TrialResult
from orchestrator.record.ledger import Ledger
from orchestrator.results.search_values import SearchValues
from orchestrator.results.summary import summarize
from orchestrator.simulator.curves import Curve, MissingCurve, RecordedCurves, read_record, record_sweep, write_record
from orchestrator.simulator.simulation import Faults, simulate
from orchestrator.simulator.yardstick import Yardstick, planner_of, whole_record
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.tools.journal import Journal

RANKS, RATES = [1, 2, 4, 8, 16, 32], ["1e-5", "1e-4", "1e-3", "1e-2"]


def sweep_of(folder: Path, search: str = "{algorithm: grid}", more: str = "", rates: str = "") -> Sweep:
    file = folder / "sweep.yaml"
    rates = rates or f"{{values: [{', '.join(RATES)}]}}"
    space = f"{{method: lora, rank: {{values: {RANKS}}}, learning_rate: {rates}}}"
    file.write_text(
        f"name: t\nmodel: m\ntasks: [toy/acceptability]\nseeds: [0, 1]\ntraining: {{epochs: 3}}\nspace: [{space}]\n"
        f"search: {search}\n{more}"
    )
    return load_sweep(file)


def counted(run: RunSpec) -> Counts:
    return Counts(100 * run.parameters["rank"], 2, 10_000, 400 * run.parameters["rank"])


def record_of(folder: Path) -> RecordedCurves:
    """Best at 1e-3, better with rank; what is bad shows from the first epoch on. Every trial takes 30 seconds."""
    sweep = sweep_of(folder)
    curves = []
    for trial in make_plan(sweep, Planner(sweep, counted)).trials:
        run = trial.run
        rate = math.log10(run.training.learning_rate)
        final = 80 - 10 * abs(rate + 3) + rate / 10 + math.log2(run.parameters["rank"]) + run.seed
        flat = {
            name: value for name, value in flat_parameters(run).items() if name not in ("model", "task", "seed", "protocol")
        }
        points = [(epoch, final - 2 * (3 - epoch)) for epoch in (1.0, 2.0, 3.0)]
        curves.append(Curve(trial.label, flat, run.task, run.seed, points, final, final - 1, 30.0, counted(run).known()))
    return RecordedCurves(curves)


@pytest.fixture
def record(tmp_path: Path) -> RecordedCurves:
    return record_of(tmp_path)


def yardstick(sweep: Sweep, record: RecordedCurves) -> Yardstick:
    return Yardstick(whole_record(sweep, record)[0], sweep.objectives)


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_record_is_the_same_after_writing_and_reading(tmp_path: Path, record: RecordedCurves, ending: str) -> None:
    file = tmp_path / f"curves.{ending}"
    write_record(record.curves, file)
    again = read_record(file)
    assert again.curves == record.curves
    sweep = sweep_of(tmp_path)
    assert whole_record(sweep, again)[1] == 6 * 4 * 2 * 3


@pytest.mark.parametrize(("workers", "seconds"), [(1, 48 * 30), (5, 10 * 30), (48, 30), (1000, 30)])
def test_time_is_that_of_so_many_workers(tmp_path: Path, record: RecordedCurves, workers: int, seconds: float) -> None:
    sweep = sweep_of(tmp_path)
    one = simulate(sweep, record, workers, yardstick(sweep, record))
    assert one.seconds == pytest.approx(seconds)
    assert (one.epochs, one.finished, one.stopped) == (144, 48, 0)
    assert one.progress[-1][2] == pytest.approx(yardstick(sweep, record).whole)


@pytest.mark.parametrize("scheduler", ["none", "asha", "hyperband", "median", "promotion"])
@pytest.mark.parametrize("algorithm", ["random", "sobol", "tpe", "gp"])
def test_every_searcher_runs_under_every_scheduler(
    tmp_path: Path, record: RecordedCurves, algorithm: str, scheduler: str
) -> None:
    sweep = sweep_of(tmp_path, f"{{algorithm: {algorithm}, trials: 12}}", f"scheduler: {{name: {scheduler}}}\n")
    one, again = (simulate(sweep, record, 3, yardstick(sweep, record)) for _ in range(2))
    assert one.finished + one.stopped == 24
    assert (one.epochs, one.seconds, one.progress) == (again.epochs, again.seconds, again.progress)
    assert (one.stopped == 0) == (one.epochs == 72)
    assert (scheduler == "none") <= (one.stopped == 0)


def test_halving_saves_epochs_and_finds_as_much(tmp_path: Path, record: RecordedCurves) -> None:
    plain = sweep_of(tmp_path)
    halved = sweep_of(tmp_path, more="scheduler: {name: asha, factor: 2}\n")
    measure = yardstick(plain, record)
    one, other = simulate(plain, record, 4, measure), simulate(halved, record, 4, measure)
    assert other.epochs < 0.9 * one.epochs
    assert other.progress[-1][2] == pytest.approx(measure.whole)


def test_failures_cost_epochs_and_preemptions_none(tmp_path: Path, record: RecordedCurves) -> None:
    sweep = sweep_of(tmp_path)
    measure = yardstick(sweep, record)
    preempted = simulate(sweep, record, 4, measure, Faults(preemptions=0.3))
    assert (preempted.epochs, preempted.finished) == (144, 48)
    failing = simulate(sweep, record, 4, measure, Faults(failures=0.2))
    assert failing.epochs > 144 if not failing.failed else failing.failed < 48
    assert failing.finished + failing.failed == 48


def test_what_was_not_recorded_is_refused(tmp_path: Path, record: RecordedCurves) -> None:
    part = RecordedCurves(curve for curve in record.curves if not (curve.parameters["rank"] == 8 and curve.seed == 1))
    with pytest.raises(MissingCurve, match=r"no curve of lora \(.*rank 8.*seed 1"):
        simulate(sweep_of(tmp_path), part, 2, yardstick(sweep_of(tmp_path), record))
    part = RecordedCurves(curve for curve in record.curves if curve.parameters["rank"] != 8)
    with pytest.raises(MissingCurve, match=r"no trial with method lora, .*rank 8"):
        whole_record(sweep_of(tmp_path), part)
    ranged = sweep_of(tmp_path, "{algorithm: tpe, trials: 5}", rates="{min: 1e-5, max: 1e-2}")
    with pytest.raises(SweepError, match="no record holds every value of a range"):
        whole_record(ranged, record)


def test_a_target_ends_a_replay(tmp_path: Path, record: RecordedCurves) -> None:
    sweep = sweep_of(tmp_path, more="budget: {target: {score: 80}}\n")
    one = simulate(sweep, record, 1, yardstick(sweep, record))
    assert "budget.target" in str(one.ended_by)
    assert one.epochs < 144


def test_the_front_of_a_replay_keeps_to_the_constraints(tmp_path: Path, record: RecordedCurves) -> None:
    sweep = sweep_of(tmp_path, "{algorithm: tpe, trials: 10}", "constraints: {trainable_parameters: {max: 900}}\n")
    one = simulate(sweep, record, 2, yardstick(sweep, record))
    assert max(summary.counts["trainable_parameters"] for summary in one.summaries) <= 900


def test_a_sweep_s_folder_becomes_a_record(tmp_path: Path, record: RecordedCurves) -> None:
    sweep = sweep_of(tmp_path)
    plan = make_plan(sweep, Planner(sweep, counted))
    folder = tmp_path / "run"
    folder.mkdir()
    first, stopped, *_ = plan.trials
    with Journal(folder / "journal.jsonl") as journal:
        ledger = Ledger(folder)
        for trial in (first, stopped):
            run = trial.run
            names = {"key": trial.key, "label": trial.label, "task": run.task, "seed": run.seed}
            journal.append({"kind": "trial_started", **names, "params": flat_parameters(run)})
            for epoch, score in record.curve(run).evaluations[: 3 if trial is first else 1]:
                rows = [{"step": 5 * epoch - 1, "train_loss": 1.0}, {"step": 5 * epoch, "epoch": epoch, "search_score": score}]
                journal.append({"kind": "trial_progress", "key": trial.key, "rows": rows})
        curve = record.curve(first.run)
        metrics = {"search_score": curve.search_score, "score": curve.score}
        ledger.add(TrialResult(first.key, "finished", metrics, curve.counts, seconds=curve.seconds))
        ledger.add(TrialResult(stopped.key, "stopped", {"search_score": 1.0}))
        ledger.close()
    assert record_sweep(folder) == ([curve], 1)
    assert command.main(["record", str(folder), "--to", str(tmp_path / "curves.jsonl")]) == 0
    assert json.loads((tmp_path / "curves.jsonl").read_text())["score"] == curve.score


def test_a_sweep_s_folder_is_replayed_as_its_file_is(
    tmp_path: Path, record: RecordedCurves, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    grid = sweep_of(tmp_path)
    with Journal(folder / "journal.jsonl") as journal:
        ledger = Ledger(folder)
        for trial in make_plan(grid, Planner(grid, counted)).trials:
            curve, names = record.curve(trial.run), {"key": trial.key, "label": trial.label}
            names |= {"task": trial.run.task, "seed": trial.run.seed}
            journal.append({"kind": "trial_started", **names, "params": flat_parameters(trial.run)})
            rows = [{"step": epoch, "epoch": epoch, "search_score": score} for epoch, score in curve.evaluations]
            journal.append({"kind": "trial_progress", "key": trial.key, "rows": rows})
            metrics = {"search_score": curve.search_score, "score": curve.score}
            ledger.add(TrialResult(trial.key, "finished", metrics, curve.counts, seconds=curve.seconds))
        ledger.close()
    write_record(record.curves, tmp_path / "curves.csv")
    sweep_of(tmp_path, "{algorithm: random, trials: 12}")
    said = []
    for recorded in (folder, tmp_path / "curves.csv"):
        assert command.main([str(tmp_path / "sweep.yaml"), "--recorded", str(recorded)]) == 0
        said.append(capsys.readouterr().out.splitlines()[:-1])  # the last line tells how long it took
    assert said[0] == said[1]
    assert command.main([str(tmp_path / "sweep.yaml"), "--recorded", str(tmp_path)]) == 2
    assert "holds no sweep's journal" in capsys.readouterr().err


def test_a_replay_knows_no_more_beforehand_than_a_sweep_does(tmp_path: Path, record: RecordedCurves) -> None:
    measured = [
        replace(curve, counts={**curve.counts, "step_seconds": 0.1, "peak_memory_bytes": 1e9}) for curve in record.curves
    ]
    sweep = sweep_of(tmp_path, more="objectives: {score: maximize, step_seconds: minimize, trainable_parameters: minimize}\n")
    plan = make_plan(sweep, planner_of(sweep, RecordedCurves(measured)))
    assert {name for one in plan.configurations for name in one.known} == {*counted(plan.trials[0].run).known()}
    bounded = sweep_of(tmp_path, more="constraints: {estimated_memory_bytes: {max: 1}}\n")
    with pytest.raises(SweepError, match=r"sweep.yaml:8: constraints.estimated_memory_bytes: a record holds no such count"):
        simulate(bounded, record, 1, yardstick(sweep_of(tmp_path), record))


def test_a_strategy_that_seldom_comes_so_far_is_not_judged_by_when_it_does(
    tmp_path: Path, record: RecordedCurves, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_of(tmp_path, "{algorithm: random, trials: 2}")
    write_record(record.curves, tmp_path / "curves.csv")
    given = [str(tmp_path / "sweep.yaml"), "--recorded", str(tmp_path / "curves.csv"), "--seeds", "9", "--reach", "0.6"]
    assert command.main(given) == 0
    out = capsys.readouterr().out
    (reached,) = re.findall(r"reached in (\d) of 9 replays", out)
    assert 0 < int(reached) < 5
    assert "median" not in out


def test_the_command_replays_and_refuses_in_a_sentence(
    tmp_path: Path, record: RecordedCurves, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_of(tmp_path, "{algorithm: random, trials: 12}")
    write_record(record.curves, tmp_path / "curves.csv")
    given = [str(tmp_path / "sweep.yaml"), "--recorded", str(tmp_path / "curves.csv"), "--workers", "4", "--seeds", "3"]
    assert command.main(given) == 0
    out = capsys.readouterr().out
    assert "random + none, 4 workers" in out
    assert "of 3 replays; the whole grid takes 144" in out
    assert command.main([*given, "--set", "space.0.rank=64"]) == 2
    assert "the record has no trial with method lora, projections q,v, rank 64" in capsys.readouterr().err
    assert command.main([*given[:2], str(tmp_path / "none.csv")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_stopped_trial_spares_the_others_of_its_configuration(tmp_path: Path, record: RecordedCurves) -> None:
    sweep = sweep_of(tmp_path, more="scheduler: {name: asha, factor: 2}\n")
    one = simulate(sweep, record, 1, yardstick(sweep, record))
    whole = {summary.configuration for summary in one.summaries}
    assert one.finished == 2 * len(whole)
    assert one.finished + one.stopped == 48
    # Both seeds behave alike, so with one worker the second one of a stopped configuration never begins.
    assert one.epochs == one.finished * 3 + one.stopped / 2


def test_what_was_spared_counts_as_the_average_on_its_task(tmp_path: Path, record: RecordedCurves) -> None:
    first, second, third = make_plan(sweep_of(tmp_path), Planner(sweep_of(tmp_path), counted)).configurations[:3]
    sweep = sweep_of(tmp_path)
    planner = Planner(sweep, counted)
    specs = {trial.key: trial for one in (first, second, third) for trial in planner.trials(one)}
    values = SearchValues(sweep.objectives)

    def told(configuration, *scores: float | None) -> dict[str, float]:
        trials = planner.trials(configuration)
        results = {
            trial.key: TrialResult(
                trial.key, "stopped" if None in scores else "finished", {} if score is None else {"search_score": score}
            )
            for trial, score in zip(trials, scores, strict=True)
        }
        (summary,) = summarize(trials, results, {configuration.id: configuration.known})
        return values.of(summary, results, specs.__getitem__)

    assert "score" not in told(first, 10.0, None)  # nobody has run with that seed yet
    assert told(second, 60.0, 80.0)["score"] == 70.0
    assert told(third, 50.0, None)["score"] == (50.0 + 80.0) / 2
    assert told(third, 50.0, None)["score"] == (50.0 + 80.0) / 2

"""Tables of trainings of anybody, MLflow's, Optuna's and our own export among them: judged as a sweep is, or refused with the
commands that make them ready."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import optuna
import pandas as pd
import pytest

from craft.scoring.predictions import credits_of
from craft.tasks.files import DataError
from orchestrator import judge
from orchestrator.commands.app import main
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import SessionEnded
from orchestrator.record.state import Entry
from orchestrator.results.metrics import flat_cells, sized
from orchestrator.review import run_table
from orchestrator.review.front_report import front_report
from orchestrator.review.past_sweep import PastSweep, read_folder
from orchestrator.review.run_columns import Call
from orchestrator.review.run_table import read_table
from orchestrator.review.trials_file import write_trials
from tests.orchestrator.conftest import Cli
from tests.orchestrator.recorded import over_seeds, record, write_log
from tests.orchestrator.review.test_changed_tables import (
    LEVELS,
    SEEDS,
    judged_like,
    labels,
    lines_of,
    numbers,
    plain_rows,
    read_lines,
    refusal,
    score_of,
    trainings,
    write,
)


@pytest.fixture
def sweep(tmp_path: Path) -> PastSweep:
    """The same trainings as a sweep that has run."""
    configurations = {f"LoRA r{rank}": (100 * rank, over_seeds(*(score_of(rank, seed) for seed in SEEDS))) for rank in LEVELS}
    folder = record(tmp_path / "runs" / "ranks", configurations, seeds=SEEDS)
    write_log(folder, SessionEnded(status="finished"))
    return read_folder(folder)


def with_facts(entry: Entry) -> Entry:
    """The trial with the facts that a real one has: its metric, chance, and credits of 400 rows."""
    right = np.random.default_rng([entry.trial.seed, len(entry.trial.label)]).random(400) < entry.result.metrics["score"] / 100
    credits = credits_of(lambda rows: 100 * float(right[rows].mean()), 400)
    facts = credits | {"metric": "accuracy", "random_guessing": 50.0, "reported_examples": 400}
    return replace(entry, result=entry.result.with_facts(**facts))


def exported(sweep: PastSweep, file: Path, **entries: Entry) -> PastSweep:
    """The sweep with other trials, which are in the file."""
    sweep = PastSweep(replace(sweep.state, entries=sweep.state.entries | entries), "", None, sweep.fetch)
    write_trials(sweep.state.requested, file)
    return sweep


def test_an_exported_sweep_has_the_same_answer(tmp_path: Path, sweep: PastSweep) -> None:
    entries = {key: with_facts(entry) for key, entry in sweep.state.entries.items()}
    sweep = exported(sweep, tmp_path / "trials.csv", **entries)
    table = read_table(tmp_path / "trials.csv")
    assert [flat_cells(row) for row in table.record.summaries] == [flat_cells(row) for row in sweep.summaries]
    assert all("example_luck" in row.counts for row in table.record.summaries)
    assert replace(table.record.answer, command="") == replace(sweep.answer, command="")
    assert judge(pd.read_csv(tmp_path / "trials.csv")).answer.text == table.record.answer.text


@pytest.mark.parametrize("wave", [1, 2])
def test_an_exported_sweep_has_its_failures(wave: int, tmp_path: Path, sweep: PastSweep) -> None:
    """A seed that was added later does not make its configuration incomplete."""
    lost = next(iter(sweep.state.entries.values()))
    failed = replace(lost, result=TrialResult(lost.key, "failed", error="the loss is not finite", steps=7), wave=wave)
    sweep = exported(sweep, tmp_path / "trials.csv", **{lost.key: failed})
    summaries = read_table(tmp_path / "trials.csv").record.summaries
    assert [flat_cells(row) for row in summaries] == [flat_cells(row) for row in sweep.summaries]
    assert all(row.complete for row in summaries) == (wave > 1)
    assert next(row for row in summaries if row.failed).reasons == ("the loss is not finite",)


def test_a_trial_that_is_there_twice_counts_once_or_is_refused(tmp_path: Path, sweep: PastSweep) -> None:
    write_trials(sweep.state.requested, file := tmp_path / "trials.csv")
    lines = file.read_text().splitlines()
    assert numbers(read_lines(tmp_path, "\n".join([*lines, *lines[1:]])).record.summaries) == numbers(sweep.summaries)
    other = lines[1].replace(lines[1].split(",")[-2], "17.5")
    assert re.search("line 14: the trial .* is there with another result", refusal(tmp_path, "\n".join([*lines, other])))


@pytest.mark.slow
def test_mlflows_table_of_runs(tmp_path: Path, sweep: PastSweep) -> None:
    """Runs within a run, as a search logs them; the run that holds them is no training."""
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_experiment("ranks")
    with mlflow.start_run(run_name="search"):
        mlflow.log_params({"rank": 99, "seed": 99})
        mlflow.log_metrics({"accuracy": 0.1})
        for rank, seed, value in trainings():
            with mlflow.start_run(nested=True):
                mlflow.log_params({"method": "lora", "rank": rank, "seed": seed, "epochs": 3})
                mlflow.log_metrics({"accuracy": value / 100, "train_loss": seed / 7 + rank, "trainable_params": 100 * rank})
    frame = mlflow.search_runs(experiment_names=["ranks"])
    frame.to_csv(tmp_path / "runs.csv", index=False)
    for table in (frame, tmp_path / "runs.csv"):
        judged_like(judge(table).record, sweep)


@pytest.mark.slow
def test_a_sweep_of_ours_exported_from_mlflow(tmp_path: Path, sweep: PastSweep) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert main(["replay", str(tmp_path / "runs" / "ranks"), "--tracking-uri", uri]) == 0
    mlflow.set_tracking_uri(uri)
    frame = mlflow.search_runs(search_all_experiments=True)
    assert len(frame) > len(LEVELS) * len(SEEDS), "the runs of the sweep and of its configurations are among them"
    table = judge(frame, score="metrics.score", minimize=False, by="tags.craft.label")
    judged_like(table.record, sweep)
    assert labels(table) == [row.label for row in sweep.summaries]


@pytest.mark.slow
def test_optunas_table_of_trials(tmp_path: Path, sweep: PastSweep) -> None:
    """A study over rank and seed; pruned and failed trials are counted as such."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: optuna.Trial) -> float:
        rank, seed = trial.suggest_categorical("rank", [*LEVELS, 16, 32]), trial.suggest_categorical("seed", SEEDS)
        trial.set_user_attr("trainable_parameters", 100 * rank)
        if rank == 16:
            raise optuna.TrialPruned
        if rank == 32:
            raise ZeroDivisionError
        return score_of(rank, seed)

    study = optuna.create_study(sampler=optuna.samplers.GridSampler({"rank": [*LEVELS, 16, 32], "seed": SEEDS}))
    study.optimize(objective, catch=ZeroDivisionError)
    study.trials_dataframe().to_csv(tmp_path / "optuna.csv")
    with pytest.raises(DataError, match="score value --minimize"):
        read_table(tmp_path / "optuna.csv")
    table = read_table(tmp_path / "optuna.csv", Call(score="value", minimize=False))
    by_label = {row.label: row for row in table.record.summaries}
    assert (by_label["rank 16"].stopped, by_label["rank 32"].failed) == (3, 3)
    complete = [row for row in table.record.summaries if row.complete]
    np.testing.assert_allclose(numbers(complete), numbers(sweep.summaries), rtol=1e-6)
    assert table.read[0] == "score: value, more is better"


def test_a_study_says_its_own_direction(tmp_path: Path) -> None:
    head, cells = "number,value,params_rank,params_seed,state,study_direction", "{0},{2},{0},{1},TrialState.COMPLETE,MINIMIZE"
    table = read_lines(tmp_path, lines_of(head, lambda *row: cells.format(*row)), Call(score="value"))
    assert table.read[0].startswith("score: value, less is better")


def test_the_table_of_mlflows_page_has_plain_names(tmp_path: Path, sweep: PastSweep) -> None:
    """Its settings and measurements have no prefix; a measurement differs in every row, a setting does not."""
    rows = [
        {"Start Time": f"2026-01-0{s + 1}", "Duration": "1.2min", "Run ID": f"{r}a{s}", "Name": f"sly-fox-{r}-{s}",
         "User": "me", "Status": "FINISHED", "learning_rate": 0.001, "rank": r, "seed": s, "accuracy": v,
         "curvature": 0.1 + r / 7 + s / 11, "seconds": "" if s == 1 else 60.0, "trainable_params": 100 * r}
        for r, s, v in trainings()
    ]  # fmt: skip
    with pytest.raises(DataError, match="curvature: settings, or measured"):
        read_table(write(tmp_path / "page.csv", rows))
    table = read_table(tmp_path / "page.csv", Call(ignore="curvature"))
    assert "settings: rank" in table.read
    assert [row.value("seconds") for row in table.record.summaries] == [60.0] * 4, "a training without a time has none"
    assert table.record.answer.p_better == sweep.answer.p_better


def test_answers_by_example_pair_configurations(tmp_path: Path) -> None:
    """Both err on the same examples but three: the same scores without answers say less."""
    luck, lines = np.random.default_rng(3).random(600) < 0.8, ["configuration,accuracy,params,seed,answers"]
    for name, size, more in (("a", 10, 0), ("b", 99, 3)):
        for seed in range(3):
            right = luck.copy()
            right[np.flatnonzero(~luck)[: more + seed]] = True
            (tmp_path / f"{name}{seed}.csv").write_text("correct\n" + "\n".join(map(str, right.astype(int))))
            lines.append(f"{name},{right.mean():.4f},{size},{seed},{name}{seed}.csv")
    table = read_lines(tmp_path, "\n".join(lines))
    assert {row.value("examples") for row in table.record.summaries} == {600.0}
    (a, b) = table.record.summaries
    correlation = np.corrcoef(a.credits["task", 0], b.credits["task", 0])[0, 1]
    assert correlation > 0.95, "the credits of the same examples"
    assert "answers: answers" in table.read
    (tmp_path / "a0.csv").write_text("correct\n" + "1\n" * 600)
    assert "is 100.00, its score" in refusal(tmp_path, "\n".join(lines))
    for name, count in (("a", 40), ("b", 30), ("c", 40)):
        (tmp_path / f"{name}.csv").write_text("correct\n" + "1\n" * count)
    said = refusal(tmp_path, "rank,seed,accuracy,answers\n1,0,1.0,a.csv\n1,1,1.0,b.csv\n2,0,1.0,c.csv\n")
    assert "a.csv has 40 answers, b.csv 30" in said, "they are of other examples"


def test_losses_by_example_have_the_error_of_their_mean(tmp_path: Path) -> None:
    """A loss is no share of right rows, and equal ones are of equal models."""
    losses = np.random.default_rng(5).exponential(0.4, 600)
    (tmp_path / "losses.csv").write_text("loss\n" + "\n".join(map(str, losses)))
    table = read_lines(tmp_path, f"rank,seed,eval_loss,answers\n1,0,{losses.mean():.6f},losses.csv\n")
    (summary,) = table.record.summaries
    assert summary.sampling == pytest.approx((1.96 * 100 * losses.std() / math.sqrt(600),) * 2)
    assert summary.graded == {"task": math.inf}


def test_attempts_repeated_rows_and_what_unfinished_rows_hold_break_nothing() -> None:
    rows = [row | {"task": "a", "status": "finished", "train_time": "0:12:30"} for row in plain_rows()]
    lost = [{"accuracy": math.inf, "params": "n/a"}, {"seed": "NA"}, {"task": ""}, {"seed": 0, "accuracy": 0.31}]
    table = judge([*rows, *rows[:2], *(rows[0] | {"seed": 7, "status": "failed"} | cells for cells in lost)])
    found = {row.label: (row.planned, row.finished) for row in table.record.summaries}
    assert found == {"rank 1": (4, 3), "rank 2": (3, 3), "rank 4": (3, 3), "rank 8": (3, 3)}
    assert all(math.isnan(row.value("seconds")) for row in table.record.summaries)
    assert table.lacks[:3] == [
        "Left out: 1 attempts of finished trainings",
        "Left out: 2 rows of a training that is there",
        "Left out: 2 failed rows without settings, seed or task",
    ]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (lambda r: {"adapter": "lora" if r > 1 else "none", "params": r}, ["none", "lora"]),
        (lambda r: {"betas": [0.9, 0.9 + r / 100]}, ["0.9,0.91", "0.9,0.92"]),
    ],
    ids=["without any setting", "lists"],
)
def test_a_configuration_is_called_by_its_settings(cells: Callable[[int], dict[str, Any]], expected: list[str]) -> None:
    assert labels(judge([cells(r) | {"seed": s, "accuracy": v / 100} for r, s, v in trainings() if r < 3])) == expected


def test_runs_that_only_a_name_distinguishes_are_judged_by_it(tmp_path: Path) -> None:
    """As in Hugging Face's comparison of methods: objects in objects, a name for each run, one seed."""
    run = '{{"run_info": {{"experiment_name": "lora/r{0}", "seed": 0}}, "test_accuracy": {1}, "forgetting": {2}}}\n'
    (tmp_path / "runs.jsonl").write_text("".join(run.format(rank, 0.5 + rank / 100, rank / 7) for rank in (8, 16)))
    with pytest.raises(DataError, match=r"--by run_info\.experiment_name"):
        read_table(tmp_path / "runs.jsonl")
    assert labels(read_table(tmp_path / "runs.jsonl", Call(by="run_info.experiment_name"))) == ["lora/r16", "lora/r8"]


def test_a_plain_file_is_judged_as_the_sweep_it_could_have_been(tmp_path: Path, sweep: PastSweep) -> None:
    table = read_table(write(tmp_path / "plain.csv", plain_rows()))
    judged_like(table.record, sweep)
    assert table.read == [
        "score: accuracy, more is better, shown times 100",
        "size: params",
        "seed: seed",
        "settings: rank",
        "left out: method (equal in all rows)",
    ]
    assert labels(table) == ["rank 1", "rank 2", "rank 4", "rank 8"]
    lines = [{"config": {"rank": r}, "seed": s, "accuracy": v, "params": 100 * r} for r, s, v in trainings()]
    (tmp_path / "plain.jsonl").write_text("\n".join(map(json.dumps, lines)))
    judged_like(read_table(tmp_path / "plain.jsonl").record, sweep)
    for given in (pd.DataFrame(plain_rows()), plain_rows(), tmp_path / "plain.csv"):
        judgement = judge(given)
        assert judgement.answer.text == table.record.answer.text
        assert sorted(judgement.front["score"]) == pytest.approx(sorted(row.score.mean for row in table.record.summaries))
    assert "rank 1" in judge(plain_rows(), within=7.0).answer.verdict


def test_a_loss_is_judged_by_its_lowest(tmp_path: Path, sweep: PastSweep) -> None:
    rows = [{"rank": r, "seed": s, "test_loss": (100 - v) / 50, "params": 100 * r} for r, s, v in trainings()]
    table = read_table(write(tmp_path / "loss.csv", rows), within=2.0)
    assert (table.record.answer.kind, "rank 4" in table.record.answer.verdict) == (sweep.answer.kind, True)
    mine, theirs = (record.summaries for record in (table.record, sweep))
    for loss, score in zip(mine, theirs, strict=True):
        assert loss.score.mean == pytest.approx(2 * (score.score.mean - 100))
        assert loss.score.half == pytest.approx(2 * score.score.half), "no end is cut at 0 or 100"
    assert read_table(tmp_path / "loss.csv", Call(minimize=False)).read[0].startswith("score: test_loss, more is better")


def test_what_a_file_lacks_is_named_with_what_it_would_add(tmp_path: Path) -> None:
    one = [row for row in plain_rows() if row["seed"] == 0]
    table = judge(one)
    assert (table.record.answer.kind, table.record.answer.p_better) == ("one seed", None)
    bare = [{"method": f"s{r}", "accuracy": v} for r, _, v in trainings()]
    with pytest.raises(DataError, match="line 3 and line 2 repeat a configuration without a seed"):
        read_table(write(tmp_path / "bare.csv", bare))
    table = judge(bare, independent=True)
    assert [line.partition(":")[0] for line in table.lacks] == ["No size", "No number of scored examples"]
    best = max(LEVELS, key=lambda rank: np.mean([score_of(rank, seed) for seed in SEEDS]))
    assert table.record.answer.verdict.startswith(f"Enough: s{best}: "), "without sizes the likeliest is taken"
    assert "parameters" not in table.record.answer.text
    assert {row["trainable_parameters"] for row in json.loads(front_report(table.record).to_json())["rows"]} == {None}
    counted = judge([row | {"eval_samples": 400} for row in one])
    assert all(row.score.low < row.score.mean < row.score.high for row in counted.record.summaries)
    assert counted.lacks == []
    reward = judge([{"rank": r, "seed": s, "reward": 2 * v, "eval_samples": 500} for r, s, v in trainings()])
    assert all(row.sampling == (0, 0) for row in reward.record.summaries), "it is no share of right rows"
    assert "The number of scored examples is not used" in " ".join(reward.lacks)


def test_a_configuration_that_lacks_a_task_is_not_ranked() -> None:
    rows = [row | {"task": task} for row in plain_rows() for task in ("a", "b")]
    rows = [row for row in rows if not (row["rank"] == 8 and row["task"] == "b" and row["seed"] == 1)]
    summaries = judge(rows).record.summaries
    assert [row.complete for row in summaries] == [True, True, True, False]
    assert summaries[-1].reasons == ("no row for b",)


def test_two_are_compared_with_an_interval_no_narrower_than_the_rounding(tmp_path: Path, cli: Cli) -> None:
    """Two differences of a point between scores of two digits are equal by chance."""
    (tmp_path / "table.csv").write_text("rank,seed,accuracy,params\n4,0,.8,4\n4,1,.82,4\n16,0,.81,16\n16,1,.83,16\n")
    report = cli("judge", str(tmp_path / "table.csv"), "--compare", "rank 16", "rank 4", "--json").report
    assert (report["report"], report["protocol"], len(report["rows"])) == ("front", "", 2)
    compared = report["comparison"]
    assert compared["difference"]["value"] == pytest.approx(1), "by seed, the first less the second"
    assert compared["difference"]["high"] - compared["difference"]["low"] > 2
    assert compared["p_value"] > 0.1
    same = cli("judge", str(tmp_path / "table.csv"), "--compare", "rank 4", "rank 4", status=2).err
    assert "name two by --compare" in same
    equal = "\n".join(["rank,seed,accuracy", *(f"{rank},{seed},0.8{rank}" for rank in (1, 2) for seed in range(9))])
    assert all(row.score.half >= 0.5 for row in read_lines(tmp_path, equal).record.summaries)


@pytest.mark.parametrize(("limit", "said"), [("MOST", "4 configurations"), ("MOST_TRAININGS", "12 trainings")])
def test_more_than_can_be_judged_is_refused(limit: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_table, limit, 1)
    with pytest.raises(DataError, match=f"{said}, and at most 1 are "):
        judge(plain_rows())


def test_a_rank_may_be_the_size_and_a_setting() -> None:
    rows = [{"rank": r, "lr": lr, "seed": s, "nll": 2 - v / 100 - lr} for r, s, v in trainings() for lr in (0.001, 0.002)]
    (first, second, *_) = judge(rows, size="rank").record.summaries
    assert [first.label, second.label] == ["rank 1, lr 0.001", "rank 1, lr 0.002"]
    assert (first.value("trainable_parameters"), first.unit) == (1.0, "rank")
    assert sized(first) == "", "its label has it"


def test_a_strangers_texts_are_no_commands_of_the_terminal(
    tmp_path: Path, sweep: PastSweep, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "\x1b[2J\x1b]0;owned\x07"
    lines = lines_of(f"method,task,seed,accuracy,note{bad}", lambda r, s, v: f"{bad}{r},t{bad},{s},{v},{bad}{s}")
    (tmp_path / "table.csv").write_text(lines)
    entries = [
        replace(one, trial=replace(one.trial, label=bad + one.trial.label, task=f"t{bad}")) for one in sweep.state.requested
    ]
    failed = replace(entries[0], result=TrialResult(entries[0].key, "failed", error=bad))
    write_trials([failed, *entries[1:]], tmp_path / "trials.csv")
    ignore = ["--ignore", "note" + bad.encode("unicode_escape").decode()]
    for file, options in (("table", []), ("table", ignore), ("table", ["--score", bad]), ("trials", [])):
        main(["judge", str(tmp_path / f"{file}.csv"), *options])
        out = "".join(capsys.readouterr())
        assert "owned" in out
        assert "\x1b" not in out
        assert "\x07" not in out

"""Tables of trainings of anybody: MLflow's, W&B's, Optuna's and our own export are judged as a sweep is."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from craft.scoring.predictions import credits_of
from craft.tasks.files import DataError
from orchestrator import judge
from orchestrator.commands.app import main
from orchestrator.plan.trial import TrialResult
from orchestrator.record.state import Entry
from orchestrator.results.answer import Answer
from orchestrator.results.intervals import compare
from orchestrator.results.metrics import flat_cells, sized
from orchestrator.results.probabilities import spread_between, spreads
from orchestrator.results.summary import Summary
from orchestrator.review import run_table
from orchestrator.review.past_sweep import PastSweep, read_folder
from orchestrator.review.run_columns import Call
from orchestrator.review.run_table import RunTable, read_table
from orchestrator.review.trials_file import write_trials
from tests.orchestrator.recorded import over_seeds, record

LEVELS = {1: 80.0, 2: 84.0, 4: 86.0, 8: 86.2}
SEEDS = (0, 1, 2)


def score_of(rank: int, seed: int) -> float:
    return LEVELS[rank] + 0.3 * np.random.default_rng([rank, seed]).standard_normal()


def trainings() -> Iterator[tuple[int, int, float]]:
    """Rank, seed and score of each training of the made-up sweep that all tables tell of."""
    for rank in LEVELS:
        for seed in SEEDS:
            yield rank, seed, score_of(rank, seed)


@pytest.fixture
def sweep(tmp_path: Path) -> PastSweep:
    """The same trainings as a sweep that has run."""
    configurations = {f"LoRA r{rank}": (100 * rank, over_seeds(*(score_of(rank, seed) for seed in SEEDS))) for rank in LEVELS}
    return read_folder(record(tmp_path / "runs" / "ranks", configurations, seeds=SEEDS))


def verdict(answer: Answer | None) -> tuple[Any, ...]:
    """What an answer says of the kind, the chances and the rest, without labels, prices and commands."""
    assert answer is not None
    return answer.kind, answer.p_better, answer.p_decides


def numbers(summaries: list[Summary]) -> list[tuple[float, ...]]:
    names = ("score", "trainable_parameters", "p_front", "p_enough", "expected")
    return sorted(tuple(summary.value(name) for name in names) for summary in summaries)


def judged_like(table: RunTable, sweep: PastSweep) -> None:
    """The numbers of a table that another program wrote are those of the sweep, up to the last digits of a CSV file."""
    assert verdict(table.record.answer) == verdict(sweep.answer)
    np.testing.assert_allclose(numbers(table.record.summaries), numbers(sweep.summaries), rtol=1e-6)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader()
        table.writerows(rows)
    return path


def plain_rows(**changes: Any) -> list[dict[str, Any]]:
    rows = [{"method": "lora", "rank": r, "seed": s, "accuracy": v / 100, "params": 100 * r} for r, s, v in trainings()]
    return [row | changes for row in rows]


def with_facts(entry: Entry) -> Entry:
    """The trial with the facts that a real one has: its metric, chance, and credits of 400 rows."""
    assert entry.result is not None
    right = np.random.default_rng([entry.trial.seed, len(entry.trial.label)]).random(400) < entry.result.metrics["score"] / 100
    credits = credits_of(lambda rows: 100 * float(right[rows].mean()), 400)
    facts = credits | {"metric": "accuracy", "random_guessing": 50.0, "reported_examples": 400}
    return replace(entry, result=entry.result.with_facts(**facts))


def test_an_exported_sweep_has_the_same_answer(tmp_path: Path, sweep: PastSweep) -> None:
    entries = {key: with_facts(entry) for key, entry in sweep.state.entries.items()}
    sweep = PastSweep(replace(sweep.state, entries=entries), "", None, sweep.fetch)
    write_trials(sweep.entries, tmp_path / "trials.csv")
    table = read_table(tmp_path / "trials.csv")
    assert [flat_cells(row) for row in table.record.summaries] == [flat_cells(row) for row in sweep.summaries]
    assert all("example_luck" in row.counts for row in table.record.summaries)
    assert table.record.answer is not None
    assert sweep.answer is not None
    assert replace(table.record.answer, command="") == replace(sweep.answer, command="")
    frame = judge(pd.read_csv(tmp_path / "trials.csv"))
    assert frame.answer is not None
    assert frame.answer.text == table.record.answer.text


def test_an_exported_sweep_has_its_failures(tmp_path: Path, sweep: PastSweep) -> None:
    lost = next(iter(sweep.state.entries.values()))
    failed = replace(lost, result=TrialResult(lost.key, "failed", error="the loss is not finite", steps=7))
    sweep = PastSweep(replace(sweep.state, entries=sweep.state.entries | {lost.key: failed}), "", None, sweep.fetch)
    write_trials(sweep.entries, tmp_path / "trials.csv")
    summaries = read_table(tmp_path / "trials.csv").record.summaries
    assert [flat_cells(row) for row in summaries] == [flat_cells(row) for row in sweep.summaries]
    assert next(row for row in summaries if row.failed).reasons == ("the loss is not finite",)


def test_a_trial_that_is_there_twice_counts_once_or_is_refused(tmp_path: Path, sweep: PastSweep) -> None:
    write_trials(sweep.entries, file := tmp_path / "trials.csv")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines, *lines[1:]]))
    assert numbers(read_table(file).record.summaries) == numbers(sweep.summaries)
    file.write_text("\n".join([*lines, lines[1].replace(lines[1].split(",")[-2], "17.5")]))
    with pytest.raises(DataError, match=r"line 14: the trial .* is there with another result"):
        read_table(file)


def test_two_metrics_with_one_value_in_each_row_are_asked_for(tmp_path: Path) -> None:
    said = refusal(tmp_path, lines_of("rank,seed,accuracy,f1", lambda rank, seed, value: f"{rank},{seed},{value},{1 - value}"))
    assert "score: accuracy, f1 may be it" in said


def test_answers_by_example_pair_configurations(tmp_path: Path) -> None:
    """Both err on the same examples but three: the same scores without answers say less."""
    luck, lines = np.random.default_rng(3).random(600) < 0.8, ["configuration,accuracy,params,seed,answers"]
    for name, size, more in (("a", 10, 0), ("b", 99, 3)):
        for seed in range(3):
            right = luck.copy()
            right[np.flatnonzero(~luck)[: more + seed]] = True
            (tmp_path / f"{name}{seed}.csv").write_text("correct\n" + "\n".join(map(str, right.astype(int))))
            lines.append(f"{name},{right.mean():.4f},{size},{seed},{name}{seed}.csv")
    (tmp_path / "runs.csv").write_text("\n".join(lines))
    table = read_table(tmp_path / "runs.csv")
    assert {row.value("examples") for row in table.record.summaries} == {600.0}
    (a, b) = table.record.summaries
    correlation = np.corrcoef(a.credits["task", 0], b.credits["task", 0])[0, 1]
    assert correlation > 0.95, "the credits of the same examples"
    assert "answers: answers" in table.read
    (tmp_path / "a0.csv").write_text("correct\n" + "1\n" * 600)
    with pytest.raises(DataError, match=r"is 100\.00, its score"):
        read_table(tmp_path / "runs.csv")


def test_a_plain_file_is_judged_as_the_sweep_it_could_have_been(tmp_path: Path, sweep: PastSweep) -> None:
    table = read_table(write(tmp_path / "plain.csv", plain_rows()))
    judged_like(table, sweep)
    assert table.read == [
        "score: accuracy, more is better, shown times 100",
        "size: params",
        "seed: seed",
        "settings: rank",
        "left out: method (equal in all rows)",
    ]
    assert [row.label for row in table.record.summaries] == ["rank 1", "rank 2", "rank 4", "rank 8"]
    lines = "".join(json.dumps({"config": {"rank": r}, "seed": s, "accuracy": v, "params": 100 * r}) + "\n"
                    for r, s, v in trainings())  # fmt: skip
    (tmp_path / "plain.jsonl").write_text(lines)
    judged_like(read_table(tmp_path / "plain.jsonl"), sweep)
    judged_like(read_table(write(tmp_path / "turned.csv", plain_rows()[::-1])), sweep)


def test_a_frame_is_judged_from_python_as_its_file_is(tmp_path: Path) -> None:
    frame = pd.DataFrame(plain_rows())
    by_file = read_table(write(tmp_path / "plain.csv", plain_rows())).record
    for judgement in (judge(frame), judge(frame.to_dict("records")), judge(tmp_path / "plain.csv")):
        assert judgement.answer is not None
        assert by_file.answer is not None
        assert judgement.answer.text == by_file.answer.text
        assert sorted(judgement.front["score"]) == pytest.approx(sorted(row.score.mean for row in by_file.summaries))
    wide = judge(frame, within=7.0)
    assert wide.answer is not None
    assert "rank 1" in wide.answer.verdict


@pytest.mark.slow
def test_mlflows_table_of_runs(tmp_path: Path, sweep: PastSweep) -> None:
    """Runs within a run, as a search logs them; the run that holds them and one that failed are no trainings."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    mlflow.set_experiment("ranks")
    with mlflow.start_run(run_name="search"):
        mlflow.log_params({"rank": 99, "seed": 99})
        mlflow.log_metrics({"accuracy": 0.1})
        for rank, seed, value in trainings():
            with mlflow.start_run(nested=True):
                mlflow.log_params({"method": "lora", "rank": rank, "seed": seed, "epochs": 3})
                mlflow.log_metrics({"accuracy": value / 100, "train_loss": seed / 7 + rank, "trainable_params": 100 * rank})
    mlflow.search_runs(experiment_names=["ranks"]).to_csv(tmp_path / "runs.csv", index=False)
    judged_like(read_table(tmp_path / "runs.csv"), sweep)
    judged_like(judge_table(mlflow.search_runs(experiment_names=["ranks"])), sweep)


def judge_table(frame: pd.DataFrame) -> RunTable:
    judgement = judge(frame)
    return RunTable(judgement.record, judgement.read, judgement.lacks)


@pytest.mark.slow
def test_a_sweep_of_ours_exported_from_mlflow(tmp_path: Path, sweep: PastSweep) -> None:
    import mlflow

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert main(["replay", str(tmp_path / "runs" / "ranks"), "--tracking-uri", uri]) == 0
    mlflow.set_tracking_uri(uri)
    frame = mlflow.search_runs(search_all_experiments=True)
    assert len(frame) > len(LEVELS) * len(SEEDS), "the runs of the sweep and of its configurations are among them"
    frame.to_csv(tmp_path / "runs.csv", index=False)
    table = read_table(tmp_path / "runs.csv", Call(score="metrics.score", minimize=False, by="tags.craft.label"))
    judged_like(table, sweep)
    assert [row.label for row in table.record.summaries] == [row.label for row in sweep.summaries]


@pytest.mark.slow
def test_optunas_table_of_trials(tmp_path: Path, sweep: PastSweep) -> None:
    """A study over rank and seed; pruned and failed trials are counted as such."""
    import optuna

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


def test_wandbs_table_of_runs(tmp_path: Path, sweep: PastSweep) -> None:
    """The columns that W&B's page exports: those about the run, then settings and last values under their own names."""
    rows = [
        {"Name": f"fresh-sun-{r}-{s}", "State": "finished", "Notes": "-", "User": "me", "Tags": "",
         "Created": f"2026-05-0{s + 1}", "Runtime": 61.5 + r + s / 7, "Sweep": "", "rank": r, "seed": s,
         "learning_rate": 0.001, "_step": 10 * r + s, "_timestamp": 1.7e9 + r + s, "_wandb.runtime": 61 + s,
         "eval/accuracy": v / 100, "eval/loss": r / 3 + s / 7,
         "eval/runtime": 1 / (r + s), "trainable_params": 100 * r}
        for r, s, v in trainings()
    ]  # fmt: skip
    rows.append(rows[0] | {"Name": "lost-moon", "State": "crashed", "rank": 16, "eval/accuracy": "", "trainable_params": 1600})
    table = read_table(write(tmp_path / "wandb.csv", rows))
    assert table.read[:2] == ["score: eval/accuracy, more is better, shown times 100", "size: trainable_params"]
    assert [row.failed for row in table.record.summaries] == [0, 0, 0, 0, 1]
    complete = [row for row in table.record.summaries if row.complete]
    np.testing.assert_allclose(numbers(complete), numbers(sweep.summaries), rtol=1e-6)


def test_a_loss_is_judged_by_its_lowest(tmp_path: Path, sweep: PastSweep) -> None:
    rows = [{"rank": r, "seed": s, "test_loss": (100 - v) / 50, "params": 100 * r} for r, s, v in trainings()]
    table = read_table(write(tmp_path / "loss.csv", rows), within=2.0)
    assert table.record.answer is not None
    assert sweep.answer is not None
    assert (table.record.answer.kind, "rank 4" in table.record.answer.verdict) == (sweep.answer.kind, True)
    mine, theirs = (record.summaries for record in (table.record, sweep))
    for loss, score in zip(mine, theirs, strict=True):
        assert loss.score.mean == pytest.approx(2 * (score.score.mean - 100))
        assert loss.score.half == pytest.approx(2 * score.score.half), "no end is cut at 0 or 100"
    assert read_table(tmp_path / "loss.csv", Call(minimize=False)).read[0].startswith("score: test_loss, more is better")


def test_what_a_file_lacks_is_named_with_what_it_would_add(tmp_path: Path) -> None:
    one = [row for row in plain_rows() if row["seed"] == 0]
    table = read_table(write(tmp_path / "one.csv", one))
    assert table.lacks[-1].startswith("No seeds: with one number a configuration no probability can be given")
    assert table.record.answer is not None
    assert (table.record.answer.kind, table.record.answer.p_better) == ("one seed", None)
    bare = [{"method": f"s{r}", "accuracy": v} for r, _, v in trainings()]
    with pytest.raises(DataError, match="line 3 and line 2 repeat a configuration without a seed"):
        read_table(write(tmp_path / "bare.csv", bare))
    table = read_table(tmp_path / "bare.csv", Call(independent=True))
    assert [line.partition(":")[0] for line in table.lacks] == ["No size", "No number of scored examples"]
    assert table.record.answer is not None
    best = max(LEVELS, key=lambda rank: np.mean([score_of(rank, seed) for seed in SEEDS]))
    assert table.record.answer.verdict.startswith(f"Enough: s{best}: "), "without sizes the likeliest is taken"
    assert "parameters" not in table.record.answer.text
    counted = read_table(write(tmp_path / "counted.csv", [row | {"eval_samples": 400} for row in one]))
    assert all(row.score.low < row.score.mean < row.score.high for row in counted.record.summaries)
    assert len(counted.lacks) == 1


def test_a_configuration_that_lacks_a_task_is_not_ranked(tmp_path: Path) -> None:
    rows = [row | {"task": task} for row in plain_rows() for task in ("a", "b")]
    rows = [row for row in rows if not (row["rank"] == 8 and row["task"] == "b" and row["seed"] == 1)]
    table = read_table(write(tmp_path / "tasks.csv", rows))
    assert [row.complete for row in table.record.summaries] == [True, True, True, False]
    assert table.record.summaries[-1].reasons == ("no row for b",)


@pytest.mark.parametrize(
    ("line", "changes", "said"),
    [
        (4, {"accuracy": "n/a"}, "accuracy: got 'n/a'; a number"),
        (5, {"accuracy": ""}, "accuracy: it is empty; a number"),
        (6, {"seed": ""}, "seed: it is empty"),
        (7, {"params": "many"}, "params: got 'many'; a number"),
        (8, {"rank": 2, "seed": 1, "params": 200}, "line 8 and line 6 have equal settings and seed"),
        (3, {"params": "", "rank": 99}, "params: it is empty"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(
    line: int, changes: Mapping[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = plain_rows()
    rows[line - 2] |= changes
    options = ["--score", "accuracy", "--size", "params"]
    assert main(["judge", str(write(tmp_path / "bad.csv", rows)), *options]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert f"bad.csv, line {line}" in printed
    assert said in printed


def test_a_file_without_a_score_or_a_named_column_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "none.csv", [{"rank": 1, "seed": 0}])
    with pytest.raises(ValueError, match="score: no column may be it"):
        read_table(file)
    with pytest.raises(ValueError, match="no column 'acc'; the columns are: rank, seed"):
        read_table(file, Call(score="acc"))


def test_two_configurations_are_compared_by_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "plain.csv", plain_rows())
    assert main(["judge", str(file), "--compare", "rank 4", "rank 8", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    four, eight = ({("task", seed): score_of(rank, seed) for seed in SEEDS} for rank in (4, 8))
    summaries = read_table(file).record.summaries
    of_seeds = {row.parameters["rank"]: spreads(summaries, ["task"]).get(row.configuration) for row in summaries}
    expected = compare(four, eight, pooled=spread_between(of_seeds[4], of_seeds[8], True))
    assert (report["report"], report["protocol"], len(report["rows"])) == ("front", "", 4)
    assert report["comparison"]["p_value"] == pytest.approx(expected.p)
    assert report["comparison"]["difference"]["low"] == pytest.approx(expected.difference.low)
    assert main(["judge", str(file), "--compare", "rank 4", "rank 4"]) == 2
    assert "name two by --compare" in capsys.readouterr().err


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
    assert table.record.answer is not None
    assert sweep.answer is not None
    assert table.record.answer.p_better == sweep.answer.p_better


def refusal(tmp_path: Path, lines: str, call: Call | None = None) -> str:
    """What is said of a table that is not judged."""
    (tmp_path / "table.csv").write_text(lines)
    with pytest.raises(DataError) as refused:
        read_table(tmp_path / "table.csv", call)
    return str(refused.value)


def lines_of(head: str, cells: Callable[[int, int, float], str]) -> str:
    return "\n".join([head, *(cells(rank, seed, round(value / 100, 5)) for rank, seed, value in trainings())])


@pytest.mark.parametrize("name", ["value", "score", "loss_value", "neg_log_loss", "error_score", "brier_score"])
def test_a_name_without_a_certain_direction_is_asked_for(name: str, tmp_path: Path) -> None:
    said = refusal(tmp_path, lines_of(f"rank,seed,{name}", lambda rank, seed, value: f"{rank},{seed},{value}"))
    for side, best in (("--minimize", "rank 1"), ("--maximize", "rank 8")):
        assert re.search(rf"--score {name}( .*)? {side}", said)
        record = read_table(tmp_path / "table.csv", Call(score=name, minimize=side == "--minimize")).record
        assert record.answer is not None
        assert record.answer.best == record.pick(best).summary.configuration


def test_a_study_says_its_own_direction(tmp_path: Path) -> None:
    head, cells = "number,value,params_rank,params_seed,state,study_direction", "{0},{2},{0},{1},TrialState.COMPLETE,MINIMIZE"
    (tmp_path / "study.csv").write_text(lines_of(head, lambda *row: cells.format(*row)))
    assert read_table(tmp_path / "study.csv", Call(score="value")).read[0].startswith("score: value, less is better")


def test_an_attempt_that_failed_is_no_training(tmp_path: Path) -> None:
    lines = lines_of("Name,State,rank,seed,accuracy", lambda r, s, v: f"sun-{r}-{s},finished,{r},{s},{v}")
    lines += "\nlost,crashed,4,0,0.31\nlost,crashed,4,1,\nlost,failed,,,"
    (tmp_path / "table.csv").write_text(lines)
    table = read_table(tmp_path / "table.csv")
    assert [(row.planned, row.finished) for row in table.record.summaries] == [(3, 3)] * 4
    assert table.lacks[:2] == ["Left out: 2 attempts of finished trainings", "Left out: 1 failed rows without settings or seed"]


def test_a_run_that_is_exported_again_is_counted_once(tmp_path: Path) -> None:
    rows = "".join(f"{run},FINISHED,{rank},{score}\n" for run, rank, score in (("a", 1, 0.7), ("b", 4, 0.8), ("c", 16, 0.83)))
    (tmp_path / "table.csv").write_text("run_id,status,params.rank,metrics.accuracy\n" + 3 * rows)
    table = read_table(tmp_path / "table.csv")
    assert [row.score.n for row in table.record.summaries] == [1, 1, 1]
    assert table.lacks[0] == "Left out: 6 rows of a training that is there"


@pytest.mark.parametrize("name", ["epoch", "global_step", "iteration"])
def test_steps_of_a_training_are_no_seeds(name: str, tmp_path: Path) -> None:
    rows = (f"{rank},{step},{0.7 + step / 1000 + rank / 100}" for rank in (1, 2) for step in (1, 2, 3))
    said = refusal(tmp_path, "\n".join([f"rank,{name},val_accuracy", *rows]))
    assert f"line 3 and line 2 differ in {name}: they are one training" in said
    table = read_table(reshaped(said))
    assert [row.score.mean for row in table.record.summaries] == pytest.approx([71.3, 72.3])


def reshaped(said: str) -> Path:
    """The table that the first command of a refusal writes."""
    program = next(shlex.split(line)[2] for line in said.splitlines() if line.startswith("  python -c "))
    exec(program, {})
    return Path(re.findall(r"to_csv\('(.*?)'", program)[0])


def test_seeds_in_columns_become_rows(tmp_path: Path, sweep: PastSweep) -> None:
    rows = (",".join([str(rank), str(100 * rank), *(f"{score_of(rank, seed)}" for seed in SEEDS)]) for rank in LEVELS)
    said = refusal(tmp_path, "\n".join(["rank,params,accuracy_seed0,accuracy_seed1,accuracy_seed2", *rows]))
    assert "a row is one training, with its seed in a column" in said
    judged_like(read_table(reshaped(said)), sweep)


def test_means_become_rows_with_the_same_mean_and_spread(tmp_path: Path) -> None:
    said = refusal(tmp_path, "method,acc_mean,acc_std,n\nlora,81.5,0.4,3\ndora,82.5,0.7,5\n")
    table = read_table(reshaped(said), Call(independent=True))
    assert [(row.score.mean, row.score.n) for row in table.record.summaries] == [
        (pytest.approx(82.5), 5),
        (pytest.approx(81.5), 3),
    ]
    spread = np.std([*table.record.summaries[0].scores.values()], ddof=1)
    assert spread == pytest.approx(0.7)


def test_scores_in_rows_become_columns(tmp_path: Path) -> None:
    rows = (
        f"{rank},{seed},{name},{cell}" for rank, seed, v in trainings() for name, cell in (("accuracy", v), ("loss", 1 / v))
    )
    said = refusal(tmp_path, "\n".join(["rank,seed,metric,value", *rows]))
    assert read_table(reshaped(said)).read[0] == "score: accuracy, more is better"


def test_nothing_is_paired_by_the_order_of_rows(tmp_path: Path) -> None:
    rows = [
        f"{rank},{level + noise:.4f},{rank}00" for rank, level in ((1, 0.78), (4, 0.79)) for noise in (-0.08, -0.02, 0.03, 0.07)
    ]
    answers = set()
    for order in (rows, sorted(rows, key=lambda row: row.split(",")[1]), rows[::-1]):
        assert "--independent" in refusal(tmp_path, "\n".join(["rank,accuracy,params", *order]))
        answer = read_table(tmp_path / "table.csv", Call(independent=True)).record.answer
        assert answer is not None
        answers.add((answer.kind, answer.text))
    assert len(answers) == 1
    assert next(iter(answers))[0] == "unsure"


def test_an_interval_is_no_narrower_than_the_rounding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two differences of a point between scores of two digits are equal by chance."""
    (tmp_path / "table.csv").write_text("rank,seed,accuracy,params\n4,0,.8,4\n4,1,.82,4\n16,0,.81,16\n16,1,.83,16\n")
    assert main(["judge", str(tmp_path / "table.csv"), "--compare", "rank 4", "rank 16", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["comparison"]
    assert compared["difference"]["high"] - compared["difference"]["low"] > 2
    assert compared["p_value"] > 0.1
    equal = "\n".join(["rank,seed,accuracy", *(f"{rank},{seed},0.8{rank}" for rank in (1, 2) for seed in range(9))])
    (tmp_path / "table.csv").write_text(equal)
    assert all(row.score.half >= 0.5 for row in read_table(tmp_path / "table.csv").record.summaries)


def test_only_shares_of_right_rows_have_the_luck_of_their_number(tmp_path: Path) -> None:
    lines = lines_of("rank,seed,reward,eval_samples", lambda r, s, v: f"{r},{s},{200 * v},500")
    (tmp_path / "table.csv").write_text(lines)
    table = read_table(tmp_path / "table.csv")
    assert all(row.sampling == (0, 0) for row in table.record.summaries)
    assert "The number of scored examples is not used" in " ".join(table.lacks)


def test_answers_of_other_examples_are_named(tmp_path: Path) -> None:
    for name, count in (("a", 40), ("b", 30), ("c", 40)):
        (tmp_path / f"{name}.csv").write_text("correct\n" + "1\n" * count)
    said = refusal(tmp_path, "rank,seed,accuracy,answers\n1,0,1.0,a.csv\n1,1,1.0,b.csv\n2,0,1.0,c.csv\n")
    assert "b.csv" in said
    assert "30" in said


def test_cells_of_a_strangers_table_are_no_commands_of_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = "\x1b[2J\x1b]0;owned\x07"
    lines = lines_of(f"method,task,seed,accuracy,note{bad}", lambda r, s, v: f"{bad}{r},t{bad},{s},{v},{bad}{s}")
    (tmp_path / "table.csv").write_text(lines)
    for options in ([], ["--ignore", "note" + bad.encode("unicode_escape").decode()], ["--score", bad]):
        main(["judge", str(tmp_path / "table.csv"), *options])
        out = "".join(capsys.readouterr())
        assert "\x1b" not in out
        assert "\x07" not in out


def test_lists_are_settings(tmp_path: Path) -> None:
    rows = [{"betas": [0.9, last], "seed": s, "accuracy": v} for last in (0.95, 0.999) for r, s, v in trainings() if r == 1]
    table = judge_table(pd.DataFrame(rows))
    assert [row.label for row in table.record.summaries] == ["0.9,0.95", "0.9,0.999"]


def test_very_many_seeds_are_judged_by_blocks_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The means are the same, and the intervals nearly; the order of rows does not matter."""
    random = np.random.default_rng(0)
    rows = [
        {"rank": rank, "seed": seed, "accuracy": level + 0.01 * noise, "params": 100 * rank}
        for rank, level in ((1, 0.7), (2, 0.72))
        for seed, noise in enumerate(random.standard_normal(1000))
    ]
    exact = judge(rows).record.summaries
    monkeypatch.setattr(run_table, "LARGE", 1000)
    for order in (rows, sorted(rows, key=lambda row: row["accuracy"])):
        judgement = judge(order)
        assert judgement.lacks[0] == "2,000 trainings: each score is a mean over a block of seeds"
        for pooled, whole in zip(judgement.record.summaries, exact, strict=True):
            assert pooled.finished == run_table.BLOCKS
            assert pooled.score.mean == pytest.approx(whole.score.mean)
            assert pooled.score.half == pytest.approx(whole.score.half, rel=0.25)
    monkeypatch.setattr(run_table, "MOST", 1)
    with pytest.raises(DataError, match="2 configurations, and at most 1 are compared"):
        judge(rows)


def test_a_rank_may_be_the_size_and_a_setting(tmp_path: Path) -> None:
    rows = [{"rank": r, "lr": lr, "seed": s, "nll": 2 - v / 100 - lr} for r, s, v in trainings() for lr in (0.001, 0.002)]
    table = read_table(write(tmp_path / "rates.csv", rows), Call(size="rank"))
    assert [(row.label, row.value("trainable_parameters")) for row in table.record.summaries][:2] == [
        ("rank 1, lr 0.001", 1.0),
        ("rank 1, lr 0.002", 1.0),
    ]
    assert table.record.summaries[0].unit == "rank"
    assert sized(table.record.summaries[0]) == "", "its label has it"


@pytest.mark.parametrize(
    ("size", "of", "shown"),
    [("rank", 1, "(rank 1)"), ("size_mb", 2, "(size mb 2)"), ("params", 1, "(1 parameter)"), ("params", 2, "(2 parameters)")],
)
def test_a_size_reads_as_english(size: str, of: int, shown: str) -> None:
    rows = [{"run": f"run {r}", size: of * r, "seed": s, "accuracy": 0.8 + v / 1000} for r, s, v in trainings()]
    judged = judge(pd.DataFrame(rows), by="run", size=size)
    (smallest,) = (row for row in judged.record.summaries if row.value("trainable_parameters") == of)
    assert sized(smallest) == f" {shown}"
    assert "(1 rank)" not in judged.answer.text


def test_runs_that_only_a_name_distinguishes_are_judged_by_it(tmp_path: Path) -> None:
    """As in Hugging Face's comparison of methods: objects in objects, a name for each run, one seed."""
    run = '{{"run_info": {{"experiment_name": "lora/r{0}", "seed": 0}}, "test_accuracy": {1}, "forgetting": {2}}}\n'
    (tmp_path / "runs.jsonl").write_text("".join(run.format(rank, 0.5 + rank / 100, rank / 7) for rank in (8, 16)))
    with pytest.raises(DataError, match=r"--by run_info\.experiment_name"):
        read_table(tmp_path / "runs.jsonl")
    table = read_table(tmp_path / "runs.jsonl", Call(by="run_info.experiment_name"))
    assert [row.label for row in table.record.summaries] == ["lora/r16", "lora/r8"]

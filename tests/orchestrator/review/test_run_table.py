"""Tables of trainings of anybody: MLflow's, W&B's, Optuna's and our own export are judged as a sweep is."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from craft.scoring.predictions import credits_of
from craft.tasks.files import DataError
from orchestrator import judge
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
from tests.orchestrator.conftest import Cli
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


def past(folder: Path) -> PastSweep:
    """The same trainings as a sweep that has run."""
    configurations = {f"LoRA r{rank}": (100 * rank, over_seeds(*(score_of(rank, seed) for seed in SEEDS))) for rank in LEVELS}
    return read_folder(record(folder / "runs" / "ranks", configurations, seeds=SEEDS))


@pytest.fixture
def sweep(tmp_path: Path) -> PastSweep:
    return past(tmp_path)


def verdict(answer: Answer | None) -> tuple[Any, ...]:
    """What an answer says of the kind, the chances and the rest, without labels, prices and commands."""
    return answer.kind, answer.p_better, answer.p_decides


def numbers(summaries: list[Summary]) -> list[tuple[float, ...]]:
    names = ("score", "trainable_parameters", "p_front", "p_enough", "expected")
    return sorted(tuple(summary.value(name) for name in names) for summary in summaries)


def judged_like(table: RunTable, sweep: PastSweep) -> None:
    """The numbers of a table that another program wrote are those of the sweep, up to the last digits of a CSV file."""
    assert verdict(table.record.answer) == verdict(sweep.answer)
    np.testing.assert_allclose(numbers(table.record.summaries), numbers(sweep.summaries), rtol=1e-6)


def judge_table(frame: pd.DataFrame) -> RunTable:
    judgement = judge(frame)
    return RunTable(judgement.record, judgement.read, judgement.lacks)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader()
        table.writerows(rows)
    return path


def plain_rows(**changes: Any) -> list[dict[str, Any]]:
    rows = [{"method": "lora", "rank": r, "seed": s, "accuracy": v / 100, "params": 100 * r} for r, s, v in trainings()]
    return [row | changes for row in rows]


def lines_of(head: str, cells: Callable[[int, int, float], str]) -> str:
    return "\n".join([head, *(cells(rank, seed, round(value / 100, 5)) for rank, seed, value in trainings())])


def with_facts(entry: Entry) -> Entry:
    """The trial with the facts that a real one has: its metric, chance, and credits of 400 rows."""
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
    assert replace(table.record.answer, command="") == replace(sweep.answer, command="")
    frame = judge(pd.read_csv(tmp_path / "trials.csv"))
    assert frame.answer.text == table.record.answer.text


@pytest.mark.parametrize("wave", [1, 2])
def test_an_exported_sweep_has_its_failures(wave: int, tmp_path: Path, sweep: PastSweep) -> None:
    """A seed that was added later does not make its configuration incomplete."""
    lost = next(iter(sweep.state.entries.values()))
    failed = replace(lost, result=TrialResult(lost.key, "failed", error="the loss is not finite", steps=7), wave=wave)
    sweep = PastSweep(replace(sweep.state, entries=sweep.state.entries | {lost.key: failed}), "", None, sweep.fetch)
    write_trials(sweep.entries, tmp_path / "trials.csv")
    summaries = read_table(tmp_path / "trials.csv").record.summaries
    assert [flat_cells(row) for row in summaries] == [flat_cells(row) for row in sweep.summaries]
    assert all(row.complete for row in summaries) == (wave > 1)
    assert next(row for row in summaries if row.failed).reasons == ("the loss is not finite",)


def test_a_trial_that_is_there_twice_counts_once_or_is_refused(tmp_path: Path, sweep: PastSweep) -> None:
    write_trials(sweep.entries, file := tmp_path / "trials.csv")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines, *lines[1:]]))
    assert numbers(read_table(file).record.summaries) == numbers(sweep.summaries)
    file.write_text("\n".join([*lines, lines[1].replace(lines[1].split(",")[-2], "17.5")]))
    with pytest.raises(DataError, match=r"line 14: the trial .* is there with another result"):
        read_table(file)


def test_attempts_and_rows_exported_again_are_no_trainings(tmp_path: Path) -> None:
    head, *rows = lines_of("Name,State,rank,seed,accuracy", lambda r, s, v: f"sun-{r}-{s},finished,{r},{s},{v}").split("\n")
    lost = ["lost,crashed,4,0,0.31", "lost,crashed,4,1,", "lost,failed,,,"]
    (tmp_path / "table.csv").write_text("\n".join([head, *lost, *rows, *rows]))
    table = read_table(tmp_path / "table.csv")
    assert [(row.planned, row.finished) for row in table.record.summaries] == [(3, 3)] * 4
    assert table.lacks[:3] == [
        "Left out: 2 attempts of finished trainings",
        "Left out: 12 rows of a training that is there",
        "Left out: 1 failed rows without settings, seed or task",
    ]


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


def test_losses_by_example_have_the_error_of_their_mean(tmp_path: Path) -> None:
    """A loss is no share of right rows, and equal ones are of equal models."""
    losses = np.random.default_rng(5).exponential(0.4, 600)
    (tmp_path / "losses.csv").write_text("loss\n" + "\n".join(map(str, losses)))
    (tmp_path / "runs.csv").write_text(f"rank,seed,eval_loss,answers\n1,0,{losses.mean():.6f},losses.csv\n")
    (summary,) = read_table(tmp_path / "runs.csv").record.summaries
    assert summary.sampling == pytest.approx((1.96 * 100 * losses.std() / math.sqrt(600),) * 2)
    assert summary.graded == {"task": math.inf}


def test_what_unfinished_rows_and_times_hold_breaks_nothing(tmp_path: Path) -> None:
    rows = [row | {"task": "a", "status": "finished", "train_time": "0:12:30"} for row in plain_rows()]
    lost = [{"accuracy": math.inf, "params": "n/a"}, {"seed": "NA"}, {"task": ""}]
    table = judge_table(pd.DataFrame([*rows, *({**rows[0], "seed": 7, "status": "failed", **cells} for cells in lost)]))
    found = {row.label: (row.planned, row.finished) for row in table.record.summaries}
    assert found == {"rank 1": (4, 3), "rank 2": (3, 3), "rank 4": (3, 3), "rank 8": (3, 3)}
    assert all(math.isnan(row.value("seconds")) for row in table.record.summaries)
    assert "Left out: 2 failed rows without settings, seed or task" in table.lacks
    with pytest.raises(DataError, match="params: got inf; a number from 0"):
        judge_table(pd.DataFrame(plain_rows(params=math.inf)))


def test_a_configuration_without_any_setting_is_called_none(tmp_path: Path) -> None:
    rows = [
        {"adapter": "lora" if r > 1 else "none", "seed": s, "accuracy": v / 100, "params": r}
        for r, s, v in trainings()
        if r < 3
    ]
    assert [row.label for row in read_table(write(tmp_path / "none.csv", rows)).record.summaries] == ["none", "lora"]


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
        assert judgement.answer.text == by_file.answer.text
        assert sorted(judgement.front["score"]) == pytest.approx(sorted(row.score.mean for row in by_file.summaries))
    wide = judge(frame, within=7.0)
    assert "rank 1" in wide.answer.verdict


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
    table = read_table(write(tmp_path / "one.csv", one))
    assert table.lacks[-1].startswith("No seeds: with one number a configuration no probability can be given")
    assert (table.record.answer.kind, table.record.answer.p_better) == ("one seed", None)
    bare = [{"method": f"s{r}", "accuracy": v} for r, _, v in trainings()]
    with pytest.raises(DataError, match="line 3 and line 2 repeat a configuration without a seed"):
        read_table(write(tmp_path / "bare.csv", bare))
    table = read_table(tmp_path / "bare.csv", Call(independent=True))
    assert [line.partition(":")[0] for line in table.lacks] == ["No size", "No number of scored examples"]
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


def test_two_configurations_are_compared_by_seed(tmp_path: Path, cli: Cli) -> None:
    file = write(tmp_path / "plain.csv", plain_rows())
    report = cli("judge", str(file), "--compare", "rank 4", "rank 8", "--json").report
    four, eight = ({("task", seed): score_of(rank, seed) for seed in SEEDS} for rank in (4, 8))
    summaries = read_table(file).record.summaries
    of_seeds = {row.parameters["rank"]: spreads(summaries, ["task"]).get(row.configuration) for row in summaries}
    expected = compare(four, eight, pooled=spread_between(of_seeds[4], of_seeds[8], True))
    assert (report["report"], report["protocol"], len(report["rows"])) == ("front", "", 4)
    assert report["comparison"]["p_value"] == pytest.approx(expected.p)
    assert report["comparison"]["difference"]["low"] == pytest.approx(expected.difference.low)
    assert "name two by --compare" in cli("judge", str(file), "--compare", "rank 4", "rank 4", status=2).err


def test_an_interval_is_no_narrower_than_the_rounding(tmp_path: Path, cli: Cli) -> None:
    """Two differences of a point between scores of two digits are equal by chance."""
    (tmp_path / "table.csv").write_text("rank,seed,accuracy,params\n4,0,.8,4\n4,1,.82,4\n16,0,.81,16\n16,1,.83,16\n")
    compared = cli("judge", str(tmp_path / "table.csv"), "--compare", "rank 4", "rank 16", "--json").report["comparison"]
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

"""A table that says the same in another way is judged equally, or refused with exit status 2 and a completed command.

Every export of the same twelve trainings is changed in every way: names, scales, signs, rows and columns. A refusal has the
line, the reason and the commands that make the table ready.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from craft.tasks.files import DataError
from orchestrator import judge
from orchestrator.results.summary import Summary
from orchestrator.review.past_sweep import PastSweep
from orchestrator.review.run_columns import Call
from orchestrator.review.run_table import RunTable, read_table
from tests.orchestrator.conftest import Cli

LEVELS = {1: 80.0, 2: 84.0, 4: 86.0, 8: 86.2}
SEEDS = (0, 1, 2)


def score_of(rank: int, seed: int) -> float:
    return LEVELS[rank] + 0.3 * np.random.default_rng([rank, seed]).standard_normal()


def trainings() -> Iterator[tuple[int, int, float]]:
    """Rank, seed and score of each training of the made-up sweep that all tables tell of."""
    for rank in LEVELS:
        for seed in SEEDS:
            yield rank, seed, score_of(rank, seed)


def numbers(summaries: list[Summary]) -> list[tuple[float, ...]]:
    names = ("score", "trainable_parameters", "p_front", "p_enough", "expected")
    return sorted(tuple(summary.value(name) for name in names) for summary in summaries)


def judged_like(record: PastSweep, sweep: PastSweep) -> None:
    """The numbers of a table that another program wrote are those of the sweep, up to the last digits of a CSV file."""
    for name in ("kind", "p_better", "p_decides"):
        assert getattr(record.answer, name) == getattr(sweep.answer, name)
    np.testing.assert_allclose(numbers(record.summaries), numbers(sweep.summaries), rtol=1e-6)


def labels(table: Any) -> list[str]:
    return [row.label for row in table.record.summaries]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def plain_rows(**changes: Any) -> list[dict[str, Any]]:
    rows = [{"method": "lora", "rank": r, "seed": s, "accuracy": v / 100, "params": 100 * r} for r, s, v in trainings()]
    return [row | changes for row in rows]


def lines_of(head: str, cells: Callable[[int, int, float], str]) -> str:
    return "\n".join([head, *(cells(rank, seed, round(value / 100, 5)) for rank, seed, value in trainings())])


def read_lines(folder: Path, lines: str, call: Call | None = None) -> RunTable:
    (folder / "table.csv").write_text(lines)
    return read_table(folder / "table.csv", call)


def refusal(folder: Path, lines: str, call: Call | None = None) -> str:
    """What is said of a table that is not judged."""
    with pytest.raises(DataError) as refused:
        read_lines(folder, lines, call)
    return str(refused.value)


Row = dict[str, Any]
TRAININGS = [(rank, seed, round(score / 100, 5)) for rank, seed, score in trainings()]


def _plain(rank: int, seed: int, score: float) -> Row:
    return {"method": "lora", "rank": rank, "learning_rate": 1e-3, "seed": seed, "accuracy": score, "params": 100 * rank}


def _mlflow(rank: int, seed: int, score: float) -> Row:
    return {
        "run_id": f"{rank:x}{seed}f", "experiment_id": "1", "status": "FINISHED", "artifact_uri": f"runs/{rank}-{seed}",
        "start_time": f"2026-05-0{seed + 1} 10:{10 + rank}", "metrics.train_loss": 1 / rank + seed / 7,
        "metrics.eval_loss": 1 - score, "metrics.eval_accuracy": score, "params.rank": rank, "params.seed": seed,
        "params.output_dir": f"out/{rank}-{seed}", "params.trainable_params": 100 * rank,
        "tags.mlflow.runName": f"sly-fox-{rank}{seed}",
    }  # fmt: skip


def _wandb(rank: int, seed: int, score: float) -> Row:
    return {
        "Name": f"sun-{rank}-{seed}", "State": "finished", "Notes": "-", "User": "me", "Created": f"2026-05-0{seed + 1}",
        "Runtime": 61 + rank + seed, "rank": rank, "seed": seed, "output_dir": f"out/{rank}-{seed}", "_step": 10 * rank + seed,
        "eval/accuracy": score, "eval/loss": 1 - score, "train/loss": 1 / rank + seed / 7, "trainable_params": 100 * rank,
    }  # fmt: skip


def _optuna(rank: int, seed: int, score: float) -> Row:
    return {
        "number": 3 * rank + seed, "value": score, "datetime_start": f"2026-05-0{seed + 1} 10:{10 + rank}", "params_rank": rank,
        "params_seed": seed, "user_attrs_trainable_params": 100 * rank, "state": "COMPLETE",
    }  # fmt: skip


TABLES: dict[str, Callable[[int, int, float], Row]] = {"plain": _plain, "mlflow": _mlflow, "wandb": _wandb, "optuna": _optuna}


def _column(rows: list[Row], part: str) -> str:
    """The name of the score, seed, size or rank in a table."""
    ends = {"score": ("eval_accuracy", "eval/accuracy", "accuracy", "value"), "size": ("params",)}.get(part, (part,))
    return next(name for end in ends for name in rows[0] if name.endswith(end))


def _renamed(part: str, new: str) -> Callable[[list[Row]], list[Row]]:
    def change(rows: list[Row]) -> list[Row]:
        old = _column(rows, part)
        prefix = old[: len(old) - len(re.split(r"params_|user_attrs_|[./]", old)[-1])] if part != "score" else ""
        return [{prefix + new if name == old else name: cell for name, cell in row.items()} for row in rows]

    return change


def _celled(part: str, write: Callable[[Any], Any], which: Callable[[int], bool] = lambda _: True) -> Any:
    """Changes the cells of a part in some rows."""

    def change(rows: list[Row]) -> list[Row]:
        name = _column(rows, part)
        return [row | {name: write(row[name])} if which(at) else row for at, row in enumerate(rows)]

    return change


def _with(**cells: Callable[[int, Row], Any]) -> Any:
    return lambda rows: [row | {name: cell(at, row) for name, cell in cells.items()} for at, row in enumerate(rows)]


def _trained(_: int, row: Row) -> float:
    """The score of a training on its own rows."""
    return 0.99 - 0.001 * int(row[_column([row], "rank")])


def _epochs(name: str) -> Any:
    def change(rows: list[Row]) -> list[Row]:
        score = _column(rows, "score")
        return [row | {name: epoch, score: row[score] - 0.01 * (2 - epoch)} for row in rows for epoch in (0, 1, 2)]

    return change


def _attempts(state: str, kept: bool) -> Any:
    """A crashed attempt beside every third training."""

    def change(rows: list[Row]) -> list[Row]:
        status = next((name for name in rows[0] if name.lower() in ("status", "state")), "status")
        rows = [{status: "finished"} | row for row in rows]
        lost = [row | {status: state, _column([row], "score"): 0.31 if kept else math.nan} for row in rows[::3]]
        names = [name for name in ("run_id", "Name", "number") if name in rows[0]]
        return [row | dict.fromkeys(names, f"9{at}") for at, row in enumerate(lost)] + rows

    return change


def _without(part: str) -> Any:
    return lambda rows: [{name: cell for name, cell in row.items() if name != _column(rows, part)} for row in rows]


CHANGES: dict[str, Callable[[list[Row]], list[Row]]] = {
    "same": lambda rows: rows,
    "reversed": lambda rows: rows[::-1],
    "by score": lambda rows: sorted(rows, key=lambda row: row[_column(rows, "score")]),
    "columns turned": lambda rows: [dict(reversed(row.items())) for row in rows],
    "points": _celled("score", lambda score: round(100 * score, 3)),
    "mixed scale": _celled("score", lambda score: 100 * score, lambda at: at > 8),
    "one in points": _celled("score", lambda score: 100 * score, lambda at: at == 4),
    "percent signs": _celled("score", lambda score: f"{100 * score:.2f}%"),
    "one percent sign": _celled("score", lambda score: f"{100 * score:.2f}%", lambda at: at == 4),
    "decimal commas": _celled("score", lambda score: f"{score:.5f}".replace(".", ",")),
    "one word": _celled("score", lambda _: "OOM", lambda at: at == 5),
    "one empty": _celled("score", lambda _: "", lambda at: at == 5),
    "infinite": _celled("score", lambda _: "inf", lambda at: at == 5),
    "blanks": lambda rows: [{f" {name} ": f" {cell} " for name, cell in row.items()} for row in rows],
    "sizes in thousands": _celled("size", lambda size: f"{1000 * size:,}"),
    "one size in k": _celled("size", lambda size: f"{size / 1000}k", lambda at: at == 0),
    "a size below 0": _celled("size", lambda size: -size, lambda at: at == 0),
    "large seeds": _celled("seed", lambda seed: 2**60 + seed),
    "seeds as fractions": _celled("seed", float),
    "a seed in words": _celled("seed", lambda seed: f"s{seed}"),
    "ranks as fractions": _celled("rank", lambda rank: f"{rank}.0", lambda at: at % 2 == 0),
    "ranks with exponents": _celled("rank", lambda rank: f"{rank}e0", lambda at: at % 3 == 0),
    "a rank with a comma": _celled("rank", lambda rank: f"{rank},0", lambda at: at == 4),
    "a method in capitals": _with(method=lambda at, row: "LoRA" if at == 4 else "lora"),
    "a seed short": lambda rows: rows[:-1],
    "each row twice": lambda rows: rows + rows,
    "thrice in a file": lambda rows: [row for row in rows for _ in range(3)],
    "once again, better": lambda rows: [*rows, rows[0] | {_column(rows, "score"): 0.95}],
    "epochs": _epochs("epoch"),
    "steps": _epochs("global_step"),
    "rounds": _epochs("round"),
    "failed attempts": _attempts("failed", kept=False),
    "crashed attempts": _attempts("crashed", kept=True),
    "a status of one's own": _attempts("kaputt", kept=True),
    "an index": _with(**{"Unnamed: 0": lambda at, _: at}),
    "numbers of rows": _with(row=lambda at, _: at),
    "precision and recall": _with(
        precision=lambda at, row: round(row[_column([row], "score")] - 0.01, 2),
        recall=lambda at, row: round(row[_column([row], "score")] + 0.01, 2),
    ),
    "another metric": _with(f1=lambda at, row: 1.6 - row[_column([row], "score")]),
    "a training's": _with(train_accuracy=_trained),
    "Keras": _with(val_accuracy=lambda at, row: row[_column([row], "score")], accuracy=_trained),
    "a validation's": _with(validation_accuracy=_trained),
    "paths": _with(output_dir=lambda at, row: f"out/{at}"),
    "unknown paths": _with(place=lambda at, row: f"out/{at}"),
    "notes": _with(notes=lambda at, row: f"run {at}", created_at=lambda at, row: f"2026-05-{at + 1}"),
    "alpha": _with(lora_alpha=lambda at, row: 2 * row[_column([row], "rank")]),
    "all parameters": _with(total_params=lambda at, row: 10**6 + 100 * row[_column([row], "rank")]),
    "folds": lambda rows: [row | {"fold": fold} for row in rows for fold in (0, 1)],
    "parts": lambda rows: [row | {"part": part} for row in rows for part in (0, 1)],
    "one column more of text": _with(variant=lambda at, row: "ab"[at % 2]),
    "no seed": _without("seed"),
    "no size": _without("size"),
    "no rank": _without("rank"),
    **{f"score {name}": _renamed("score", name) for name in (
        "acc", "test_accuracy", "eval_acc", "Accuracy", "sst2_accuracy", "metric", "value", "score", "top1", "neg_log_loss",
        "training_accuracy", "error_score", "train_acc", "quality", "loss_value", "brier_score",
    )},
    **{f"seed {name}": _renamed("seed", name) for name in ("Seed", "random_state", "run", "fold", "trial", "s", "data_seed")},
    **{f"size {name}": _renamed("size", name) for name in ("num_params", "weights", "total_params", "Trainable params", "n")},
    **{f"rank {name}": _renamed("rank", name) for name in ("lora_r", "r", "dim", "size_of_it", "group", "bottleneck")},
}  # fmt: skip


@pytest.fixture(scope="module")
def truth() -> PastSweep:
    return judge([_plain(*row) for row in TRAININGS]).record


INCOMPLETE = ("no rank", "rounds", "once again, better", "unknown paths", "folds")
"""Tables that lack what the verdict needs: their commands say something else, or cannot say it."""
CASES = [
    pytest.param(kind, change, marks=[] if kind == "plain" or change in ("same", "crashed attempts") else pytest.mark.slow)
    for kind in TABLES
    for change in CHANGES
]


@pytest.mark.parametrize(("kind", "change"), CASES)
def test_a_changed_table_is_judged_alike_or_refused(kind: str, change: str, truth: PastSweep, tmp_path: Path) -> None:
    rows = CHANGES[change]([TABLES[kind](*row) for row in TRAININGS])
    file = tmp_path / "changed.csv"
    call = Call(score="value", minimize=False) if kind == "optuna" and "value" in rows[0] else Call()
    pd.DataFrame(rows).to_csv(file, index=False)
    record, said = None, ""
    try:
        record = read_table(file, call).record
    except DataError as refusal:
        said = str(refusal)
    if record is not None:
        assert _agree(record, truth, change), [(row.label, row.planned, row.score.mean) for row in record.summaries]
        return
    commands = re.findall(r"^  (craft-sweeps judge .*)$", said, re.M)
    assert re.search(r"changed.csv, line \d+(: | and)", said) or commands
    if commands and change not in INCOMPLETE:
        assert any(_says(shlex.split(command), truth, change) for command in commands), said


def _says(command: list[str], truth: PastSweep, change: str) -> bool:
    """Whether a command that completes the call judges as the truth does."""
    _, _, file, *words = command
    call = dict[str, Any]()
    while words:
        name = words.pop(0).removeprefix("--")
        flag = {"minimize": {"minimize": True}, "maximize": {"minimize": False}, "independent": {"independent": True}}.get(name)
        call |= flag or {name: words.pop(0)}
    try:
        return _agree(read_table(Path(file), Call(**call)).record, truth, change)
    except DataError:
        return False


def _agree(record: PastSweep, truth: PastSweep, change: str) -> bool:
    """Whether both say the same of the same configurations."""
    mine, theirs = record.summaries, truth.summaries
    if change == "a seed short":
        return [row.planned for row in mine] == [3, 3, 3, 2]
    names = ("score", "p_enough", "p_front") if change not in ("no size", "no seed", "a validation's") else ("score",)
    names = names if "train" not in change.partition(" ")[2] or mine[0].score.mean > 0 else ("p_enough", "p_front")
    names = (*names, "trainable_parameters") if change not in ("no size", "sizes in thousands") else names
    numbers = [sorted(tuple(row.value(name) for name in names) for row in rows) for rows in (mine, theirs)]
    return len(mine) == len(theirs) and bool(np.allclose(*numbers, rtol=1e-4, atol=1e-9))


@pytest.mark.parametrize(
    ("line", "changes", "said"),
    [
        (4, {"accuracy": "n/a"}, "accuracy: got 'n/a'; a number"),
        (5, {"accuracy": ""}, "accuracy: it is empty; a number"),
        (6, {"seed": ""}, "seed: it is empty"),
        (7, {"params": "many"}, "params: got 'many'; a number"),
        (7, {"params": math.inf}, "params: got 'inf'; a number from 0"),
        (9, {"task": ""}, "task: it is empty; the name of its task"),
        (8, {"rank": 2, "seed": 1, "params": 200}, "line 8 and line 6 have equal settings and seed"),
        (3, {"params": "", "rank": 99}, "params: it is empty"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(line: int, changes: Mapping[str, Any], said: str, tmp_path: Path, cli: Cli) -> None:
    rows = plain_rows(task="toy")
    rows[line - 2] |= changes
    options = ["--score", "accuracy", "--size", "params"]
    printed = " ".join(cli("judge", str(write(tmp_path / "bad.csv", rows)), *options, status=2).err.split())
    assert f"bad.csv, line {line}" in printed
    assert said in printed


@pytest.mark.parametrize(
    ("head", "call", "said"),
    [
        ("rank,seed", Call(), "score: no column may be it"),
        ("rank,seed", Call(score="acc"), "no column 'acc'; the columns are: rank, seed"),
        ("rank,seed", Call(score="rank,seed"), "--score names one column, got rank,seed; name one"),
        ("rank,seed", Call(size="rank,seed"), "--size names one column, got rank,seed; name one"),
        ("rank,seed", Call(task="rank,seed"), "--task names one column, got rank,seed; name one"),
        ("rank,seed,accuracy,f1", Call(), "score: accuracy, f1 may be it"),
    ],
)
def test_what_no_column_says_is_asked_for(head: str, call: Call, said: str, tmp_path: Path) -> None:
    count = len(head.split(","))
    lines = lines_of(head, lambda rank, seed, value: ",".join(map(str, (rank, seed, value, round(1 - value, 5))[:count])))
    assert said in refusal(tmp_path, lines, call)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("method,acc_mean,acc_std,n\nlora,81.5,0.4,3\ndora,82.5,0.7,5\n", "acc_mean, acc_std: a row is one training"),
        ("rank,acc_seed0,acc_seed1\n1,81.5,81.9\n2,82.5,83.2\n", "acc_seed0, acc_seed1: a row is one training"),
        ("rank,metric,value\n1,acc,0.8\n1,loss,0.5\n2,acc,0.9\n2,loss,0.4\n", "metric: a row is one training"),
    ],
    ids=["means", "seeds in columns", "scores in rows"],
)
def test_rows_that_are_no_trainings_are_refused(lines: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path, lines)


def test_nothing_is_paired_by_the_order_of_rows(tmp_path: Path) -> None:
    rows = [
        f"{rank},{level + noise:.4f},{rank}00" for rank, level in ((1, 0.78), (4, 0.79)) for noise in (-0.08, -0.02, 0.03, 0.07)
    ]
    answers = set()
    for order in (rows, sorted(rows, key=lambda row: row.split(",")[1]), rows[::-1]):
        lines = "\n".join(["rank,accuracy,params", *order])
        assert "--independent" in refusal(tmp_path, lines)
        answer = read_lines(tmp_path, lines, Call(independent=True)).record.answer
        answers.add((answer.kind, answer.text))
    assert [kind for kind, _ in answers] == ["unsure"]

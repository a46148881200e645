"""Tables that are refused, with the line, the reason and the commands that make them ready."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.review.run_columns import Call
from tests.orchestrator.conftest import Cli
from tests.orchestrator.review.tables import (
    lines_of,
    plain_rows,
    read_lines,
    refusal,
    write,
)


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


def test_means_of_trainings_are_no_trainings(tmp_path: Path) -> None:
    said = refusal(tmp_path, "method,acc_mean,acc_std,n\nlora,81.5,0.4,3\ndora,82.5,0.7,5\n")
    assert "acc_mean, acc_std: a row is one training" in said


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

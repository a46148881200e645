"""Tables that are not judged as they are: what is said of them, and the commands that make them ready."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from craft.tasks.files import DataError
from orchestrator.commands.app import main
from orchestrator.plan.trial import TrialResult
from orchestrator.review.run_columns import Call
from orchestrator.review.run_table import read_table
from orchestrator.review.trials_file import write_trials
from tests.orchestrator.conftest import Cli
from tests.orchestrator.review.test_run_table import (
    LEVELS,
    SEEDS,
    judged_like,
    lines_of,
    past,
    plain_rows,
    score_of,
    trainings,
    write,
)


@pytest.mark.parametrize(
    ("line", "changes", "said"),
    [
        (4, {"accuracy": "n/a"}, "accuracy: got 'n/a'; a number"),
        (5, {"accuracy": ""}, "accuracy: it is empty; a number"),
        (6, {"seed": ""}, "seed: it is empty"),
        (7, {"params": "many"}, "params: got 'many'; a number"),
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


def test_a_file_without_a_score_or_a_named_column_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "none.csv", [{"rank": 1, "seed": 0}])
    with pytest.raises(ValueError, match="score: no column may be it"):
        read_table(file)
    with pytest.raises(ValueError, match="no column 'acc'; the columns are: rank, seed"):
        read_table(file, Call(score="acc"))
    for part in ("score", "size", "task"):
        with pytest.raises(DataError, match=f"--{part} names one column, got rank,seed; name one"):
            read_table(file, Call(**{part: "rank,seed"}))


def refusal(tmp_path: Path, lines: str, call: Call | None = None) -> str:
    """What is said of a table that is not judged."""
    (tmp_path / "table.csv").write_text(lines)
    with pytest.raises(DataError) as refused:
        read_table(tmp_path / "table.csv", call)
    return str(refused.value)


def test_two_metrics_with_one_value_in_each_row_are_asked_for(tmp_path: Path) -> None:
    said = refusal(tmp_path, lines_of("rank,seed,accuracy,f1", lambda rank, seed, value: f"{rank},{seed},{value},{1 - value}"))
    assert "score: accuracy, f1 may be it" in said


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


def test_seeds_in_columns_become_rows(tmp_path: Path) -> None:
    rows = (",".join([str(rank), str(100 * rank), *(f"{score_of(rank, seed)}" for seed in SEEDS)]) for rank in LEVELS)
    said = refusal(tmp_path, "\n".join(["rank,params,accuracy_seed0,accuracy_seed1,accuracy_seed2", *rows]))
    assert "a row is one training, with its seed in a column" in said
    judged_like(read_table(reshaped(said)), past(tmp_path))


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
        answers.add((answer.kind, answer.text))
    assert len(answers) == 1
    assert next(iter(answers))[0] == "unsure"


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


def test_texts_of_a_strangers_trials_are_no_commands_of_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "\x1b]0;owned\x07"
    entries = [
        replace(entry, trial=replace(entry.trial, label=bad + entry.trial.label, task=f"t{bad}"))
        for entry in past(tmp_path).entries
    ]
    failed = replace(entries[0], result=TrialResult(entries[0].key, "failed", error=bad))
    write_trials([failed, *entries[1:]], tmp_path / "trials.csv")
    main(["judge", str(tmp_path / "trials.csv")])
    out = "".join(capsys.readouterr())
    assert "owned" in out
    assert "\x1b" not in out
    assert "\x07" not in out


def test_runs_that_only_a_name_distinguishes_are_judged_by_it(tmp_path: Path) -> None:
    """As in Hugging Face's comparison of methods: objects in objects, a name for each run, one seed."""
    run = '{{"run_info": {{"experiment_name": "lora/r{0}", "seed": 0}}, "test_accuracy": {1}, "forgetting": {2}}}\n'
    (tmp_path / "runs.jsonl").write_text("".join(run.format(rank, 0.5 + rank / 100, rank / 7) for rank in (8, 16)))
    with pytest.raises(DataError, match=r"--by run_info\.experiment_name"):
        read_table(tmp_path / "runs.jsonl")
    table = read_table(tmp_path / "runs.jsonl", Call(by="run_info.experiment_name"))
    assert [row.label for row in table.record.summaries] == ["lora/r16", "lora/r8"]

"""Two sweeps compared: the numbers against scipy's paired t test and the refusals; rows on which answers differ, and the page
of mistakes; and trials written for others as a CSV."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from craft.audit.verdict import Answers, compare_answers
from craft.scoring.predictions import Prediction, credits_of, write_predictions
from orchestrator.adapters.model_card import mistakes_page
from orchestrator.commands.app import main
from orchestrator.plan.trial import Trial, TrialResult
from orchestrator.results.summary import Entry
from orchestrator.results.tuning import Tuning
from orchestrator.review.comparing import _step, compare_sweeps, differing
from orchestrator.review.past_sweep import read_folder
from orchestrator.review.trials_file import write_trials
from tests.benchmarks.trials import read_trials
from tests.orchestrator.conftest import Cli
from tests.orchestrator.recorded import over_seeds, record

NEW = (81.0, 84.5, 83.0, 82.0)
OLD = (78.0, 80.0, 81.5, 79.0)
FOUR = (0, 1, 2, 3)


@pytest.fixture
def sweeps(here: Path) -> None:
    """`new` and `old`: the old sweep's other configuration reports more, but was worse where the search could see."""
    other = over_seeds(99, 99, 99, 99, search=50)
    record(here / "new", {"LoRA r1": (100, over_seeds(*NEW, search=82))}, seeds=FOUR, facts={"metric": "accuracy"})
    record(here / "old", {"LoRA r1": (200, over_seeds(*OLD, search=79)), "LoRA r9": (900, other)}, seeds=FOUR)
    facts: tuple[dict[str, Any], ...] = ({"data_fingerprint": "e" * 64}, {"metric": "macro_f1"})
    changes = ({"model": "other/model"}, {"protocol": "customary"}, *({"facts": each} for each in facts))
    for number, change in enumerate(changes):
        record(here / f"other{number}", {"LoRA r1": (200, over_seeds(*OLD))}, seeds=FOUR, **change)


@pytest.fixture
def compare(tmp_path: Path, cli: Cli) -> Cli:
    return lambda *arguments, status=0: cli("compare", *arguments, "--storage", str(tmp_path), status=status)


@pytest.mark.usefixtures("sweeps")
def test_the_sentence_and_the_report_have_scipys_paired_interval(compare: Cli) -> None:
    """The best is chosen by the search score, and the longer search is named."""
    shown = compare("new", "old").out
    paired = stats.ttest_rel(NEW, OLD)
    low, high = paired.confidence_interval(0.95)
    assert f"LoRA r1 (new) beats LoRA r1 (old): {np.mean(NEW) - np.mean(OLD):+.2f} points" in shown
    assert f"95 % interval {low:+.2f} to {high:+.2f}, 4 shared seeds" in shown
    assert f"p = {paired.pvalue:.2g}" in shown
    assert "LoRA r9" not in shown
    assert "among 1 and 2 configurations" in shown
    report = compare("old", "new", "--json").report
    assert report["difference"] == {"value": -3.0, "low": pytest.approx(-high), "high": pytest.approx(-low), "seeds": 4}
    assert (report["higher"], report["p_value"]) == ("second", pytest.approx(paired.pvalue))
    assert "LoRA r1 (new) beats LoRA r1 (old): +3.00 points (LoRA r1 (old) minus LoRA r1 (new): " in report["sentence"]
    assert "LoRA r1 (new) is higher than " in compare("new", "old", "--metric", "search_score").out
    sides = [read_folder(Path(name)) for name in ("new", "old")]
    tables = [replace(side, state=replace(side.state, sweep_id="")) for side in sides]
    for two in (sides, tables):  # what they were read from, a store or tables, does not make them one
        assert compare_sweeps(*(replace(side, where="the same") for side in two)).sentence in shown


def test_only_shared_tasks_and_seeds_count_and_each_task_has_a_difference_of_its_own(tmp_path: Path, compare: Cli) -> None:
    both = ("toy/sentiment", "toy/paraphrase")
    other = over_seeds(70, 80) | over_seeds(65, 75, task="toy/paraphrase")
    record(tmp_path / "other", {"LoRA r1": (1, other)}, tasks=both)
    wide = over_seeds(80, 90) | over_seeds(60, 70, task="toy/paraphrase")
    record(tmp_path / "wide", {"LoRA r1": (1, wide)}, tasks=both)
    record(tmp_path / "narrow", {"LoRA r1": (1, over_seeds(80, 70, 10))}, seeds=(0, 1, 2))
    shown = compare("wide", "narrow").out
    for said in ("No difference", "+10.00 points", "2 shared seeds of 1 task"):
        assert said in shown
    shown = compare("wide", "other").out
    assert "toy/sentiment: +10.00 (+10.00 to +10.00, 2 seeds)" in shown
    assert "toy/paraphrase: -5.00" in shown


def test_equal_answers_do_not_show_that_two_are_equal(tmp_path: Path, compare: Cli) -> None:
    """Of 60 rows, as an audit has it: one row more may differ, to either side."""
    credits = credits_of(lambda rows: 100 * np.arange(60)[rows].mean() / 60, 60)
    for name in "ab":
        facts = credits | {"metric": "accuracy", "reported_examples": 60}
        record(tmp_path / name, {"x": (1, over_seeds(50, 50, 50))}, seeds=(0, 1, 2), facts=facts)
    shown = compare("a", "b").out
    labels = np.ones(60)
    audited = compare_answers(*[Answers("accuracy", (labels, labels))] * 2)
    assert "No difference between lora x (a) and lora x (b) is shown: +0.00 points" in shown
    assert compare("a", "b", "--json").report["higher"] is None
    low, high = map(float, re.findall(r"interval (\S+) to (\S+),", shown)[0])
    assert (low, high) == pytest.approx((audited.low, audited.high), rel=0.05)
    assert -3.8 < low < -3.3, "also of seeds: equal scores may differ by less than a row"
    both = ("toy/sentiment", "toy/paraphrase")
    scores = over_seeds(50, 50, 50) | over_seeds(50, 50, 50, task=both[1])
    for name in "cd":
        record(tmp_path / name, {"x": (1, scores)}, seeds=(0, 1, 2), tasks=both, facts=facts)
    assert f"toy/paraphrase: +0.00 ({low:+.2f} to {high:+.2f}, 3 seeds)" in compare("c", "d").out


def test_equal_differences_of_a_metric_are_no_proof(tmp_path: Path, compare: Cli) -> None:
    """The scores differ by one row of 200 with both seeds. A loss, which counts no rows, has no such step."""
    facts = {"metric": "accuracy", "search_examples": 200, "reported_examples": 400}
    for name, score in (("a", 80.5), ("b", 80.0)):
        record(tmp_path / name, {"LoRA r1": (1, over_seeds(score, score))}, facts=facts)
    assert "No difference" in compare("a", "b").out, "of two rows of 400"
    shown = compare("a", "b", "--metric", "search_score").out
    assert "No difference" in shown
    low = float(re.findall(r"interval (\S+) to ", shown)[0])
    assert low == pytest.approx(0.5 - stats.t.ppf(0.975, 1) * 0.5 / np.sqrt(12), abs=0.01)
    (run,) = [entry.finished for entry in read_folder(tmp_path / "a").state.requested][:1]
    steps = {"accuracy_mismatched": 0.25, "search_f1": 0.5, "search_loss": 0.0, "energy_kept": 0.0, "likelihood": 0.0}
    assert {name: _step(name, run) for name in steps} == steps


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("new", "odl"), 2, "Did you mean 'old'?"),
        (("new", "new"), 2, "with itself"),
        (("new", "other0"), 2, "some/model against other/model"),
        (("new", "other1"), 2, "honest against customary"),
        (("new", "other2"), 2, "data of toy/sentiment: data fingerprint ffffffffffff against eeeeeeeeeeee"),
        (("new", "old", "--configuration-a", "nonesuch"), 2, "--configuration-a 'nonesuch'"),
        (("new", "other3"), 2, "data of toy/sentiment: metric accuracy against macro_f1"),
        (("new", "old", "--metric", "f1"), 1, "none with f1"),
        (("new", "old", "--configuration-b", "under:10"), 1, "at most 10"),
    ],
)
@pytest.mark.usefixtures("sweeps")
def test_mistakes_and_what_means_something_else_are_sentences_with_a_status(
    arguments: tuple[str, ...], status: int, said: str, compare: Cli
) -> None:
    assert said in compare(*arguments, status=status).err


def test_a_task_of_the_users_own_is_read_without_its_files(tmp_path: Path) -> None:
    file = {"tasks": ["custom"], "data": {"custom": {"mine": {"train": "/gone.csv", "text": ["a"], "label": "b"}}}}
    scores = {"x": (1, over_seeds(80, 82, task="custom/mine"))}
    folder = record(tmp_path / "own", scores, tasks=("custom/mine",), file=file)
    (summary,) = read_folder(folder).summaries
    assert (summary.complete, summary.score.mean) == (True, 81.0)


def test_rows_that_differ_are_named_and_written(tmp_path: Path, compare: Cli) -> None:
    for name, answers in (("a", "xxyx"), ("b", "xyyy")):
        adapter = tmp_path / f"{name}-trial" / "adapter"
        adapter.mkdir(parents=True)
        lines = [
            {"row": row, "label": "x", "answer": answer, "right": answer == "x"} | ({"text": "sure"} if answer == "y" else {})
            for row, answer in zip((7, 9, 12, 31), answers, strict=True)
        ]
        write_predictions(adapter.parent / "predictions" / "reported.jsonl.gz", lines)
        record(tmp_path / name, {"LoRA r1": (1, over_seeds(75, 75))}, adapter=adapter)
    said = compare("a", "b", "--rows", str(tmp_path / "new" / "rows.csv")).out
    assert "toy/sentiment: 2 of 4 rows differ; LoRA r1 (a) is better on rows 9, 31." in said
    rows = list(csv.DictReader((tmp_path / "new" / "rows.csv").open()))
    assert [(row["row"], row["LoRA r1 (a)"], row["LoRA r1 (b)"], row["text"]) for row in rows] == [
        ("9", "x", "y", "sure"),
        ("31", "x", "y", "sure"),
    ]


def test_the_luck_of_tuning_is_in_the_difference_of_tuned_configurations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two independent choices add their variances; two sizes of one training have one choice."""
    record(tmp_path / "new", {"LoRA r1": (100, over_seeds(*NEW))}, seeds=FOUR)
    record(tmp_path / "old", {"LoRA r8": (90, over_seeds(*OLD)), "LoRA r9": (100, over_seeds(*OLD))}, seeds=FOUR)

    def compared(source: str | None, luck: float) -> tuple[float, str]:
        tuning = Tuning(4, lucks={"toy/sentiment": luck})
        sides = [read_folder(tmp_path / name) for name in ("new", "old")]
        for each in sides:
            rows = [replace(row, tuning=tuning, source=source) for row in each.summaries]
            each.__dict__["summaries"] = rows
        report = compare_sweeps(*sides, *(each.summaries[-1].configuration for each in sides))
        assert report.difference.low is not None
        assert report.difference.high is not None
        return (report.difference.high - report.difference.low) / 2, report.over

    low, high = stats.ttest_rel(NEW, OLD).confidence_interval(0.95)
    tuned, cuts = compared(None, 2.0), compared("whole", 2.0)
    assert cuts[0] == pytest.approx((high - low) / 2)
    of_seeds = ((high - low) / 2 / stats.t.ppf(0.975, 3)) ** 2
    degrees = 3 * ((of_seeds + 4) / of_seeds) ** 2  # Satterthwaite's: the luck is known
    assert tuned[0] == pytest.approx(stats.t.ppf(0.975, degrees) * np.sqrt(of_seeds + 4))
    assert (tuned[1], cuts[1]) == ("on these examples, tuning included", "on these examples")


def test_trials_are_one_csv_that_names_no_place(tmp_path: Path) -> None:
    configurations = {"LoRA r1": (100, over_seeds(81.5, 79)), "LoRA r2": (200, over_seeds(1 / 3, search=70))}
    folder = record(tmp_path / "runs" / "two", configurations, adapter=tmp_path / "checkpoint_000001" / "adapter")
    assert main(["export", str(folder), "--to", str(tmp_path / "out")]) == 0
    file = tmp_path / "out" / "trials.csv"
    assert pd.read_csv(file)["metric.score"].tolist() == [81.5, 79, 1 / 3]
    assert "checkpoint_" not in file.read_text(), "where an adapter lay says nothing elsewhere"


@pytest.mark.parametrize("value", ["", "12", "NaN", "nan", "none", "a,8", '"quoted"', "[1, 2", None, 0.1 + 0.2, True, [1, "a"]])
def test_a_parameter_is_read_as_it_was(tmp_path: Path, value: Any) -> None:
    result = TrialResult("1e5", "finished", {"score": 1.0})
    trial = Trial("1e5", "c", "label", "lora", "glue/rte", 0, "honest", {} if value is None else {"it": value})
    one = Entry(trial, result, "ended", begun=True)
    assert write_trials([one], tmp_path / "t.csv") == 1
    assert read_trials(tmp_path / "t.csv") == [one]


def classes(labels: str, answers: str) -> list[Prediction]:
    pairs = enumerate(zip(labels, answers, strict=True), 1)
    return [{"row": row, "label": label, "answer": answer, "right": label == answer} for row, (label, answer) in pairs]


def values(*errors: float) -> list[Prediction]:
    return [{"row": row, "label": 1.0, "answer": 1.0 + error} for row, error in enumerate(errors, 1)]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([classes("ab", "aa"), classes("ab", "bb")], [classes("ab", "ab"), classes("ab", "ab")], [(0, -0.5), (1, -0.5)]),
        ([values(0.5, -2.0)], [values(-0.25, 0.5)], [(1, -1.5), (0, -0.25)]),
        ([classes("ab", "ab")], [classes("ab", "ab")], []),
    ],
    ids=["mean over seeds", "values by their error", "nothing"],
)
def test_rows_that_differ_come_largest_first(
    first: list[list[Prediction]], second: list[list[Prediction]], expected: list[tuple[int, float]]
) -> None:
    assert differing(first, second) == expected


def test_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="different rows"):
        differing([classes("ab", "ab")], [classes("ba", "ab")])


def test_the_page_shows_markup_as_text_and_leaves_out_answers_without_a_label() -> None:
    lines = classes("ab", "bb")
    lines[0] |= {"probability": 0.9, "margin": 2.2, "text": "<b>free</b> | [money](http://x)"}
    page = mistakes_page("x", {"reported": lines, "unlabelled": [{"row": 1, "response": "hello"}]})
    assert "1 of 2 rows are right." in page
    assert "| a | 0 | 1 |\n| b | 0 | 1 |" in page
    (mistake,) = [line for line in page.splitlines() if line.startswith("| 1 |")]
    assert "<b>" not in mistake
    assert "\\[money\\]" in mistake
    assert "unlabelled" not in page
    assert mistakes_page("x", {"unlabelled": [{"row": 1}]}) == ""


def test_many_classes_are_listed_by_the_commonest_confusions() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    page = mistakes_page("x", {"reported": classes(letters + "aa", letters + "bb")})
    assert "| rows | label | answer |\n| --- | --- | --- |\n| 2 | a | b |\n\n" in page

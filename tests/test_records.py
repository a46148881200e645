"""Tables of docs/measurements and of the README that come from committed trials are what their commands make of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pytest

from dashboards.panels.front import published_rows
from orchestrator.plan.plan import make_plan
from orchestrator.plan.planner import Planner
from orchestrator.results.metrics import P_ENOUGH
from orchestrator.results.posterior import DRAWS
from orchestrator.sweepfile.load import load_sweep
from tests.benchmarks import (
    audited,
    begun,
    craft_found,
    cuts,
    default,
    enough,
    judged,
    ranked,
    recorded_front,
    starts,
)
from tests.benchmarks.means import means
from tests.benchmarks.trials import read_trials

ROOT = Path(__file__).parent.parent
MEASUREMENTS = ROOT / "docs/measurements"
RECORDS = MEASUREMENTS / "records"
TWELVE = [RECORDS / f"{name}.csv" for name in enough.FAIR]
"""Twelve methods on SST-2, STS-B and QQP."""
CRAFT_PAGE, FRONTS = ROOT / "docs/craft.md", MEASUREMENTS / "fronts.md"


@pytest.mark.slow
def test_what_is_enough() -> None:
    """A row that says what is enough survives each look at its own record by more than the noise of its draws."""
    readme = (ROOT / "README.md").read_text()
    assert "\n".join(enough.table()) in readme
    for row in enough.rows():
        margin = row.probability - enough.SURE - 2 * math.sqrt(enough.SURE * (1 - enough.SURE) / DRAWS)
        assert not row.decided or (margin > 0 and not row.other_rates), row.named.label


def test_the_default_sweep_after_one_seed_and_after_three() -> None:
    """No configuration is at the top of the scale, the record is of the shipped file, and more seeds change what is said."""
    readme, judged = (ROOT / "README.md").read_text(), (default.after(1), default.after(3))
    assert "\n".join(default.table(*judged)) in readme
    first, last = (judgement.answer.verdict for judgement in judged)
    assert first in (prose := " ".join(readme.split()))
    assert last in prose
    assert (judged[0].answer.kind, max(row.score.mean for row in judged[0].record.summaries) < 95) == ("one seed", True)
    plan = make_plan(sweep := load_sweep(ROOT / "sweeps/ranks.yaml"), Planner(sweep))
    assert {row.configuration for row in judged[1].record.summaries} == {row.id for row in plan.configurations}
    methods = {row.method for row in judged[1].record.summaries if row.on_front}
    assert {"craft", "lora"} <= methods


def _cells(lines: Iterable[str]) -> list[list[str]]:
    """Returns the cells of a table's rows, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [*lines][2:]]


def test_where_craft_is_on_the_front() -> None:
    assert "\n".join(craft_found.table()) in CRAFT_PAGE.read_text()


def test_the_front_of_twelve_methods() -> None:
    page, fronts = FRONTS.read_text(), [recorded_front.summaries_of(record) for record in TWELVE]
    assert recorded_front.side_by_side(fronts) in page
    prose = " ".join(page.split())
    means = [[row.score.mean for row in front if row.method != "head"] for front in fronts]
    heads = [next(row.score.mean for row in front if row.method == "head") for front in fronts]
    sst2, stsb, qqp = (f"{min(of) - head:.1f} to {max(of) - head:.1f}" for of, head in zip(means, heads, strict=True))
    assert f"beats the head alone, by {sst2} points on SST-2, {stsb} on STS-B and {qqp} on QQP" in prose
    at_end = [sum(bool(row.tuning.at_end) for row in front) for front in fronts]
    assert "for {}, {} and {} configurations the best value is the lowest or highest tried".format(*at_end) in prose
    trials = {str(row.tuning.trials) for front in fronts for row in front if row.method != "head"}
    assert trials <= {"3", "4"}, "the search begins next to a method's own rate"


def test_four_times_the_rows() -> None:
    """The tables of both records, and README's gain of each size."""
    page, readme = FRONTS.read_text(), " ".join((ROOT / "README.md").read_text().split())
    fewer, more = (pd.read_csv(RECORDS / f"rows-{count}.csv") for count in (1000, 4000))
    assert all("\n".join(means(trials)) in page for trials in (fewer, more))
    scores = (trials.groupby(["task", "label"])["metric.score"].mean() for trials in (more, fewer))
    gains = (next(scores) - next(scores)).dropna().groupby("task")
    sst2, qqp, stsb = (
        f"{gains.min()[f'glue/{task}']:.1f} to {gains.max()[f'glue/{task}']:.1f}" for task in ("sst2", "qqp", "stsb")
    )
    assert f"each size has {sst2} points more on SST-2, {qqp} on QQP, {stsb} on STS-B." in readme


def test_adapters_in_the_upper_layers() -> None:
    page, records = " ".join(FRONTS.read_text().split()), [RECORDS / f"{name}.csv" for name in ("rows-1000", "layers")]
    scores = pd.concat(map(pd.read_csv, records)).groupby(["label", "task"])["metric.score"].mean()
    lora, craft = (scores[name] - scores[f"{name}, top 3"] for name in ("LoRA r8, q v", "CRAFT 128, q v"))
    assert "loses {2:.1f} points on STS-B, {1:.1f} on SST-2 and {0:.1f} on QQP".format(*lora) in page
    assert "CRAFT {2:.1f}, {1:.1f} and {0:.1f}. A step".format(*craft) in page
    assert round((scores["LoRA r8, q v, top 3"] - scores["LoRA r8, q v, cut to 1/8"]).max(), 1) == 0.2


def test_the_papers_setting() -> None:
    record, page = RECORDS / "paper.csv", FRONTS.read_text()
    summaries = recorded_front.summaries_of(record)
    labels = ("Head alone", "CRAFT 100, q v", "LoRA r8, q v", "(IA)³ k v down", "BitFit biases", "Full fine-tuning all")
    rows = {label: next(row for row in summaries if row.label == label) for label in labels}
    prose = " ".join(page.split())
    for row in rows.values():
        assert f"{row.score.mean:.2f} ({row.counts[P_ENOUGH]:.2f})" in prose, row.label
        assert f"{row.value('trainable_parameters'):,.0f}" in page or row.method in ("head", "full")
    (whole,) = (summary for summary in summaries if summary.method == "craft" and summary.source is None)
    paper = next(row["values"] for row in published_rows() if (row["model"], row["method"]) == ("RoBERTa-base", "CRAFT"))
    stsb, sst2 = ((paper[f"score/{task}"], whole.tasks[f"glue/{task}"].mean) for task in ("stsb", "sst2"))
    assert f"has {stsb[0]} on STS-B and {sst2[0]} on SST-2, here {stsb[1]:.1f} and {sst2[1]:.1f}." in prose
    assert whole.value("trainable_parameters") == 40_288


def test_the_choice_of_a_rate() -> None:
    page = " ".join((MEASUREMENTS / "trust.md").read_text().split())
    luck = [recorded_front.mean_luck(recorded_front.summaries_of(record)) for record in TWELVE]
    assert "by {:.2f}, {:.2f} and {:.2f} points in the mean".format(*luck) in page


def test_the_rates_at_which_methods_begin() -> None:
    entries = [
        entry for task in ("trec", "ratings", "sick", "films") for entry in read_trials(RECORDS / f"starting-{task}.csv")
    ]
    page = (MEASUREMENTS / "trust.md").read_text()
    assert "\n".join(begun.table_of(begun.trainings(entries))) in page


def test_sizes() -> None:
    trials, page = pd.read_csv(RECORDS / "sizes.csv"), " ".join((ROOT / "docs/taking-it-home.md").read_text().split())
    gaps = {row[0].partition(": ")[0]: row[2] for row in _cells(cuts.differences(trials))}
    for label, sentence in {
        "CRAFT 128, q v, cut to 1/64": "A 64th of rank 128 loses {} points",
        "LoRA r8, q v, cut to 1/8": "there r8 loses {}.",
        "LoRA r8, q v, cut to 1/16": "a cut to half scores {} less",
    }.items():
        assert sentence.format(gaps.pop(label).removeprefix("-")) in page
    for label, gap in gaps.items():
        mean, width = map(float, gap.split(" ± "))
        assert mean + width > 0, f"{label} is shown to be worse"
    ratios = {row[0]: row[3].split(" to ") for row in _cells(cuts.seconds_until_front(trials))}
    (least, most) = (end(ratios[task][side] for task in ("sst2", "stsb")) for side, end in enumerate((min, max)))
    assert f"in {least} to {most} of the time" in page
    assert ratios["qqp"][1] == "never"


def test_where_the_head_starts() -> None:
    page = " ".join((ROOT / "docs/methods.md").read_text().split())
    for start, *cells in _cells(starts.starts(pd.read_csv(RECORDS / "head-start.csv"))):
        (sst2, stsb, sentiment) = (cell.partition("(lowest ")[2].rstrip(")") for cell in cells)
        assert f"{sst2}, {stsb} and {sentiment} with {start}" in page


def test_rates_of_ranks() -> None:
    trials, page = pd.read_csv(RECORDS / "rates.csv"), " ".join(CRAFT_PAGE.read_text().split())
    one_for_all, scaled = "\n".join(ranked.rates(trials)).strip().split("\n\n")
    (first, *others) = ((row[0], row[-1]) for row in _cells(one_for_all.splitlines()))
    falls = ", ".join([f"{first[1]} at rank {first[0]}", *(f"{rate} at {rank}" for rank, rate in others)])
    assert f"the best rate falls with the rank: {falls}." in page
    for row in _cells(scaled.splitlines()):
        rates = dict(zip(scaled.splitlines()[0].split(" | ")[1:-1], row[1:-1], strict=True))
        assert float(rates["0.004"]) == max(float(score) for score in rates.values() if score), row
    costs = {row[0]: row[3].split(", ") for row in _cells(ranked.one_rate(trials))}
    mean, most = costs["sst2, `none`"]
    assert f"by {mean} points in the mean and {most} at most under `none`" in page
    assert costs["sst2, `rank`"] == ["0.0", "0.0"]


@pytest.mark.parametrize("record", ["smollm2-commonsense", "smollm2-heads", "gemma3-commonsense"])
def test_scores_of_decoders(record: str) -> None:
    """All of the record are on the page, an adapter's larger sizes without its name."""
    page, named = " ".join(FRONTS.read_text().lower().split()), set[str]()
    for label, parameters, score in _cells(means(pd.read_csv(RECORDS / f"{record}.csv"), ["score"])):
        name, _, size = re.sub(r",? q v| k v down| all", "", label).partition(", ")
        shown = (size or "whole") if name in named else f"{name} {size}".strip()
        assert f" {shown} ({parameters}) {score}".lower() in page
        named.add(name)


@pytest.mark.parametrize(
    ("record", "title", "craft", "cut"),
    [
        ("smollm2-commonsense", "SmolLM2-135M, 1,000 texts", "CRAFT 64, q v", "cut to 1/4"),
        ("smollm2-mixture", "SmolLM2-135M, 14,400 texts (one seed)", "CRAFT 128, q v, lr 0.006", "cut to 1/15"),
        ("gemma3-commonsense", "Gemma 3 270M, 1,000 texts", "CRAFT 64, q v", "cut to 24 %"),
    ],
)
def test_what_craft_forgets(record: str, title: str, craft: str, cut: str) -> None:
    forgets = {row[0]: row[2] for row in _cells(means(pd.read_csv(RECORDS / f"{record}.csv"), ["forgetting"]))}
    rates = {"smollm2-mixture": (", lr 7e-4", ", lr 0.01")}.get(record, ("", ""))
    labels = (craft, f"{craft}, {cut}", f"LoRA r8, q v{rates[0]}", f"(IA)³ k v down{rates[1]}")
    assert f"| {title} | {' | '.join(forgets[label] for label in labels)} |" in CRAFT_PAGE.read_text()


def test_audits() -> None:
    rows, page = pd.read_csv(RECORDS / "audits.csv"), (MEASUREMENTS / "trust.md").read_text()
    assert rows[rows.kind == "whole"].adapter.nunique() == 34
    assert "\n".join(audited.verdicts(rows)) in page
    gains = {
        (task, size): float(cut.split()[0]) - float(own.split()[0])
        for task, size, cut, _, own in _cells(audited.beside_own(rows))
    }
    least, most = (
        {task: f"{end(gain for (name, _), gain in gains.items() if name == task):.1f}" for task in ("sst2", "tickets")}
        for end in (min, max)
    )
    prose = " ".join(page.split())
    assert f"by {least['sst2']} to {most['sst2']} points on SST-2 and by {least['tickets']} to {most['tickets']}" in prose
    behind, ahead = -gains["qqp", "36,864"], gains["qqp", "9,216"]
    assert f"On QQP it is {behind:.1f} behind at 36,864 parameters and {ahead:.1f} ahead at 9,216" in prose
    others = [row for row in _cells(audited.of_methods(rows)) if "vera" in row[0] or "lokr" in row[0]]
    losses = [float(row[2]) - float(cell) for row in others for part in row[3:] for cell in part.split(", ") if cell != "-"]
    assert f"loses {min(losses):.0f} to {max(losses):.0f} points" in prose


def test_published_tables_are_judged(tmp_path: Path) -> None:
    """One run each is not known, with the price of those in doubt; three runs each are judged."""
    (folder := tmp_path / "methods").mkdir()
    for name, score, size in (("lora", 0.50, 100), ("ia3", 0.49, 10), ("head", 0.10, 1)):
        trained = {"metrics": [{"test accuracy": 0.0}, {"test accuracy": score}], "num_trainable_params": size}
        run = {"run_info": {"experiment_name": name}, "train_info": trained | {"train_time": 3600}}
        (folder / f"{name}.json").write_text(json.dumps(run))
    once = [("org/once", rate, rank, 0.5 - rank / 1000 + rate, 60) for rank in (1, 64) for rate in (1e-4, 0.5)]
    thrice = [("org/thrice", 1e-4, rank, 0.5 + run / 10000, 60) for rank in (1, 64) for run in range(3)]
    table = pd.DataFrame([*once, *thrice], columns=["model", "learning_rate", "rank", "test_nll", "minutes"])
    table.to_csv(tmp_path / "lora.csv", index=False)
    judged.main([str(folder), str(tmp_path / "lora.csv"), "--to", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    rows = {cells[0]: cells[1:] for cells in _cells(line for line in page.splitlines() if line.startswith("|"))}
    assert rows["Llama-3.2-3B, methods, 3"] == ["ia3", "-", "2 of 3: lora, ia3", "4"]
    assert rows["once, 4"] == ["r64 1e-4", "-", "1 of 4: r64 1e-4", "2"]
    name, known, *_ = rows["thrice, 6"]
    assert (name, known.split(" (")[0]) == ("r1 1e-4", "enough: r1 1e-4")
    assert "known for 1 of the 3 models" in page

"""Tables of docs/measurements and of the README that come from committed trials are what their commands make of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from orchestrator.review.front_tables import markdown
from orchestrator.sweepfile.objectives import DEFAULT_OBJECTIVES
from tests.benchmarks import audited, chosen, cuts, enough, ranked, recorded_front, tuned
from tests.benchmarks.means import means

ROOT = Path(__file__).parent.parent
MEASUREMENTS = ROOT / "docs/measurements"
RECORDS = MEASUREMENTS / "records"


def test_what_is_enough() -> None:
    assert "\n".join(enough.table()) in (ROOT / "README.md").read_text()


def test_the_fair_front() -> None:
    record, page = RECORDS / "fair.csv", (MEASUREMENTS / "fair.md").read_text()
    summaries = recorded_front.summaries_of([record])
    assert markdown(summaries, DEFAULT_OBJECTIVES) in page
    trials = pd.read_csv(record)
    for table in tuned.TABLES:
        assert "\n".join(table(trials)) in page, table.__name__
    assert "\n".join(chosen.changes(summaries, trials)) in page
    (head,) = (summary for summary in summaries if summary.method == "head")
    assert all(summary.scores[key] > head.scores[key] for summary in summaries if summary is not head for key in head.scores)


def test_sizes() -> None:
    trials, page = pd.read_csv(RECORDS / "sizes.csv"), (ROOT / "docs/sizes.md").read_text()
    for table in cuts.TABLES:
        assert "\n".join(table(trials)) in page, table.__name__


def test_where_the_head_starts() -> None:
    assert "\n".join(means(pd.read_csv(RECORDS / "head-start.csv"))) in (MEASUREMENTS / "rates.md").read_text()


def test_rates_of_ranks() -> None:
    trials, page = pd.read_csv(RECORDS / "rates.csv"), (MEASUREMENTS / "rates.md").read_text()
    for table in ranked.TABLES:
        assert "\n".join(table(trials)).strip() in page, table.__name__
    of_rank_16 = trials[(trials["parameter.r2"] == 16) & (trials["parameter.rate_scaling"] == "none")]
    best = of_rank_16.sort_values("metric.score").iloc[-1]["parameter.learning_rate"]
    assert next(line for line in page.splitlines() if line.startswith("| 16 |")).endswith(f"| {best:g} |")


def test_a_decoder() -> None:
    page = (MEASUREMENTS / "smollm2.md").read_text()
    tests = ["accuracy_piqa", "accuracy_arc_easy", "accuracy_openbookqa"]
    for record in ("smollm2-commonsense", "smollm2-mixture"):
        assert "\n".join(means(pd.read_csv(RECORDS / f"{record}.csv"), ["score", *tests, "forgetting"])) in page
    assert "\n".join(means(pd.read_csv(RECORDS / "smollm2-heads.csv"))) in page


def test_audits() -> None:
    rows, page = pd.read_csv(RECORDS / "audits.csv"), (MEASUREMENTS / "audit.md").read_text()
    assert rows[rows.kind == "whole"].adapter.nunique() == 34
    for table in audited.TABLES:
        assert "\n".join(table(rows)) in page, table.__name__

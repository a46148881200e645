"""Each row of METRICS is a column of every table with no other line of code; what a record keeps gives the same cells."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboards.panels.table import data
from orchestrator.results.front import mark_front
from orchestrator.results.intervals import Interval
from orchestrator.results.metrics import EXPECTED, METRICS, P_ENOUGH, P_FRONT, Metric, amount
from orchestrator.results.summary import summarize_entries
from orchestrator.results.table import front_columns, metric_column
from orchestrator.review.front_tables import latex, markdown, write_csv
from orchestrator.state.entry import Entry, TrialResult
from tests.dashboards.synthetic import configuration
from tests.dashboards.views import view_of

JUDGED = (P_FRONT, P_ENOUGH, EXPECTED)
MADE_UP = Metric("hops", "hops taken", "minimize", digits=3, averaged=True)


def entries(name: str = "", values: tuple[float, float] = (0.0, 0.0)) -> list[Entry]:
    """Two configurations with two seeds; the count `name` differs by seed and configuration."""
    rows = []
    for place, value in enumerate(values):
        for seed in (0, 1):
            counts = {"trainable_parameters": 100.0 * (place + 1)} | ({name: value + seed} if name else {})
            metrics = {"score": 70.0 + place + seed, "search_score": 60.0}
            result = TrialResult(f"{place}{seed}", "finished", metrics, counts, seconds=counts.get("seconds", 0.0))
            rows.append(
                Entry(result.key, f"c{place}", f"lora r{place}", "lora", "toy", seed, "honest", {"rank": place}, result)
            )
    return rows


ROWS = [row for row in (*METRICS.values(), MADE_UP) if row.name != "score"]


@pytest.mark.parametrize("metric", ROWS, ids=lambda row: row.name)
def test_a_metric_is_one_row(metric: Metric, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(METRICS, metric.name, metric)
    objectives: Any = {"score": "maximize", metric.name: metric.better}
    summaries = mark_front(summarize_entries(entries(metric.name, (3.0, 7.0))), objectives)
    if metric.name not in JUDGED:
        assert [summary.value(metric.name) for summary in summaries] == ([3.5, 7.5] if metric.averaged else [4.0, 8.0])
    (column,) = [column for column in front_columns(summaries, objectives) if column.key == metric.name]
    assert (column.label, column.kind, column.digits) == (metric.label, metric.kind, metric.decimals)
    shown = [column.text(summary) for summary in summaries]
    assert shown == [amount(metric.name, summary.value(metric.name)) for summary in summaries]
    write_csv(summaries, objectives, tmp_path / "front.csv")
    assert metric.name in (tmp_path / "front.csv").read_text().splitlines()[0].split(",")
    if not metric.name.startswith(("p_", "trainable")):
        assert all(cell.replace("%", "\\%") in latex(summaries, objectives) for cell in shown)
    assert all(cell in markdown(summaries, objectives) for cell in shown)


@pytest.mark.parametrize("metric", [row for name, row in METRICS.items() if row.place != "objective"], ids=lambda row: row.name)
def test_the_page_has_a_metrics_column_with_its_kind_and_digits(metric: Metric) -> None:
    if metric.name.startswith("tuning_") or metric.name in JUDGED:
        return  # the page has a column of words for the first; the others are computed
    runs = configuration("a", parameters=100, extra={metric.name: 10.0})
    runs += configuration("b", parameters=200, extra={metric.name: 20.0})
    columns = {column["key"]: column for column in data(view_of(("ranks", runs)))["columns"]}
    column = columns[f"m.{metric.name}"]
    assert (column["kind"], column["digits"]) == (metric.kind, metric.decimals)
    assert column.get("more", False) == (metric.place == "menu")


def test_a_cell_has_its_interval_where_there_is_one() -> None:
    (first, *_) = summarize_entries(entries())
    column = metric_column("score")
    widened = replace(first, metrics={"score": Interval(70.0, 65.0, 75.0, 2)})
    assert (column.text(widened), column.value(widened)) == ("70.00 ± 5.00", 70.0)
    assert metric_column("score", ends=False).text(widened) == "70.00"
    assert metric_column("forgetting").text(first) == "–"
    assert math.isnan(front_columns([first], {"score": "maximize"})[1].value(first))

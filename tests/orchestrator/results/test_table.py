"""Each row of COLUMNS is a column of every table with no other line of code; what a record keeps gives the same cells."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from orchestrator.results.front import mark_front
from orchestrator.results.metrics import COLUMNS, EXPECTED, P_ENOUGH, P_FRONT, Column, amount, unit_of
from orchestrator.results.summary import summarize_entries
from orchestrator.review.desired_runs import desired_configuration
from orchestrator.review.front_report import front_report, row_model
from orchestrator.review.front_tables import front_columns, latex, markdown, metric_column, terminal_table, write_csv
from orchestrator.review.past_sweep import read_folder
from orchestrator.sweepfile.settings import Objectives
from tests.dashboards.synthetic import configuration
from tests.dashboards.views import draw, view_of
from tests.orchestrator.recorded import entry, over_seeds, printed, record

JUDGED = (P_FRONT, P_ENOUGH, EXPECTED)


def test_a_size_that_differs_between_seeds_shows_both_ends() -> None:
    sizes = {"c": (4101.0, 3992.0), "equal": (4101.0, 4101.0)}
    differ, equal = summarize_entries(
        entry(name, {"score": 70.0}, seed=seed, counts={"trainable_parameters": size})
        for name, both in sizes.items()
        for seed, size in enumerate(both)
    )
    assert metric_column("trainable_parameters").parts(differ) == ("4,101", " (from 3,992)")
    assert (differ.value("trainable_parameters"), differ.value("fewest_parameters")) == (4101.0, 3992.0)
    assert metric_column("trainable_parameters").text(equal) == "4,101"


MEASURED = [row for row in COLUMNS.values() if row.better and not row.read and row.name not in ("score", "search_score")]


@pytest.mark.parametrize("metric", MEASURED, ids=lambda row: row.name)
def test_a_metric_is_a_column_where_it_is_an_objective(metric: Column) -> None:
    assert metric.better
    objectives: Objectives = {"score": "maximize", metric.name: metric.better}
    found = []
    for place, seed in product((0, 1), (0, 1)):
        counts = {"trainable_parameters": 100.0 * (place + 1), metric.name: 3.0 + 4 * place + seed}
        one = entry(f"c{place}", {"score": 70.0 + place + seed}, seed=seed, counts=counts)
        found.append(replace(one, result=replace(one.result, seconds=counts.get("seconds", 0.0))))
    summaries = mark_front(summarize_entries(found), objectives)
    if metric.name not in JUDGED:
        assert [summary.value(metric.name) for summary in summaries] == ([3.5, 7.5] if metric.averaged else [4.0, 8.0])
    (column,) = [column for column in front_columns(summaries, objectives) if column.name == metric.name]
    cells = [column.parts(summary)[0] for summary in summaries]
    assert cells == [amount(metric.name, summary.value(metric.name)) for summary in summaries]
    if not metric.name.startswith(("p_", "trainable")):
        assert all(cell.replace("%", "\\%") in latex(summaries, objectives) for cell in cells)
    if metric.place != "objective" and not metric.name.startswith("tuning_") and metric.name not in JUDGED:
        # Of tuning the page has a column of words, and the judged ones it computes.
        runs = configuration("a", parameters=100, extra={metric.name: 10.0})
        runs += configuration("b", parameters=200, extra={metric.name: 20.0})
        columns = draw("table", view_of(("ranks", runs)))["columns"]
        (shown,) = [column for column in columns if column["key"] == f"m.{metric.name}"]
        assert (shown["kind"], shown["about"], shown.get("more", False)) == (metric.kind, metric.about, metric.place == "menu")


def test_a_new_column_is_one_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    thousand_more = lambda row: 1000.0 + row.value("trainable_parameters")  # noqa: E731
    hops = Column("hops", "hops taken", "minimize", "count", "How often it hops.", place="front", read=thousand_more)
    monkeypatch.setitem(COLUMNS, "hops", hops)
    sweep = read_folder(record(tmp_path / "s", {"LoRA a": (1, over_seeds(80, 81)), "LoRA b": (2, over_seeds(82, 85))}))
    summaries, objectives = sweep.summaries, sweep.sweep.objectives
    shown = printed(lambda console: console.print(terminal_table(summaries, objectives)))
    tables = [shown, markdown(summaries, objectives)]
    assert all(text in table for table in tables for text in ("hops taken", "1,001", "1,002"))
    assert "1,002" in latex(summaries, {**objectives, "hops": "minimize"})
    write_csv(summaries, objectives, tmp_path / "front.csv")
    assert [row["hops"] for row in csv.DictReader((tmp_path / "front.csv").open())] == ["1001", "1002"]
    rows = json.loads(front_report(sweep).to_json())["rows"]
    assert [row["hops"] for row in rows] == [1001, 1002]
    assert row_model().model_json_schema(mode="serialization")["properties"]["hops"]["description"] == "How often it hops."
    (first, *_) = summaries
    desired = desired_configuration(sweep.trials(first.configuration), first, None, sweep.state, "sqlite:///x.db")
    assert desired.metrics["hops"] == 1001
    page = view_of(("ranks", [*configuration("a", parameters=1), *configuration("b", parameters=2)]))
    (column,) = [column for column in draw("table", page)["columns"] if column["key"] == "m.hops"]
    assert (column["label"], column["about"], column["texts"]) == ("Hops taken", "How often it hops.", ["1,001", "1,002"])


@pytest.mark.parametrize(
    ("name", "value", "shown", "unit"),
    [
        ("trainable_parameters", 9216.0, "9,216", ""),
        ("peak_memory_bytes", 844197888.0, "805.1 MiB", "MiB"),
        ("seconds", 450.7, "7 min 31 s", "min"),
        ("step_seconds", 0.2248, "225 ms", "ms"),
        ("energy_kept", 0.1294, "13 %", "%"),
        ("p_front", 0.9995, "1.00", ""),
        ("score/rte", -0.001, "0.00", ""),
        ("an_older_one", 0.123456, "0.1235", ""),
    ],
)
def test_an_amount_is_written_with_its_unit(name: str, value: float, shown: str, unit: str) -> None:
    assert amount(name, value) == shown
    factor, word = unit_of(name, [value, None])
    assert word == unit
    assert value / factor == pytest.approx(value / {"MiB": 2**20, "min": 60, "ms": 1e-3, "%": 1e-2}.get(unit, 1))

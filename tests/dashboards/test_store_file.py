"""What is read from an SQLite store's file is what MLflow's own API reads from it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from dashboards.frames import RunRow
from dashboards.store import Store
from dashboards.store_file import StoreFile, Wanted
from tests.dashboards.synthetic import START, FakeRun, configuration, grid, sweep_run, write_sweep

StoreAt = Callable[[str, Iterable[FakeRun]], Store]


@pytest.fixture
def both(store_at: StoreAt) -> tuple[Store, Store]:
    """The same store by its file and by the API: two sweeps, all states, values that are hard to hold, a deleted run."""
    states = {("toy", 0): "failed", ("toy", 1): "running", ("toy", 2): "stopped"}
    runs = [sweep_run("one"), *grid("one", seeds=1)[:6]]
    runs += configuration("states", scores={"toy": [1.0, 2.0, 3.0]}, states=states, summarize=False)
    runs += configuration(
        "values", params={"name": "a'b\"c; drop table runs --"}, extra={"nan": float("nan"), "inf": float("inf")}
    )
    direct = store_at("one", runs)
    client = MlflowClient(direct.uri)
    client.delete_run(write_sweep(client, "one", configuration("deleted"))[0])
    write_sweep(client, "two", [sweep_run("two")])
    return direct, Store(direct.uri, direct=False)


def rows(store: Store, name: str, wanted: Wanted) -> dict[str, str]:
    found: list[RunRow] = store.search(store.feed(name).experiment_id, wanted)
    assert len(found) >= len({row.run_id for row in found})
    # by text, in which a NaN equals itself
    return {
        row.run_id: repr([row.status, row.started, row.ended, *(sorted(part.items()) for part in parts(row))]) for row in found
    }


def parts(row: RunRow) -> tuple[dict, dict, dict]:  # type: ignore[type-arg]
    return dict(row.params), dict(row.tags), dict(row.metrics)


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(kind="sweep"),
        Wanted(kind="configuration"),
        Wanted(kind="trial"),
        Wanted(running=True),
        Wanted(started_since=START + 1),
        Wanted(running=True, started_since=START + 50_001, ended_since=START + 100_000),
    ],
    ids=["sweep", "configurations", "trials", "running", "started since", "changeable"],
)
def test_both_ways_of_reading_find_the_same(both: tuple[Store, Store], wanted: Wanted) -> None:
    direct, by_api = both
    found = rows(direct, "one", wanted)
    assert found == rows(by_api, "one", wanted)
    assert found
    assert (direct.mlflow_seconds, by_api.mlflow_seconds > 0) == (0.0, True)
    assert direct.sweeps() == by_api.sweeps()


def test_both_ways_give_the_same_curves(both: tuple[Store, Store]) -> None:
    direct, by_api = both
    runs = [(row.run_id, 1) for row in direct.search(direct.feed("one").experiment_id, Wanted(kind="trial"))]
    found = direct.curves(runs, "search_score")
    assert found == by_api.curves(runs, "search_score")
    assert sorted(map(len, found.values()))[-1] == 3


def test_nothing_is_asked_of_a_file_that_nobody_has_written_to(both: tuple[Store, Store]) -> None:
    direct, _ = both
    feed = direct.feed("one")
    feed.refresh()
    read: list[Wanted] = []
    search = direct.search
    direct.search = lambda experiment, wanted: read.append(wanted) or search(experiment, wanted)  # type: ignore[method-assign, func-returns-value]
    assert not feed.refresh()
    assert read == []
    MlflowClient(direct.uri).set_tag(feed.snapshot()[1].trials["run_id"].iloc[0], "craft.label", "another")
    assert feed.refresh(full=True)
    assert "another" in set(feed.snapshot()[1].trials["label"])


def test_tables_that_are_not_mlflows_are_left_to_mlflow(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("create table runs (run_uuid text)")
    (tmp_path / "text.db").write_text("no database")
    assert StoreFile.open(tmp_path / "other.db") is None
    assert StoreFile.open(tmp_path / "text.db") is None

"""The ledger: what it has taken is there after any crash, and one driver at a time writes it."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest

from orchestrator.record.ledger import Ledger
from orchestrator.record.lock import one_driver
from orchestrator.state.entry import TrialResult


def test_a_result_reads_back_as_it_was_added(tmp_path: Path) -> None:
    result = TrialResult(
        "k1", "finished", {"score": 81.5, "search_loss": float("nan")}, {"trainable_parameters": 10}, 12, 3.5, notes=["n"]
    )
    Ledger(tmp_path).add(result)
    read = Ledger(tmp_path).results()["k1"]
    assert read.metrics["score"] == 81.5
    assert read.metrics["search_loss"] != read.metrics["search_loss"]
    assert (read.status, read.steps, read.seconds, read.notes, read.counts) == (
        "finished",
        12,
        3.5,
        ["n"],
        {"trainable_parameters": 10},
    )


def test_the_last_line_of_a_key_holds(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(TrialResult("k1", "failed", error="its process died", retryable=True))
    ledger.add(TrialResult("k1", "finished", {"score": 1.0}))
    assert ledger.results()["k1"].status == "finished"


def test_finished_are_those_with_nothing_left_to_run(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(TrialResult("done", "finished"))
    ledger.add(TrialResult("early", "stopped"))
    ledger.add(TrialResult("wrong", "failed", error="loss is NaN"))
    ledger.add(TrialResult("crashed", "failed", error="its process died", retryable=True))
    ledger.add(TrialResult("broken off", "interrupted"))
    assert set(ledger.finished()) == {"done", "early", "wrong"}


def test_failed_trials_are_opened_again_by_new_lines(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(TrialResult("done", "finished"))
    ledger.add(TrialResult("wrong", "failed", error="loss is NaN", seconds=3.0))
    ledger.add(TrialResult("crashed", "failed", error="its process died", retryable=True))
    assert ledger.reopen_failed() == 2
    assert set(Ledger(tmp_path).finished()) == {"done"}
    again = Ledger(tmp_path).results()["wrong"]
    assert (again.error, again.seconds, again.notes) == ("loss is NaN", 3.0, ["to be run again: --retry-failed"])
    lines = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    assert [(line["key"], line["retryable"]) for line in lines if line["key"] == "wrong"] == [("wrong", False), ("wrong", True)]
    ledger.add(TrialResult("wrong", "failed", error="loss is NaN"))
    assert set(Ledger(tmp_path).finished()) == {"done", "wrong"}


def test_a_line_torn_at_any_byte_costs_that_line_only(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(TrialResult("k1", "finished", {"score": 1.0}))
    whole = ledger.path.stat().st_size
    ledger.add(TrialResult("k2", "finished", {"score": 2.0}))
    ledger.close()
    content = ledger.path.read_bytes()
    for cut in (whole + 1, whole + 20, len(content) - 1):
        ledger.path.write_bytes(content[:cut])
        assert set(Ledger(tmp_path).results()) == {"k1"}
        again = Ledger(tmp_path)
        again.add(TrialResult("k3", "finished"))
        again.close()
        assert set(Ledger(tmp_path).results()) == {"k1", "k3"}


def test_no_ledger_is_no_results(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "absent").results() == {}
    assert not (tmp_path / "absent").exists()


def test_a_driver_that_died_leaves_the_folder_free(tmp_path: Path) -> None:
    other = multiprocessing.get_context("fork").Process(target=_die_driving, args=(tmp_path,))
    other.start()
    other.join()
    assert other.exitcode == 9
    with one_driver(tmp_path):
        pass


def _die_driving(folder: Path) -> None:
    with one_driver(folder):
        os._exit(9)


@pytest.mark.parametrize(
    "line",
    [
        {"key": "k2"},
        {"status": "finished"},
        {"key": "k2", "status": "finished", "metrics": {"score": "high"}},
        {"key": "k2", "status": "finished", "counts": {"trainable_parameters": None}},
        {"key": "k2", "status": "finished", "evil": 1},
    ],
)
def test_a_line_that_is_no_result_is_refused_with_its_place(tmp_path: Path, line: dict[str, object]) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(TrialResult("k1", "finished", {"score": 1.0}))
    with ledger.path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=r"ledger.*the line that ends at byte \d+ is no trial's result .*Remove that line"):
        Ledger(tmp_path).results()

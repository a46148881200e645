"""A snapshot gives what the fold of the whole log gives, and is not trusted where the log or the code is another one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from orchestrator.record.folder import SweepFolder
from orchestrator.reports import judged
from orchestrator.reports.status import read_status, status_report
from orchestrator.state import log as logs
from orchestrator.state import snapshot
from orchestrator.state.log import read_events, read_state
from orchestrator.state.snapshot import load_snapshot
from orchestrator.state.state import State, fold
from tests.orchestrator.logged import SweepLog, entry, story


@pytest.fixture(autouse=True)
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WORTH_BYTES", 0)


def test_it_is_the_fold_and_is_read_from_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "demo" / "log.jsonl"
    for _ in story(tmp_path / "demo"):
        state = read_state(path)
        whole = fold(event for event, _ in read_events(path))
        saved, end = load_snapshot(path)
        # NaN is not equal to itself.
        assert repr(state) == repr(whole) == repr(saved)
        assert end == path.stat().st_size


def test_numbers_that_json_does_not_have_come_back(tmp_path: Path) -> None:
    log = SweepLog(tmp_path)
    trial = entry(parameters={"dropout": math.inf})
    log.start(trial)
    log.finish(trial, metrics={"score": math.nan})
    assert repr(read_state(tmp_path / "log.jsonl")) == repr(load_snapshot(tmp_path / "log.jsonl")[0])


def test_a_log_that_was_changed_and_other_code_are_folded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, log = tmp_path / "log.jsonl", SweepLog(tmp_path)
    log.start(entry())
    before = path.read_bytes()
    log.train(entry())
    assert read_state(path).entries[entry().key].ended
    path.write_bytes(before)
    assert load_snapshot(path) == (State(), 0)
    assert not read_state(path).entries[entry().key].ended
    assert load_snapshot(path)[1] == len(before)
    monkeypatch.setattr(snapshot, "code_digest", lambda folder: "another version")
    assert load_snapshot(path) == (State(), 0)
    (tmp_path / ".log.state").write_bytes(b"{damaged")
    assert load_snapshot(path) == (State(), 0)


def test_status_judges_again_only_if_something_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged, "MANY", 0)
    log, times, answer_of = SweepLog(tmp_path), list[int](), judged.answer_of
    monkeypatch.setattr(judged, "answer_of", lambda state: times.append(1) or answer_of(state))
    first, second = entry(8), entry(16)
    log.start(first, second)
    log.train(first)
    read_status(tmp_path)
    log.report(second, 10)
    report = read_status(tmp_path)
    assert len(times) == 1
    assert report.answer is not None
    assert report.answer.configuration == first.trial.configuration
    log.train(second, scores={second.key: 99.0})
    log.close()
    report = read_status(tmp_path)
    assert len(times) == 2
    state = read_state(SweepFolder(tmp_path).record)
    assert (report.answer, report.next) == ((again := status_report(state, tmp_path, None, 0.0)).answer, again.next)

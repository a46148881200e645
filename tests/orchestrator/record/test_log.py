"""A log that cannot be read as it was written: each command names the line and what to do."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

import pytest

from orchestrator.record.events import FORMAT
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import CHECKSUM, SUFFIX, DamagedLog, LiveState, OtherVersion, read_events, read_state
from orchestrator.record.state import State
from tests.orchestrator.conftest import Cli
from tests.orchestrator.driven import driving
from tests.orchestrator.logged import SweepLog, entry, story
from tests.orchestrator.record.played import plan_of


def test_it_is_the_fold_and_is_read_from_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "demo" / "log.jsonl"
    live = LiveState(path)
    for _ in story(tmp_path / "demo"):
        live.read()
        state = State()
        for event, _ in read_events(path):
            state = state.after(event)
        # NaN is not equal to itself.
        assert repr(live.state) == repr(state) == repr(read_state(path))
        assert live.offset == path.stat().st_size
        assert not live.read()


def test_a_state_is_not_changed_by_what_comes_after_it(tmp_path: Path) -> None:
    log, trial = SweepLog(tmp_path), entry()
    log.start(trial)
    live = LiveState(tmp_path / "log.jsonl")
    live.read()
    before = live.state
    log.train(trial)
    live.read()
    assert live.state.entries[trial.key].ended
    assert not before.entries[trial.key].ended


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trial, sweep = entry(), SweepLog(tmp_path / "demo")
    sweep.start(trial)
    sweep.train(trial)
    sweep.close()
    (tmp_path / "demo" / "sweep.yaml").write_text(
        "{name: demo, model: m, tasks: [toy/paraphrase], seeds: [0], space: [{method: lora, rank: 1}], "
        f"tracking: {{uri: 'sqlite:///{tmp_path}/mlflow.db'}}}}"
    )
    return tmp_path / "demo"


def change(folder: Path, line: int, old: str, new: str, *, with_checksum: bool = False) -> None:
    """Replaces a text in a line of the log, by an editor or by a writer that computes the checksum."""
    lines = SweepFolder(folder).record.read_bytes().splitlines(keepends=True)
    assert old.encode() in lines[line - 1]
    text = lines[line - 1].replace(old.encode(), new.encode())
    if with_checksum:
        body, before = text[:-SUFFIX], lines[line - 2][-SUFFIX:-3][-8:] if line > 1 else b"0"
        text = body + CHECKSUM % zlib.crc32(body, int(before, 16))
    SweepFolder(folder).record.write_bytes(b"".join([*lines[: line - 1], text, *lines[line:]]))


@pytest.mark.parametrize("command", ["status {}", "front {}", "export {} --to out", "replay {}", "pause {}"])
def test_each_command_names_the_line_in_which_a_digit_has_changed(
    command: str, folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    change(folder, 8, '"score":80.0', '"score":90.0')
    assert re.search(
        r"log\.jsonl, line 8 is damaged.*truncate -s \d+ \S+log\.jsonl", cli(*command.format(folder).split(), status=2).err
    )


@pytest.mark.parametrize("command", ["status {}", "front {}", "export {} --to out"])
def test_no_command_takes_the_log_of_another_sweep_for_this_one(
    command: str, folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    (folder / "sweep.yaml").write_text("name: other\n")
    assert "is the log of the sweep 'demo' and not of 'other'" in cli(*command.format(folder).split(), status=2).err


def test_a_session_does_not_begin_on_a_damaged_log(folder: Path) -> None:
    change(folder, 8, "Ended", "Endet")
    with pytest.raises(DamagedLog, match="line 8"), driving(plan_of("grid", 0), folder):
        pass


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"status":"finished"', '"status":5', "result.status"),
        ('"score":80.0', '"score":"80"', "result.metrics.score"),
        ('"steps":30', '"steps":[]', "result.steps"),
        ('"notes":[]', '"notes":{}', "result.notes"),
        ('"adapter":null', '"adapters":null', "adapters"),
        ('"Ended"', '"Endet"', "no event of a sweep"),
        ('"facts":{', '"facts":' + "[" * 5000 + "{", "no Ended of a sweep"),
    ],
)
def test_wrong_types_are_named_even_with_a_checksum(old: str, new: str, why: str, folder: Path) -> None:
    change(folder, 8, old, new, with_checksum=True)
    with pytest.raises(DamagedLog, match=rf"line 8 is damaged.*{re.escape(why)}"):
        read_state(SweepFolder(folder).record)


def test_the_log_of_another_version_is_called_that(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    change(folder, 1, f'"format":{FORMAT},"version":"0.1.0"', f'"format":{FORMAT + 1},"version":"7.5"', with_checksum=True)
    for command in ("status", "replay"):
        assert "was written by version 7.5 of craft-sweeps" in cli(command, str(folder), status=2).err
    old = {"event": "Opened", "time": 1.0, "sweep": "demo", "sweep_id": "5"}
    SweepFolder(folder).record.write_text(json.dumps(old) + "\n")
    with pytest.raises(OtherVersion, match="was written by an older version"):
        read_state(SweepFolder(folder).record)

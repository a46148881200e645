"""The log on a real disk: whole lines only, one writer, nothing lost by a crash but what had not returned; and a log that was
changed, whose message names the line and what to do."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import zlib
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from orchestrator.record.events import FORMAT
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import (
    BOM,
    CHECKSUM,
    SUFFIX,
    DamagedLog,
    Log,
    OtherVersion,
    read,
    read_state,
)
from tests.orchestrator.conftest import Cli
from tests.orchestrator.logged import SweepLog, entry
from tests.orchestrator.plans import driving
from tests.orchestrator.record.played import plan_of


def events(path: Path, offset: int = 0) -> list[dict]:
    return [json.loads(text) for text, _ in read(path, offset)]


def test_every_cut_of_a_log_leaves_a_log_and_what_a_crash_left_is_cut_at_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with closing(Log(path)) as log:
        ends = [0, *(log.write([{"n": n, "text": "ä" * n}]) for n in range(6))]
    content = path.read_bytes()
    for left in (*(content[:length] for length in range(len(content))), content + b"\x00" * 4, content + b"x" * 200_000):
        path.write_bytes(left)
        kept = sum(end <= len(left) for end in ends) - 1
        assert [event["n"] for event in events(path)] == list(range(kept))
        Log(path).close()
        assert path.stat().st_size == ends[kept]


@pytest.mark.parametrize(("number", "refused"), [(errno.ENOSYS, False), (errno.EAGAIN, True), (errno.EIO, True)])
def test_a_log_is_written_on_a_disk_without_flock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, refused: bool
) -> None:
    def flock(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("orchestrator.record.log.fcntl.flock", flock)
    with pytest.raises((OSError, ValueError)) if refused else nullcontext(), closing(Log(tmp_path / "log.jsonl")) as log:
        assert log.write([{"n": 1}])


@pytest.fixture
def eight(tmp_path: Path) -> Path:
    """A log of eight events."""
    path = tmp_path / "a log.jsonl"
    with closing(Log(path)) as log:
        log.write({"event": "Ended" if n % 2 else "Reported", "n": n} for n in range(1, 9))
    return path


def run(message: str, command: str, path: Path) -> None:
    """Runs the command that a message advises, as a person would copy it."""
    found = re.search(rf"{command}.*? '{re.escape(str(path))}'", message)
    assert found is not None, message
    subprocess.run(["bash", "-c", found[0]], check=True)


@pytest.mark.parametrize(
    "damaged", [b"not json", b"", b'{"n":4}', b"\x00" * 30, b'{"n":4,"crc32":"%08x"}' % zlib.crc32(b'{"n":4')]
)
def test_a_damaged_line_is_named_with_a_command_that_keeps_the_lines_before_it(eight: Path, damaged: bytes) -> None:
    lines = eight.read_bytes().splitlines(keepends=True)
    content = b"".join([*lines[:3], damaged + b"\n", *lines[4:]])
    eight.write_bytes(content)
    for offset in (0, len(b"".join(lines[:2]))):
        with pytest.raises(DamagedLog, match=r"line 4 is damaged.*loses 5 lines \(2 Ended, 2 Reported\)") as error:
            events(eight, offset)
    Log(eight).close()
    assert eight.read_bytes() == content, "only a reader may judge it"
    run(str(error.value), "truncate", eight)
    with closing(Log(eight)) as log:
        log.write([{"n": 4}])
    assert [event["n"] for event in events(eight)] == [1, 2, 3, 4]


ORDERS = {"1245678": 3, "2345678": 1, "12375648": 4, "1234567812345678": 9, "12345678abc": 9, "abc12345678": 4, "12a45678": 3}
"""Lines of a log and of another one (abc), and the first that is in a wrong place."""


@pytest.mark.parametrize("order", ORDERS)
def test_lines_that_are_missing_moved_doubled_or_of_another_log_are_noticed(eight: Path, tmp_path: Path, order: str) -> None:
    other = tmp_path / "other.jsonl"
    with closing(Log(other)) as log:
        log.write({"n": n, "sweep": "other"} for n in range(3))
    lines = dict(zip("12345678abc", eight.read_bytes().splitlines(True) + other.read_bytes().splitlines(True), strict=True))
    eight.write_bytes(b"".join(lines[name] for name in order))
    with pytest.raises(DamagedLog, match=f"line {ORDERS[order]} is damaged, or lines are missing before it"):
        events(eight)


ADDED = {
    "CRLF line ends": lambda text: text.replace(b"\n", b"\r\n"),
    "blanks or empty lines": lambda text: text.replace(b"\n", b" \t\n"),
    "blanks or empty": lambda text: text.replace(b"\n", b"\n\n"),
    "a byte order mark": lambda text: BOM + text.replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("added", ADDED)
def test_what_a_program_added_around_all_lines_is_one_message_and_one_command(eight: Path, added: str) -> None:
    before = eight.read_bytes()
    eight.write_bytes(ADDED[added](before))
    with pytest.raises(DamagedLog, match=f"added {added}") as error:
        events(eight)
    assert "truncate" not in str(error.value)
    run(str(error.value), "sed", eight)
    assert eight.read_bytes() == before
    eight.write_text("".join(json.dumps(event) + "\n" for event in events(eight)))
    with pytest.raises(DamagedLog, match=r"line 1 is damaged.*so it is with every other line.*loses 8 lines"):
        events(eight)


def test_a_second_writer_is_refused_and_a_full_disk_leaves_no_half_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "log.jsonl", os.pwrite

    def full(file: int, content: bytes, offset: int) -> int:
        if offset >= 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, bytes(content)[:12], offset)

    with closing(Log(path)) as log:
        log.write([{"n": 1}])
        with pytest.raises(ValueError, match=r"log\.jsonl is being written by another process"):
            Log(path)
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            log.write([{"n": 2}, {"n": 3}, {"n": 4}])
        monkeypatch.setattr(os, "pwrite", real)
        assert events(path) == [{"n": 1}]
        log.write([{"n": 5}])
    assert events(path) == [{"n": 1}, {"n": 5}]


def test_a_writer_killed_at_any_moment_loses_nothing_it_was_told_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    program = (
        "import sys; from pathlib import Path; from orchestrator.record.log import Log\n"
        f"log = Log(Path({str(path)!r}))\n"
        "for n in range(10**6):\n"
        "    log.write([{'n': n, 'text': 'x' * 500}])\n"
        "    print(n, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as writer:
        written = next(number for number in map(int, writer.stdout) if number == 40)
        writer.kill()
    Log(path).close()
    numbers = [event["n"] for event in events(path)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > written


@pytest.fixture
def folder(here: Path) -> Path:
    trial, sweep = entry(), SweepLog(here / "demo")
    sweep.start(trial)
    sweep.train(trial)
    sweep.close()
    tracking = f"tracking: {{uri: 'sqlite:///{here}/mlflow.db'}}"
    space = "tasks: [toy/paraphrase], seeds: [0], space: [{method: lora, rank: 1}]"
    (here / "demo" / "sweep.yaml").write_text(f"{{name: demo, model: m, {space}, {tracking}}}")
    return here / "demo"


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
def test_no_command_takes_a_damaged_log_or_that_of_another_sweep(command: str, folder: Path, cli: Cli) -> None:
    whole, call = SweepFolder(folder).record.read_bytes(), command.format(folder).split()
    change(folder, 8, '"score":80.0', '"score":90.0')
    assert re.search(r"log\.jsonl, line 8 is damaged.*truncate -s \d+ \S+log\.jsonl", cli(*call, status=2).err)
    with pytest.raises(DamagedLog, match="line 8"), driving(plan_of("grid", 0), folder):
        pass
    SweepFolder(folder).record.write_bytes(whole)
    (folder / "sweep.yaml").write_text("name: other\n")
    if call[0] in ("status", "front", "export"):
        assert "is the log of the sweep 'demo' and not of 'other'" in cli(*call, status=2).err


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('"score":80.0', '"score":"80"', "result.metrics.score"),
        ('"adapter":null', '"adapters":null', "adapters"),
        ('"Ended"', '"Endet"', "no event of a sweep"),
        ('"facts":{', '"facts":' + "[" * 5000 + "{", "no Ended of a sweep"),
    ],
)
def test_wrong_types_are_named_even_with_a_checksum(old: str, new: str, why: str, folder: Path) -> None:
    change(folder, 8, old, new, with_checksum=True)
    with pytest.raises(DamagedLog, match=rf"line 8 is damaged.*{re.escape(why)}"):
        read_state(SweepFolder(folder).record)


def test_the_log_of_another_version_is_called_that(folder: Path, cli: Cli) -> None:
    change(folder, 1, f'"format":{FORMAT},"version":"0.1.0"', f'"format":{FORMAT + 1},"version":"7.5"', with_checksum=True)
    for command in ("status", "replay"):
        assert "was written by version 7.5 of craft-sweeps" in cli(command, str(folder), status=2).err
    old = {"event": "Opened", "time": 1.0, "sweep": "demo", "sweep_id": "5"}
    SweepFolder(folder).record.write_text(json.dumps(old) + "\n")
    with pytest.raises(OtherVersion, match="was written by an older version"):
        read_state(SweepFolder(folder).record)

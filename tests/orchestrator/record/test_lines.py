"""The journal on a real disk: whole lines only, one writer, nothing lost by a crash but what had not returned."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.record import log as module
from orchestrator.record.log import BOM, DamagedLog, Log, read


def events(path: Path, offset: int = 0) -> list[dict]:
    return [json.loads(text) for text, _ in read(path, offset)]


def test_events_come_back_in_order_and_from_any_offset(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    with closing(Log(path)) as journal:
        first = journal.write([{"n": 1, "text": "Zeile\nzwei <b>·</b> 日本"}])
        second = journal.write([{"n": 2}, {"n": 3}])
        assert second == path.stat().st_size
        assert events(path) == [{"n": 1, "text": "Zeile\nzwei <b>·</b> 日本"}, {"n": 2}, {"n": 3}]
        assert events(path, first) == [{"n": 2}, {"n": 3}]
        assert [offset for _, offset in read(path)][-1] == second
        assert journal.write([{"n": 4}]) > second
    assert events(path, second) == [{"n": 4}]
    assert events(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize("torn", [b'{"n": 2', b'{"n": 2}', b"\x00\x00\x00\x00", b"x" * 200_000])
def test_what_a_crash_left_half_written_is_not_read_and_is_cut_at_the_next_start(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    with closing(Log(path)) as journal:
        whole = journal.write([{"n": 1}])
    with path.open("ab") as stream:
        stream.write(torn)
    assert events(path) == [{"n": 1}]
    with closing(Log(path)) as journal:
        assert path.stat().st_size == whole
        journal.write([{"n": 3}])
    assert events(path) == [{"n": 1}, {"n": 3}]


def test_every_cut_of_a_log_leaves_a_log(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with closing(Log(path)) as journal:
        ends = [0, *(journal.write([{"n": n, "text": "ä" * n}]) for n in range(6))]
    content = path.read_bytes()
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        kept = sum(end <= length for end in ends) - 1
        assert [event["n"] for event in events(path)] == list(range(kept))
        Log(path).close()
        assert path.stat().st_size == ends[kept]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "a journal.jsonl"
    with closing(Log(path)) as journal:
        journal.write({"event": "Ended" if n % 2 else "Reported", "n": n} for n in range(1, 9))
    return path


def run(message: str, command: str, path: Path) -> None:
    """Runs the command that a message advises, as a person would copy it."""
    found = re.search(rf"{command}.*? '{re.escape(str(path))}'", message)
    assert found is not None, message
    subprocess.run(["bash", "-c", found[0]], check=True)


@pytest.mark.parametrize(
    "damaged", [b"not json", b"[1]", b"", b'{"n":4}', b"\x00" * 30, b'{"n":4,"crc32":"%08x"}' % zlib.crc32(b'{"n":4')]
)
def test_a_damaged_line_is_named_with_a_command_that_keeps_the_lines_before_it(log: Path, damaged: bytes) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    content = b"".join([*lines[:3], damaged + b"\n", *lines[4:]])
    log.write_bytes(content)
    for offset in (0, len(b"".join(lines[:2]))):
        with pytest.raises(DamagedLog, match=r"line 4 is damaged.*loses 5 lines \(2 Ended, 2 Reported\)") as error:
            events(log, offset)
    Log(log).close()
    assert log.read_bytes() == content, "only a reader may judge it"
    run(str(error.value), "truncate", log)
    assert [event["n"] for event in events(log)] == [1, 2, 3]
    with closing(Log(log)) as journal:
        journal.write([{"n": 4}])
    assert [event["n"] for event in events(log)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("order", "number"),
    [
        ("1245678", 3),
        ("2345678", 1),
        ("12375648", 4),
        ("1233456788", 4),
        ("1234567812345678", 9),
        ("12345678abc", 9),
        ("abc12345678", 4),
        ("12a45678", 3),
    ],
)
def test_lines_that_are_missing_moved_doubled_or_of_another_log_are_noticed(
    log: Path, tmp_path: Path, order: str, number: int
) -> None:
    other = tmp_path / "other.jsonl"
    with closing(Log(other)) as journal:
        journal.write({"n": n, "sweep": "other"} for n in range(3))
    lines = dict(zip("12345678abc", log.read_bytes().splitlines(True) + other.read_bytes().splitlines(True), strict=True))
    log.write_bytes(b"".join(lines[name] for name in order))
    with pytest.raises(DamagedLog, match=f"line {number} is damaged, or lines are missing before it"):
        events(log)


ADDED = {
    "CRLF line ends": lambda text: text.replace(b"\n", b"\r\n"),
    "a byte order mark": lambda text: BOM + text,
    "blanks or empty lines": lambda text: text.replace(b"\n", b" \t\n"),
    "blanks or empty": lambda text: text.replace(b"\n", b"\n\n"),
    "a byte order": lambda text: BOM + text.replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("added", ADDED)
def test_what_a_program_added_around_all_lines_is_one_message_and_one_command(log: Path, added: str) -> None:
    before = log.read_bytes()
    log.write_bytes(ADDED[added](before))
    with pytest.raises(DamagedLog, match=f"added {added}") as error:
        events(log)
    assert "truncate" not in str(error.value)
    run(str(error.value), "sed", log)
    assert log.read_bytes() == before


def test_a_log_whose_json_was_written_anew_is_not_cut_line_by_line(log: Path) -> None:
    log.write_text("".join(json.dumps(event) + "\n" for event in events(log)))
    with pytest.raises(DamagedLog, match=r"line 1 is damaged.*so it is with every other line.*loses 8 lines"):
        events(log)


def test_each_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with closing(Log(path)) as journal:
        journal.write([{"score": 91.25}])
    line = path.read_bytes()
    for place in range(8 * (len(line) - 1)):
        path.write_bytes(bytes(byte ^ (1 << place % 8 if number == place // 8 else 0) for number, byte in enumerate(line)))
        with pytest.raises(DamagedLog):
            events(path)


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with closing(Log(path)) as journal:
        journal.write([{"n": 1}])
        with pytest.raises(ValueError, match=r"journal\.jsonl"):
            Log(path)
        assert events(path) == [{"n": 1}]
    Log(path).close()


def test_a_full_disk_leaves_no_half_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    real = os.pwrite

    def full(file: int, content: bytes, offset: int) -> int:
        if offset >= 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, bytes(content)[:12], offset)

    with closing(Log(path)) as journal:
        journal.write([{"n": 1}])
        monkeypatch.setattr(module.os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            journal.write([{"n": 2}, {"n": 3}, {"n": 4}])
        monkeypatch.setattr(module.os, "pwrite", real)
        assert events(path) == [{"n": 1}]
        journal.write([{"n": 5}])
    assert events(path) == [{"n": 1}, {"n": 5}]


def test_a_writer_killed_at_any_moment_loses_nothing_it_was_told_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    program = (
        "import sys; from pathlib import Path; from orchestrator.record.log import Log\n"
        f"journal = Log(Path({str(path)!r}))\n"
        "for n in range(10**6):\n"
        "    journal.write([{'n': n, 'text': 'x' * 500}])\n"
        "    print(n, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as writer:
        told = -1
        for line in writer.stdout:
            told = int(line)
            if told == 40:
                writer.kill()
                break
    with closing(Log(path)):
        numbers = [event["n"] for event in events(path)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > told
    assert all(json.loads(line) for line in path.read_text().splitlines())

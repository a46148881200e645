"""The journal on a real disk: whole lines only, one writer, nothing lost by a crash but what had not returned."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.tools import journal as module
from orchestrator.tools.journal import DamagedLog, Journal, read


def events(path: Path, offset: int = 0) -> list[dict]:
    return [json.loads(text) for text, _ in read(path, offset)]


def test_events_come_back_in_order_and_from_any_offset(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    with closing(Journal(path)) as journal:
        first = journal.extend([{"n": 1, "text": "Zeile\nzwei <b>·</b> 日本"}])
        second = journal.extend([{"n": 2}, {"n": 3}])
        assert second == path.stat().st_size
        assert events(path) == [{"n": 1, "text": "Zeile\nzwei <b>·</b> 日本"}, {"n": 2}, {"n": 3}]
        assert events(path, first) == [{"n": 2}, {"n": 3}]
        assert [offset for _, offset in read(path)][-1] == second
        assert journal.extend([{"n": 4}]) > second
    assert events(path, second) == [{"n": 4}]
    assert events(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize("torn", [b'{"n": 2', b'{"n": 2}', b"\x00\x00\x00\x00", b"x" * 200_000])
def test_what_a_crash_left_half_written_is_not_read_and_is_cut_at_the_next_start(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    with closing(Journal(path)) as journal:
        whole = journal.extend([{"n": 1}])
    with path.open("ab") as stream:
        stream.write(torn)
    assert events(path) == [{"n": 1}]
    with closing(Journal(path)) as journal:
        assert path.stat().st_size == whole
        journal.extend([{"n": 3}])
    assert events(path) == [{"n": 1}, {"n": 3}]


def test_every_cut_of_a_journal_leaves_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with closing(Journal(path)) as journal:
        ends = [0, *(journal.extend([{"n": n, "text": "ä" * n}]) for n in range(6))]
    content = path.read_bytes()
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        kept = sum(end <= length for end in ends) - 1
        assert [event["n"] for event in events(path)] == list(range(kept))
        Journal(path).close()
        assert path.stat().st_size == ends[kept]


@pytest.mark.parametrize(
    "damaged", [b"not json", b"[1]", b"", b'{"n":2}', b"\x00" * 30, b'{"n":3,"crc32":"%08x"}' % zlib.crc32(b'{"n":2')]
)
def test_a_damaged_line_is_named_with_its_remedy(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "a journal.jsonl"
    with closing(Journal(path)) as journal:
        journal.extend([{"n": 1}, {"n": 2}, {"n": 3}])
    first, _, third = path.read_bytes().splitlines(keepends=True)
    for offset, lines in ((0, [first, damaged + b"\n", third]), (len(first), [first, damaged + b"\n"])):
        path.write_bytes(b"".join(lines))
        with pytest.raises(DamagedLog, match=rf"line 2 is damaged.*sed -i 2d '{path}'"):
            events(path, offset)
        Journal(path).close()
        assert path.read_bytes() == b"".join(lines), "only a reader may judge it"
    path.write_bytes(first + third)
    assert events(path) == [{"n": 1}, {"n": 3}]


def test_each_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with closing(Journal(path)) as journal:
        journal.extend([{"score": 91.25}])
    line = path.read_bytes()
    for place in range(8 * (len(line) - 1)):
        path.write_bytes(bytes(byte ^ (1 << place % 8 if number == place // 8 else 0) for number, byte in enumerate(line)))
        with pytest.raises(DamagedLog):
            events(path)


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with closing(Journal(path)) as journal:
        journal.extend([{"n": 1}])
        with pytest.raises(ValueError, match=r"journal\.jsonl"):
            Journal(path)
        assert events(path) == [{"n": 1}]
    Journal(path).close()


def test_a_full_disk_leaves_no_half_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    real = os.pwrite

    def full(file: int, content: bytes, offset: int) -> int:
        if offset >= 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, bytes(content)[:12], offset)

    with closing(Journal(path)) as journal:
        journal.extend([{"n": 1}])
        monkeypatch.setattr(module.os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            journal.extend([{"n": 2}, {"n": 3}, {"n": 4}])
        monkeypatch.setattr(module.os, "pwrite", real)
        assert events(path) == [{"n": 1}]
        journal.extend([{"n": 5}])
    assert events(path) == [{"n": 1}, {"n": 5}]


def test_a_writer_killed_at_any_moment_loses_nothing_it_was_told_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    program = (
        "import sys; from pathlib import Path; from orchestrator.tools.journal import Journal\n"
        f"journal = Journal(Path({str(path)!r}))\n"
        "for n in range(10**6):\n"
        "    journal.extend([{'n': n, 'text': 'x' * 500}])\n"
        "    print(n, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = -1
        for line in writer.stdout:
            told = int(line)
            if told == 40:
                writer.kill()
                break
    with closing(Journal(path)):
        numbers = [event["n"] for event in events(path)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > told
    assert all(json.loads(line) for line in path.read_text().splitlines())

"""The journal on a real disk: whole lines only, one writer, nothing lost by a crash but what had not returned."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.tools import journal as module
from orchestrator.tools.journal import Journal, read


def events(path: Path, offset: int = 0) -> list[dict]:
    return [event for event, _ in read(path, offset)]


def test_events_come_back_in_order_and_from_any_offset(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    with Journal(path) as journal:
        first = journal.append({"n": 1, "text": "Zeile\nzwei <b>·</b> 日本"})
        second = journal.extend([{"n": 2}, {"n": 3}])
        assert journal.size == second == path.stat().st_size
        assert events(path) == [{"n": 1, "text": "Zeile\nzwei <b>·</b> 日本"}, {"n": 2}, {"n": 3}]
        assert events(path, first) == [{"n": 2}, {"n": 3}]
        assert [offset for _, offset in read(path)][-1] == second
        assert journal.append({"n": 4}) > second
    assert events(path, second) == [{"n": 4}]
    assert events(tmp_path / "absent.jsonl") == []


@pytest.mark.parametrize("torn", [b'{"n": 2', b'{"n": 2}', b"\x00\x00\x00\x00", b'\x00\x00\n{"n"', b"\n"])
def test_what_a_crash_left_half_written_is_not_read_and_is_cut_at_the_next_start(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        whole = journal.append({"n": 1})
    with path.open("ab") as stream:
        stream.write(torn)
    assert events(path) == [{"n": 1}]
    with Journal(path) as journal:
        assert journal.size == whole
        journal.append({"n": 3})
    assert path.read_bytes() == b'{"n":1}\n{"n":3}\n'


def test_every_cut_of_a_journal_leaves_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        ends = [0, *(journal.append({"n": n, "text": "ä" * n}) for n in range(6))]
    content = path.read_bytes()
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        kept = sum(end <= length for end in ends) - 1
        assert [event["n"] for event in events(path)] == list(range(kept))
        with Journal(path) as journal:
            assert journal.size == ends[kept]


def test_a_long_last_line_is_found_across_blocks(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"n": 1})
        whole = journal.append({"text": "x" * 300_000})
    with path.open("ab") as stream:
        stream.write(b"y" * 200_000)
    with Journal(path) as journal:
        assert journal.size == whole


def test_a_damaged_line_in_the_middle_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"n":1}\nnot json\n[1]\n{"n":2}\n')
    assert events(path) == [{"n": 1}, {"n": 2}]


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"n": 1})
        with pytest.raises(ValueError, match=r"journal\.jsonl"):
            Journal(path)
        assert events(path) == [{"n": 1}]
    Journal(path).close()


def test_a_full_disk_leaves_no_half_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    real = os.pwrite

    def full(file: int, content: bytes, offset: int) -> int:
        if offset >= 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, bytes(content)[:12], offset)

    with Journal(path) as journal:
        journal.append({"n": 1})
        monkeypatch.setattr(module.os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            journal.extend([{"n": 2}, {"n": 3}, {"n": 4}])
        monkeypatch.setattr(module.os, "pwrite", real)
        assert path.read_bytes() == b'{"n":1}\n'
        journal.append({"n": 5})
    assert events(path) == [{"n": 1}, {"n": 5}]


def test_a_writer_killed_at_any_moment_loses_nothing_it_was_told_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    program = (
        "import sys; from pathlib import Path; from orchestrator.tools.journal import Journal\n"
        f"journal = Journal(Path({str(path)!r}))\n"
        "for n in range(10**6):\n"
        "    journal.append({'n': n, 'text': 'x' * 500})\n"
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
    with Journal(path) as journal:
        numbers = [event["n"] for event in events(path)]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) > told
        assert journal.size == path.stat().st_size
    assert all(json.loads(line) for line in path.read_text().splitlines())

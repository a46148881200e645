"""Screens whose readers leave, signals, text on its way to logs, spreadsheets and narrow places, and a folder that a person
names: it gets its whole content or nothing, wherever it is."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.tools.filling import filled, is_empty, write_table
from orchestrator.tools.markup import shorten
from orchestrator.tools.quiet import noise_to_log
from orchestrator.tools.signals import Stop

PROGRAM = """
import sys
from orchestrator.tools.quiet import lasting_stdout
stream = lasting_stdout()
print("first", file=stream, flush=True)
sys.stdin.readline()
for _ in range(3):
    print("x" * 100_000, file=stream, flush=True)
sys.exit(5)
"""


def test_a_program_continues_after_its_reader_has_left() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"first\n"
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait() == 5


def test_the_log_gets_no_password(tmp_path: Path) -> None:
    with noise_to_log(tmp_path / "sweep.log"):
        print("http://me:it's5ecret@h/x is away")
        print("http://me:it's5ecret@h/x is away", file=sys.stderr)
    assert (tmp_path / "sweep.log").read_text() == 2 * "http://***@h/x is away\n"


@pytest.mark.parametrize(("code", "status"), [(signal.SIGTERM, 143), (1, 1)])
def test_a_sweep_that_is_ended_while_ray_starts_has_the_shells_status(code: int, status: int) -> None:
    with pytest.raises(SystemExit) as ended, Stop(lambda _: None).watching(lambda: None, lambda _: None):
        raise SystemExit(code)
    assert ended.value.code == status


@pytest.mark.parametrize(("before", "stops"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)], ids=["a terminal", "nohup"])
def test_a_closed_terminal_stops_a_sweep_unless_nohup_says_otherwise(
    before: signal.Handlers, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("os.pipe2", raising=False)  # macOS has none
    kept, stop = signal.signal(signal.SIGHUP, before), Stop(lambda _: None)
    try:
        with stop.watching(lambda: None, lambda _: None):
            os.kill(os.getpid(), signal.SIGHUP)
            while stops and not stop.asked:
                stop._over.wait(0.01)
        assert stop.asked == stops
        assert stop.signal == (signal.SIGHUP if stops else None)
    finally:
        signal.signal(signal.SIGHUP, kept)


FORMULAS = ["=HYPERLINK(1)", "@SUM(A1)", "+cmd|x", "-1+1", " =A1", "\t=A1", "\r\n@A", "\uff1dA1", "-inf", "-nan"]
OTHERS = ["-1", "+2.5e-3", "a=b", "", "\u2212 1"]


@pytest.mark.parametrize("cell", [*FORMULAS, *OTHERS])
def test_formulas_are_texts_and_other_cells_stay(cell: str, tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", [{cell: cell, "n": -1.5}], ["b"])
    names, cells = csv.reader((tmp_path / "t.csv").open(newline=""))
    written = f"'{cell}" if cell in FORMULAS else cell
    assert (names, cells) == (["b", written, "n"], ["", written, "-1.5"])


def test_long_names_stay_different() -> None:
    same = "LoRA r8, q k v o gate up down, learning rate "
    names = [f"{same}{rate}, epochs {epochs}" for rate in ("1e-3", "3e-3") for epochs in (1, 2, 10)]
    names += ["short", "x" * 200, f"{'x' * 100}y{'x' * 99}", f"{'x' * 199}y", "another " * 20]
    for most in (24, 30, 56):
        cut = shorten(names, most)
        assert len({*cut}) == len(names)
        assert all(len(short) <= most and ("…" in short) == (short != name) for name, short in zip(names, cut, strict=True))
    assert shorten([names[-1]], 10) == ["another a…"]


def write(folder: Path, size: int = 1000) -> None:
    (folder / "task").mkdir(parents=True)
    (folder / "task" / "weights").write_bytes(b"w" * size)
    (folder / "README.md").write_text("card")


def content(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


WHOLE = ["README.md", "task/weights"]


@pytest.mark.parametrize("to", ["out", "deep/er/out", "empty", "link", "link to nothing", "."])
def test_a_folder_of_any_kind_gets_the_content(tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, target in (("link", "real"), ("link to nothing", "absent")):
        (tmp_path / name).symlink_to(target)
    for name in ("empty", "real"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "empty" if to == "." else tmp_path)
    inode = Path(to).stat().st_ino if Path(to).exists() else None
    with filled(Path(to)) as aside:
        write(aside)
        assert to != "out" or not Path(to).exists()
    assert content(Path(to)) == WHOLE
    assert inode in (None, Path(to).stat().st_ino), "a shell that is in the folder would see nothing"
    assert not [path for path in tmp_path.rglob(".*") if path.is_dir()]


def test_a_mounted_disk_gets_the_content_without_a_copy(disk: Path) -> None:
    with filled(disk) as aside:
        write(aside, 700_000)
    assert content(disk) == WHOLE


@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_is_named_and_keeps_nothing(disk: Path, there: bool) -> None:
    to = disk if there else disk / "out"
    source = disk.parent / "source"
    write(source, 2_000_000)
    no_room = rf"{disk} has no room for what is to be in {to} \(.*iB are free\)"
    with pytest.raises(ValueError, match=no_room), filled(to) as aside:
        shutil.copytree(source, aside)
    assert content(disk) == []
    assert is_empty(disk)
    with filled(to) as aside:
        write(aside)
    assert content(to) == WHOLE


def test_a_full_disk_of_working_files_is_the_one_that_is_named(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    with pytest.raises(ValueError, match=f"^{disk} has no room"), filled(tmp_path / "out"), (disk / "x").open("wb") as stream:
        stream.write(b"x" * 2_000_000)
    assert not (tmp_path / "out").exists()


def test_what_a_killed_process_left_is_no_content_and_goes(tmp_path: Path) -> None:
    to = tmp_path / "out"
    to.mkdir()
    write(to / f".out.{socket.gethostname()}.999999999")
    own = to / f".out.{socket.gethostname()}.{os.getppid()}"
    write(own)
    assert is_empty(to)
    with filled(to) as aside:
        write(aside)
    assert [path.name for path in to.iterdir() if path.name.startswith(".")] == [own.name]
    assert not is_empty(to)

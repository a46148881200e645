"""Screens whose readers leave, signals, and text on its way to logs, spreadsheets and narrow places."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.tools.filling import write_table
from orchestrator.tools.markup import shorten
from orchestrator.tools.quiet import noise_to_log
from orchestrator.tools.signals import Stop

PROGRAM = """
import sys
from orchestrator.tools.quiet import Lasting
stream = Lasting(sys.stdout)
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


@pytest.mark.parametrize(
    "cell", ["=HYPERLINK(1)", "@SUM(A1)", "+cmd|x", "-1+1", " =A1", "\t=A1", "\r\n@A", "\uff1dA1", "-inf", "-nan"]
)
def test_formulas_are_texts(cell: str, tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", [{cell: cell, "n": -1.5}])
    names, cells = csv.reader((tmp_path / "t.csv").open(newline=""))
    assert (names, cells) == ([f"'{cell}", "n"], [f"'{cell}", "-1.5"])


@pytest.mark.parametrize("cell", ["-1", "+2.5e-3", "a=b", "", "\u2212 1"])
def test_other_cells_stay(cell: str, tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", [{"a": cell}], ["b"])
    assert [*csv.DictReader((tmp_path / "t.csv").open(newline=""))] == [{"b": "", "a": cell}]


def test_long_names_stay_different() -> None:
    same = "LoRA r8, q k v o gate up down, learning rate "
    names = [f"{same}{rate}, epochs {epochs}" for rate in ("1e-3", "3e-3") for epochs in (1, 2, 10)]
    names += ["short", "x" * 200, f"{'x' * 100}y{'x' * 99}", f"{'x' * 199}y", "another " * 20]
    for most in (24, 30, 56):
        cut = shorten(names, most)
        assert len({*cut}) == len(names)
        assert all(len(short) <= most and ("…" in short) == (short != name) for name, short in zip(names, cut, strict=True))
    assert shorten([names[-1]], 10) == ["another a…"]

"""The table of commands: help, examples, mistakes; and what `new` and `more` do."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import numpy as np
import pytest

import craft
from craft.audit.audit import _Auditor
from craft.audit.folder import Data
from craft.audit.verdict import Answers
from orchestrator.commands import files
from orchestrator.commands import run as commands_of_runs
from orchestrator.commands.app import COMMANDS, LEFT, NO, WRONG, Row, build, main
from orchestrator.record.events import SessionStarted
from orchestrator.record.state import State
from orchestrator.results.answer import Answer
from orchestrator.review import front_report as reports_of_fronts
from orchestrator.review.past_sweep import PastSweep, read_folder
from orchestrator.sweepfile.load import load_sweep
from tests.orchestrator.conftest import Cli
from tests.orchestrator.recorded import over_seeds, record, write_log

NAMES = [row.name for row in COMMANDS]
AGAIN = "craft-sweeps run s.yaml --resume"


def parse(arguments: list[str]) -> dict[str, Any]:
    """The options of a call, after their checks."""
    program: Any = build(COMMANDS)
    return dict(program.commands[arguments[0]].make_context(arguments[0], arguments[1:]).params)


@pytest.mark.parametrize("row", COMMANDS, ids=NAMES)
def test_help_teaches_by_examples_that_parse(row: Row, here: Path, cli: Cli) -> None:
    text = cli(row.name, "--help").out
    assert f"Usage: craft-sweeps {row.name}" in text
    for call, purpose in row.examples:
        assert f"craft-sweeps {call}" in text
        assert purpose in text
        parse(shlex.split(call.partition(" > ")[0]))


def test_the_help_of_all_is_whole(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    groups = cli("--help").out.partition("\nRun:")[2]
    assert sorted(re.findall(r"^  (\w+)  +\S", groups, re.M)) == sorted(NAMES)
    assert "..." not in groups, "a first sentence is too long for the list"


def test_the_version_is_shown_without_a_command(cli: Cli) -> None:
    assert cli("--version") == (f"craft-sweeps {craft.__version__}\n", "")


def test_the_shell_completes_commands_options_and_sweeps(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(here / "runs" / "tickets", {"LoRA r1": (100, over_seeds(81.5))})
    monkeypatch.setenv("_CRAFT_SWEEPS_COMPLETE", "complete_bash")
    picks = (("take tickets --pick 0000", "0" * 10), ("cut nowhere --pick kn", "knee"))
    for typed, completed in (("sta", "status"), ("status ti", "tickets"), ("run --ret", "--retry-failed"), *picks):
        monkeypatch.setenv("COMP_WORDS", f"craft-sweeps {typed}")
        monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
        with pytest.raises(SystemExit):
            main([])
        assert completed in capsys.readouterr().out.split()


def full_disk() -> TextIO:
    return Path("/dev/full").open("w", encoding="utf-8")


def left_pipe() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", encoding="utf-8")


@pytest.mark.parametrize("call", ["--help", "new --schema", "front tickets", "front tickets --json", "front nowhere --json"])
def test_stdout_that_takes_nothing_is_said_and_a_reader_may_leave(
    call: str, here: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    record(here / "runs" / "tickets", {"LoRA r1": (100, over_seeds(81.5))})
    for make, status, said in (
        (full_disk, WRONG, "stdout cannot be written: No space left on device\n"),
        (left_pipe, LEFT, ""),
    ):
        with make() as stdout:
            monkeypatch.setattr(sys, "stdout", stdout)
            assert cli(*call.split(), status=status).err == said


def test_a_report_is_all_that_stdout_has(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    record(here / "runs" / "tickets", {"LoRA r1": (100, over_seeds(81.5))})
    make, file = reports_of_fronts.front_report, sys.stdout.fileno()

    def make_loudly(*arguments: Any) -> Any:
        print("[ERROR] by a library")
        os.write(file, b"[ERROR] by a process\n")
        return make(*arguments)

    monkeypatch.setattr(reports_of_fronts, "front_report", make_loudly)
    assert main(["front", "tickets", "--json"]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["report"] == "front"
    assert printed.err.count("[ERROR]") == 2


@pytest.mark.parametrize("points", ["nan", "inf", "-1", "0", "101"])
@pytest.mark.parametrize("call", ["front x", "plan x", "run x", "apply x", "more x", "audit x --data y"])
def test_points_are_checked_at_once(call: str, points: str, cli: Cli) -> None:
    said = cli(*call.split(), f"--within={points}", status=WRONG).err
    assert f"got {points}; points of the score, above 0 and at most 100" in said


def test_the_order_of_classes_that_an_audit_advises_is_read_back(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    classes, data = ("very good", "isn't", "bad"), Data()
    auditor: Any = SimpleNamespace(_task=SimpleNamespace(kind="classification", labels=classes), _data=data)
    with pytest.raises(ValueError, match="classes in another order") as refused:
        _Auditor._check_order(auditor, Answers("accuracy", (np.array([0, 1, 2]), np.array([1, 2, 0]))))
    advised = str(refused.value).split("`")[1]

    def stop(_folder: str, data: Data, **_: Any) -> None:
        raise ValueError(f"the classes {data.labels}")

    monkeypatch.setattr("craft.audit.audit.audit_adapter", stop)
    assert (
        f"the classes {(*classes[1:], classes[0])}" in cli("audit", "x", "--data", "y", "--labels", advised, status=WRONG).err
    )
    assert "in quotes of the other kind" in cli("audit", "x", "--data", "y", "--labels", "isn't bad", status=WRONG).err


@pytest.mark.parametrize("name", ["ranks", "own_data", "search", "instructions", "fair"])
def test_a_shipped_sweep_is_written_with_its_data_and_loads(name: str, here: Path, cli: Cli) -> None:
    assert "nothing holds no log.jsonl" in cli("replay", "nothing", status=WRONG).err
    assert "no sweep 'nothing' is shipped" in cli("new", "nothing", status=WRONG).err
    assert list(here.iterdir()) == []
    assert main(["new", name]) == 0
    load_sweep(f"{name}.yaml")
    text = (here / f"{name}.yaml").read_text()
    assert "sweeps/" not in text, "a path of the repository"
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    assert "nothing is overwritten" in cli("new", name, status=WRONG).err
    assert {path.name: path.read_bytes() for path in here.iterdir()} == before
    assert main(["new", name, "--to", r"a\d\1"]) == 0
    assert name == "fair" or rf"a\d\1/{name}.yaml" in (here / r"a\d\1" / f"{name}.yaml").read_text()


def test_a_checkout_without_links_writes_the_files_that_they_name(
    here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "package" / "shipped").mkdir(parents=True)
    monkeypatch.setattr(files, "SHIPPED", here / "package" / "shipped")
    sweep = "# What a sweep is for.\ndata: {custom: {t: {train: t.csv}}}\n"
    for name, text in (("mine.yaml", sweep), ("t.csv", "text,label\n")):
        (here / "package" / "shipped" / name).write_text(f"../../{name}")  # as Git writes a link
        (here / name).write_text(text)
    assert "What a sweep is for." in cli("new").out
    assert cli("new", "mine", "--to", "own").out
    assert [(here / "own" / name).read_text() for name in ("mine.yaml", "t.csv")] == [sweep, "text,label\n"]


def test_more_runs_what_the_answer_proposes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    folder = record(tmp_path / "runs" / "two", {"LoRA r1": (100, over_seeds(81.5))})
    answer = Answer("unsure", "c", "c", None, "It is not known.", command="craft-sweeps more two", changes={"seeds": [0, 1, 2]})
    monkeypatch.setattr(PastSweep, "answer", answer)
    monkeypatch.setattr(State, "again", AGAIN)
    calls, finished = [], SimpleNamespace(trouble=None, signal=None, exhausted=None, complete=True)
    monkeypatch.setattr(commands_of_runs, "run_file", lambda call, console: calls.append(call) or finished)
    assert "It is not known." in cli("more", str(folder), "--yes").out
    (call,) = calls
    assert (call.sweep, call.resume, call.changes) == ("s.yaml", True, ("seeds=[0, 1, 2]",))
    assert main(["more", str(folder), "--yes", "--within", "2"]) == 0
    assert calls.pop().changes == ("seeds=[0, 1, 2]", "enough.within=2.0"), "the run ends by the rule of the call"
    longer = replace(answer, changes={"name": "two-longer", "training.epochs": 3})
    monkeypatch.setattr(PastSweep, "answer", longer)
    assert main(["more", str(folder), "--yes"]) == 0
    assert (calls[1].name, calls[1].resume, calls[1].changes) == ("two-longer", False, ("training.epochs=3",))
    monkeypatch.setattr(State, "again", "sbatch job.sh")
    assert "a program of its own (sbatch job.sh); change its file (name=" in cli("more", str(folder), "--yes", status=WRONG).err
    monkeypatch.setattr(State, "again", f"{AGAIN} --tracking-uri http://***@host")
    assert "passwords are kept nowhere: run craft-sweeps" in cli("more", str(folder), "--yes", status=WRONG).err
    monkeypatch.setattr(PastSweep, "answer", answer)
    monkeypatch.setattr(State, "again", AGAIN)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert "nothing was done; --yes answers the question" in cli("more", str(folder), status=WRONG).err
    file = read_folder(folder).sweep.model_dump(mode="json")
    write_log(folder, SessionStarted(sweep=file, configurations=1, trainings=1, manifest={"folder": str(tmp_path)}))
    assert f"is meant for {tmp_path}: run this there" in cli("more", str(folder), "--yes", status=WRONG).err
    monkeypatch.setattr(PastSweep, "answer", replace(answer, command=""))
    assert "Nothing is proposed that a command could run" in cli("more", str(folder), "--yes", status=NO).err


def test_the_command_of_an_answer_judges_by_the_same_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "again", AGAIN)
    both = {"LoRA r1": (100, over_seeds(70)), "LoRA r8": (800, over_seeds(90))}
    sweep = read_folder(record(tmp_path / "runs" / "two", both, seeds=(0,)))
    assert (sweep.answer.command, sweep.answer.changes) == ("craft-sweeps more two", {"seeds": [0, 1, 2]})
    wider = sweep.with_within(2).answer
    assert (wider.command, wider.changes["enough.within"]) == ("craft-sweeps more two --within 2", 2)

"""What people ask of a sweep that exists: how a change is said, and what becomes of it with and without a driver."""

from __future__ import annotations

import json
import os
import shlex
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from rich.console import Console

from orchestrator.commands import session, start
from orchestrator.commands.app import WRONG
from orchestrator.commands.start import plan_sweep
from orchestrator.driver.change import find_change
from orchestrator.driver.display import SweepOutcome
from orchestrator.driver.request import apply_request, pending
from orchestrator.plan.plan import Plan
from orchestrator.record.folder import SweepFolder
from orchestrator.record.manifest import write_effective
from orchestrator.record.options import Options
from orchestrator.record.state import State
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.settings import Budget, TrackingSettings
from tests.orchestrator.conftest import Cli
from tests.orchestrator.plans import driving, outcomes, start_next
from tests.orchestrator.record.played import plan_of


def run_one(folder: Path) -> State:
    """A sweep of which one training has ended and one runs when its driver is killed."""
    with driving(plan_of("grid", 0), folder) as driver:
        job = start_next(driver)
        driver.record_end(job.key, outcomes(job, lambda trial: 60.0))
        job = start_next(driver)
        return driver.state


def test_a_change_is_said_in_configurations_seeds_and_settings(tmp_path: Path) -> None:
    state, before = run_one(tmp_path / "t"), plan_of("grid", 0).sweep
    assert not find_change(before, plan_of("grid", 0), state)
    assert find_change(before, plan_of("grid", 1), state).lines == ["+ seed 1"]
    lines = find_change(before, plan_of("grid", 2), state).lines
    assert [line.split(":")[0] for line in lines] == ["+ 2 configurations", "- 4 configurations"]
    assert "LoRA r4" in lines[0]
    assert lines[1].count("(1 running)") == 1


def test_a_change_has_a_price(tmp_path: Path) -> None:
    """Three of four trainings ended in 30, 40 and 50 s: a new one of a known configuration takes as long as that did."""
    plan, times = plan_of("grid", 0), defaultdict[str, list[float]](list)
    with driving(plan, tmp_path / "t") as driver:
        for seconds in (30.0, 40.0, 50.0):
            job = start_next(driver)
            times[job.training.configuration].append(seconds)
            ended = outcomes(job, lambda trial: 60.0)
            driver.record_end(job.key, [replace(each, result=replace(each.result, seconds=seconds)) for each in ended])
        state = driver.state
    more = plan_of("grid", 1)
    more = replace(more, sweep=more.sweep.model_copy(update={"budget": Budget(trials=40, wall_clock="1h")}))
    change = find_change(plan.sweep, more, state, driven=False)
    new = [job.training.configuration for job in more.jobs if job.training.run.seed == 1]
    expected = sum(mean(times.get(name, [40.0])) for name in new)
    assert change.trainings == len(new) > 1
    assert change.seconds == pytest.approx(expected / state.pace)
    assert change.price[1] == f"budget.trials: {40 - len(more.jobs)} of 40 are left"
    assert change.price[2].startswith("budget.wall_clock: 1 h 00 min of 1 h left")
    assert find_change(more.sweep, plan, state, driven=False).price[-1].endswith("(one seed)")


@pytest.mark.parametrize(
    "fields",
    [
        *({"trial": value} for value in (5, ["a"], "\x1b[2J", "")),
        *({"who": value} for value in (None, "\x1b]0;x\x07root", "a\nb")),
        *({"verb": value} for value in (["stop"], "delete")),
        {"name": "another"},
        {"surprise": 1},
        *({"verb": "apply", "sweep": value} for value in (None, [1], {}, {"name": {"name": {}}}, {"space": [[[[]]]]})),
        *({"verb": "apply", "file": value} for value in (5, "\0")),
        *({"verb": "apply", "changes": value} for value in (5, [5])),
        "[" * 100_000,
        "",
        "\0" * 50,
    ],
)
def test_a_request_of_wrong_types_is_refused_in_words_and_the_driver_continues(fields: Any, tmp_path: Path) -> None:
    with driving(plan_of("grid", 0), tmp_path / "t") as driver:
        state, name = driver.state, "00000000000000000001-aaaaaaaa"
        request = {"name": name, "verb": "stop", "who": "a@b", "trial": next(iter(state.entries))}
        request |= {"sweep": {}, "file": "", "changes": []}
        driver.folder.requests.mkdir()
        file = driver.folder.requests / f"{name}.json"
        file.write_text(fields if isinstance(fields, str) else json.dumps(request | fields))
        driver.tick()
        assert not file.exists()
        assert len(file.with_suffix(".refused").read_text()) > 20
        assert driver.state.entries == state.entries
        assert driver.next_job() is not None


def test_an_apply_that_waited_counts_unless_its_file_was_edited_again(tmp_path: Path) -> None:
    """No clock decides: the file may be on another machine than the driver, or have any time."""
    state, file = run_one(tmp_path / "t"), tmp_path / "asked.yaml"
    assert len(state.requested[0].trial.key) == 16
    for content, applied in (("rank: 4", True), ("rank: 8", False)):
        file.write_text("name: t\nmodel: m\ntasks: [toy/sentiment, toy/paraphrase]\nseeds: [0, 1]\n"
                        "space: [{method: lora, rank: 4}]\n")  # fmt: skip
        asked = load_sweep(file)
        plan = plan_of("grid", 1)
        request = replace(apply_request(plan.sweep, Options(str(file), ("seeds=[0, 1]",))), written=asked.written)
        request.write(SweepFolder(tmp_path / "t"))
        file.write_text(file.read_text().replace("rank: 4", content))
        for time in (1, 4_000_000_000):
            os.utime(file, (time, time))
        with driving(plan_of("grid", 0), tmp_path / "t", sweep=str(file), tracking_uri="sqlite:///my store.db") as driver:
            assert ([entry.trial.seed for entry in driver.state.requested].count(1) > 0) == applied
            assert (request.take_refusal(driver.folder) is None) == applied
            driver.tick()
            assert pending(driver.folder) == []
            if applied:
                command = f"craft-sweeps run {file} --resume --set 'seeds=[0, 1]' --tracking-uri 'sqlite:///my store.db'"
                assert driver.state.again == driver.options.again() == command
                memory = json.loads(driver.folder.written.read_text())
                assert memory["file"] == asked.written
                assert "seeds=[0, 1]" in memory["changes"]


def test_a_request_holds_no_password_and_an_error_while_it_is_answered_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@tracker:5000")
    sweep = plan_of("grid", 1).sweep.model_copy(update={"tracking": TrackingSettings()})
    with driving(plan_of("grid", 0), tmp_path / "t") as driver:
        request = apply_request(sweep, Options("asked.yaml"))
        request.write(driver.folder)
        assert "hunter2" not in (driver.folder.requests / f"{request.name}.json").read_text()
        with monkeypatch.context() as patch:
            patch.setattr("orchestrator.driver.request.find_change", fail)
            driver.tick()
        assert request.take_refusal(driver.folder) == "No space left on device", "the sweep continues"
        request.write(driver.folder)
        driver.tick()
        assert request.take_refusal(driver.folder) is None
        assert 1 in [entry.trial.seed for entry in driver.state.requested]


SAME = "name: t\nmodel: sentence-transformers/all-MiniLM-L6-v2\ntasks: [toy/sentiment]\nspace: [{method: head}]\n"


def test_a_file_that_says_the_same_in_another_way_is_applied_and_resumed(here: Path, cli: Cli) -> None:
    Path("t.yaml").write_text(SAME)
    options, quiet = Options("t.yaml", resume=True, edited=True), Console(quiet=True)
    plan = plan_sweep(replace(options, resume=False), quiet)
    with driving(plan, plan.sweep.folder) as driver:
        write_effective(driver.folder, plan.sweep)
        options.remember(driver.folder, plan.sweep.written)
        replace(apply_request(plan.sweep, options), written="the same").write(driver.folder)
        driver.tick()
        assert json.loads(driver.folder.written.read_text())["file"] == "the same"
    Path("t.yaml").write_text(f"{SAME}protocol: honest\n")
    with pytest.raises(SweepError, match=r"t\.yaml was edited since"):
        plan_sweep(replace(options, edited=False), quiet)
    assert cli("apply", "t.yaml").out == "nothing changes in t\n"
    assert plan_sweep(replace(options, edited=False), quiet).sweep.model_dump() == plan.sweep.model_dump()


def test_an_applied_file_is_continued_in_all_its_places(here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver runs, so the sweep continues here: its log gets the command."""
    seen = list[str]()

    def run_plan(plan: Plan, options: Options, console: Console) -> SweepOutcome:
        seen.append(options.again())
        return SweepOutcome(State(), 0.0)

    monkeypatch.setattr(start, "run_plan", run_plan)
    Path("t.yaml").write_text(SAME)
    folder = SweepFolder(here / "my runs" / "t")
    folder.path.mkdir(parents=True)
    folder.effective.write_text(load_sweep("t.yaml", ["storage=my runs"]).to_yaml())
    places = ("--storage", "my runs", "--tracking-uri", "sqlite:///my store.db", "--address", "auto")
    cli("apply", "t.yaml", "--yes", "--set", "seeds=[0, 1]", *places)
    assert seen == [shlex.join(("craft-sweeps", "run", "t.yaml", "--resume", "--set", "seeds=[0, 1]", *places))]


def test_why_a_session_broke_off_is_printed_whichever_command_began_it(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = SweepOutcome(State(), 0.0, trouble="Ray broke off: http://me:secret@host")
    monkeypatch.setattr(session, "run_session", lambda *_: outcome)
    Path("t.yaml").write_text(SAME)
    assert start.run_file(Options("t.yaml"), Console(quiet=True)) is outcome
    assert capsys.readouterr().err == "Ray broke off: http://***@host\n"


def test_apply_shows_a_change_to_programs_and_changes_nothing_unasked(here: Path, cli: Cli) -> None:
    Path("t.yaml").write_text(SAME)
    assert f"there is no sweep t in {here / 'runs'}; it has no sweep" in cli("apply", "t.yaml", "--json", status=WRONG).out
    for name in ("t", "other"):
        SweepFolder(here / "runs" / name).path.mkdir(parents=True)
        SweepFolder(here / "runs" / name).effective.write_text(load_sweep("t.yaml", [f"name={name}"]).to_yaml())
    assert "there is no sweep otter in" in (error := cli("apply", "t.yaml", "--name", "otter", status=WRONG).err)
    assert "it has other, t." in error
    assert "Did you mean 'other'?" in error
    report = cli("apply", "t.yaml", "--json").report
    assert report["report"] == "apply"
    assert not report["applied"]
    assert report["added"] == ["Head alone"]
    assert not Path("runs/t/log.jsonl").exists()

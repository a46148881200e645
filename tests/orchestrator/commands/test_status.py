"""`status` of sweeps in every phase, from logs written event by event: its report, and the lines that people read."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.plan.trial import Why
from orchestrator.record.events import Paused, Refused, Requested, Underway
from orchestrator.record.folder import Holder, SweepFolder, _read_start, holder_of, one_driver
from orchestrator.record.log import read_state
from orchestrator.results.answer import answer_of
from orchestrator.results.summary import summarize_entries
from orchestrator.review import progress
from orchestrator.review.front_report import front_report
from orchestrator.review.past_sweep import read_folder
from orchestrator.review.progress import progress_of, read_status
from tests.orchestrator.commands.test_reports import checked, value
from tests.orchestrator.logged import SweepLog, entry
from tests.orchestrator.recorded import printed

AGAIN = "python -m orchestrator.run s.yaml --resume"
A, B, C = entry(8), entry(16), entry(32)
CUT = entry(4, label="cut", why=Why("cut", B.key))
NOW = 1.79e9 + 100


def started(log: SweepLog) -> None:
    log.start(A, B, C, CUT, again=AGAIN, budget={"trials": 9, "wall_clock": "1h"}, trainings=3)


def running(log: SweepLog) -> None:
    started(log)
    log.run(A, B, CUT)
    log.report(A, 10)
    log.add(Underway, left=300.0, doing="training")


def failed(log: SweepLog) -> None:
    running(log)
    log.end(A, "failed", error="the loss is not finite\nat step 12")
    for trial in (B, CUT):
        log.end(trial, "failed", error="its machine is gone", retryable=True)


def again(log: SweepLog) -> None:
    failed(log)
    log.close("failed")
    started(log)
    log.run(B)


def stopped(log: SweepLog) -> None:
    running(log)
    for trial in (B, CUT):
        log.end(trial, "stopped")


def paused(log: SweepLog) -> None:
    running(log)
    log.add(Paused, keys=[A.key])
    names = {"configuration": "f" * 10, "label": "too large", "method": "craft", "protocol": "honest"}
    log.add(Refused, **names, parameters={"rank": 1}, counts={}, reason="above max 40,000")
    log.add(Requested, request="r", who="me@here", verb="pause", keys=[])


def finished(log: SweepLog) -> None:
    started(log)
    log.train(A, B, C, scores={A.key: 80.0, B.key: 90.0, C.key: 90.5})
    log.finish(CUT, 70.0)
    log.close()


def ended(status: str, before: Callable[[SweepLog], None]) -> Callable[[SweepLog], None]:
    def write(log: SweepLog) -> None:
        before(log)
        log.close(status)

    return write


HERE = Holder(os.getpid(), socket.gethostname(), _read_start(os.getpid()))
GONE = replace(HERE, pid=2**22 + 1)
AWAY = Holder(1, "another-machine", "")
Case = tuple[Callable[[SweepLog], None], Holder | None, dict[str, Any], list[str]]
CASES: dict[str, Case] = {
    "empty": (lambda log: None, None, {"phase": "empty", "trials.total": 0, "started": None, "answer": None, "next": []}, []),
    "begun": (started, HERE, {"phase": "running", "trials.waiting": 4, "trainings.waiting": 3, "seconds_left": None}, []),
    "running": (
        running, HERE,
        {"phase": "running", "driver.alive": True, "trainings.running": 2, "trials.running": 3, "trainings_planned": 3,
         "running.0.step": 10, "running.0.total_steps": 30, "running.0.search_score": 60.0, "running.1.total_steps": None,
         "seconds_left": 300.0 - (NOW - 1.79e9 - 5), "seconds_passed": 99.0, "budget.seconds_left": 3501.0, "budget.trials": 9,
         "answer.kind": "unfinished", "answer.command": "", "answer.proposal": "It is running, about 3 min left.", "next": []},
        ["demo: running, 1 min 39 s passed", "0/3 trainings done, 2 running (training), 0 failed, 0/1 cuts done",
         "step 10 of 30, search score 60.0", "no evaluation yet"],
    ),
    "stopped": (stopped, HERE, {"trainings.stopped": 1, "trials.stopped": 2, "trials.failed": 0}, ["1 stopped"]),
    "paused": (paused, HERE, {"phase": "running", "trainings.paused": 1, "refused": 1, "paused_by": "me@here"},
        ["running, paused by me@here", "1 paused", ", 1 configuration refused by a constraint", "craft-sweeps continue "]),
    "elsewhere": (running, AWAY, {"phase": "running", "driver.alive": None, "driver.machine": "another-machine"}, []),
    "lost": (
        running, GONE,
        {"phase": "lost", "driver.alive": False, "ended": None, "trainings.running": 0, "trainings.waiting": 3, "running": [],
         "updated": 1.79e9 + 5, "seconds_left": None, "next.0.command": AGAIN},
        ["demo: interrupted: its driver is gone", f"Next: finish the sweep:\n  {AGAIN}"],
    ),
    "lost without a word": (running, None, {"phase": "lost", "driver.process": None}, []),
    "failed": (
        ended("failed", failed), None,
        {"phase": "failed", "trainings.failed": 2, "trials.failed": 3,  # a cut fails with its training
         "failed.0.trial": A.key, "failed.0.reason": "the loss is not finite\nat step 12", "failed.0.retryable": False,
         "failed.1.trial": B.key, "failed.1.retryable": True, "ended.status": "failed", "ended.seconds": 60.0,
         "answer.kind": "unfinished", "answer.command": AGAIN},
        ["failed: 6·8·8 qv lr 3e-4 · toy/sentiment · seed 0: the loss is not finite\n",
         "its machine is gone (the next session runs it again)", f"{AGAIN} --retry-failed"],
    ),
    "failed, and run again": (
        again, HERE, {"phase": "running", "trainings.failed": 1, "failed.0.trial": A.key, "failed.0.retryable": False}, [],
    ),
    "interrupted": (ended("interrupted", running), None, {"phase": "interrupted", "trainings.waiting": 3, "running": []}, []),
    "resumed": (
        ended("interrupted", running), HERE, {"phase": "interrupted", "driver.alive": True, "next": []},
        [f"process {os.getpid()} on {socket.gethostname()} prepares or ends a session"],
    ),
    "finished": (
        finished, None,
        {"phase": "finished", "trainings.finished": 3, "trials.finished": 4, "failed": [], "answer.kind": "one seed",
         "ended.status": "finished", "seconds_passed": 60.0, "budget.seconds_left": None},
        ["3/3 trainings done, 0 running, 0 failed, 1/1 cuts done", "By one seed:", "craft-sweeps take ", "--to adapter"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_phase_has_its_numbers_and_lines(tmp_path: Path, name: str) -> None:
    write, holder, expected, lines = CASES[name]
    log = SweepLog(tmp_path / "demo")
    write(log)
    state = read_state(tmp_path / "demo" / "log.jsonl")
    report = progress_of(state, tmp_path / "demo", holder, NOW)
    fields = checked(report)
    if name != "empty" and holder is not HERE and holder is not AWAY:
        assert checked(front_report(read_folder(tmp_path / "demo")))["answer"] == fields["answer"]
    assert sum(row.failed for row in summarize_entries(state.requested)) == fields["trials"]["failed"]
    assert {path: value(fields, path) for path in expected} == expected
    assert len(fields["failed"]) == fields["trainings"]["failed"]
    shown = printed(report.show)
    assert [line for line in lines if line not in shown] == []
    assert shown.startswith("demo: ")
    assert "None" not in shown


def test_a_driver_elsewhere_that_reports_nothing_for_minutes_is_gone(tmp_path: Path) -> None:
    log = SweepLog(tmp_path / "demo")
    running(log)
    state = read_state(tmp_path / "demo" / "log.jsonl")
    phases = [progress_of(state, tmp_path / "demo", AWAY, 1.79e9 + 5 + seconds).phase for seconds in (299, 301)]
    assert phases == ["running", "lost"]
    assert progress_of(state, tmp_path / "demo", HERE, NOW + 3600).phase == "running", "it lives: its machine may have slept"


def test_each_status_is_summed_up_anew_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was kept of an earlier answer would not know that results are summed up in another way since."""
    log = SweepLog(tmp_path / "demo")
    finished(log)
    files = sorted(tmp_path.rglob("*"))
    assert read_status(tmp_path / "demo").answer.best == C.trial.configuration
    assert sorted(tmp_path.rglob("*")) == files
    monkeypatch.setattr(progress, "answer_of", lambda state: ([], replace(answer_of(state)[1], best="another")))
    assert read_status(tmp_path / "demo").answer.best == "another"


def test_a_driver_is_alive_while_its_process_is(tmp_path: Path) -> None:
    with one_driver(tmp_path):
        holder = holder_of(tmp_path)
        assert (holder.pid, holder.is_alive) == (os.getpid(), True)
        os.utime(SweepFolder(tmp_path).driver, (1, 1))
        assert holder_of(tmp_path) == holder, "a file server's clock may be far behind"
    assert holder_of(tmp_path) is None
    program = "import sys; from pathlib import Path; from orchestrator.record.folder import one_driver\n"
    program += "with one_driver(Path(sys.argv[1])): print('holds', flush=True); input()"
    driver = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout.readline() == "holds\n"
    holder = holder_of(tmp_path)
    assert (holder.pid, holder.is_alive) == (driver.pid, True)
    driver.kill()
    assert holder.is_alive is False or driver.wait()
    driver.wait()
    assert holder.is_alive is False
    left = holder_of(tmp_path)
    assert left == holder, "a killed driver leaves its word behind"
    younger = replace(left, pid=os.getpid())
    assert younger.is_alive is False, "a process that began later is another one"
    assert Holder(1, "elsewhere", "").is_alive is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x", "host": "h"}', '{"pid": null, "host": "h"}'])
def test_a_damaged_word_of_a_driver_is_none(tmp_path: Path, text: str) -> None:
    SweepFolder(tmp_path).driver.write_text(text)
    assert holder_of(tmp_path) is None


def test_asking_does_not_take_the_lock_and_shows_no_password(tmp_path: Path) -> None:
    log = SweepLog(tmp_path / "demo")
    log.start(A, again="craft-sweeps run s.yaml --tracking-uri http://me:secret@host --resume")
    with one_driver(tmp_path / "demo"):
        assert read_status(tmp_path / "demo").phase == "running"
    assert "secret" not in json.dumps(checked(read_status(tmp_path / "demo")))

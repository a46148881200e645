"""`--json` of each command: stdout holds one report, which keeps to the schema, and the exit status is that of the table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from craft.spec import RunSpec
from craft.trainer.checkpoint import write_folder
from orchestrator.commands.app import GOOD, NO, WRONG, main
from tests.orchestrator.commands.test_reports import VALIDATOR
from tests.orchestrator.recorded import over_seeds, record

SWEEP = """\
name: next
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment]
space: [{method: lora, rank: {values: [1, 2]}}]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a sweep that has run, one that has only begun, and a sweep file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("orchestrator.review.prospect.probe_plan", lambda plan: None)
    run = RunSpec(model="m", task="toy/sentiment", method="lora", parameters={"rank": 1})
    fields = {"spec": run.model_dump(mode="json"), "kind": "classification", "labels": ["no", "yes"], "facts": {}, "notes": []}
    fields |= {"counts": {"trainable_parameters": 100}, "metrics": {"score": 80.0}}
    adapter = write_folder(tmp_path / "trial" / "adapter", lambda to: (to / "run.json").write_text(json.dumps(fields)) and None)
    both = {"LoRA r1": (100, over_seeds(80, 81, 82)), "LoRA r9": (900, over_seeds(90, 92, 91))}
    record(tmp_path / "runs" / "done", both, seeds=(0, 1, 2), adapter=adapter)
    record(tmp_path / "runs" / "begun", {"LoRA r1": (100, {})})
    (tmp_path / "next.yaml").write_text(SWEEP)
    (tmp_path / "wrong.yaml").write_text(SWEEP + "trainig: {epochs: 1}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("plan next.yaml", {"report": "plan", "trainings": 2}),
        ("plan wrong.yaml", {"report": "error", "kind": "sweep file", "exit_status": 2}),
        ("plan absent.yaml", {"report": "error", "exit_status": 2}),
        ("status done", {"report": "status", "sweep": "done"}),
        ("status absent", {"report": "error", "kind": "no such sweep", "exit_status": 2}),
        ("front done", {"report": "front", "sweep": "done"}),
        ("front runs/begun", {"report": "front", "knee": None}),
        ("front done --within 0", {"report": "error", "exit_status": 2}),
        ("compare done done --configuration-b under:200", {"report": "compare", "higher": "first"}),
        ("compare done begun", {"report": "error", "kind": "nothing yet", "exit_status": 1}),
        ("compare done", {"report": "error", "kind": "call", "exit_status": 2}),
        ("take done --pick best --to adapter", {"report": "take", "label": "LoRA r9", "form": "adapter"}),
        ("take begun --pick best --to adapter", {"report": "error", "kind": "nothing yet", "exit_status": 1}),
        ("take done --pick best --to runs", {"report": "error", "kind": "call", "exit_status": 2}),
        ("run next.yaml --plan", {"report": "plan", "trainings": 2}),
        ("run wrong.yaml", {"report": "error", "kind": "sweep file", "exit_status": 2}),
        ("more done", {"report": "error", "kind": "nothing yet", "exit_status": 1}),
        ("pause done", {"report": "request", "verb": "pause", "done": False, "trials": []}),
        ("continue done", {"report": "request", "verb": "continue", "command": ""}),
        ("stop begun LoRA", {"report": "error", "exit_status": 2}),
        ("stop begun 000000000000", {"report": "error", "exit_status": 2}),
        ("stop begun 0000000000000001", {"report": "request", "verb": "stop", "trials": ["0000000000000001"]}),
        ("retry done 0000000000000000", {"report": "error", "exit_status": 2}),
        ("export done --to results", {"report": "export", "trials": 6, "path": "results/trials.csv"}),
        ("export begun --to results", {"report": "error", "kind": "nothing yet", "exit_status": 1}),
        ("cut begun --pick best --size 1 --to cut", {"report": "error", "kind": "nothing yet", "exit_status": 1}),
        ("suggest --model m --data absent.csv", {"report": "error", "exit_status": 2}),
    ],
)
def test_stdout_has_one_report(place: Path, call: str, expected: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    status = main([*call.split(), "--json"])
    report = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(report)
    assert {name: report[name] for name in expected} == expected
    assert status == report.get("exit_status", 1 if "runs/begun" in call else 0)  # a front of nothing is no answer
    if "runs/begun" in call:
        assert (report["answer"]["kind"], report["answer"]["configuration"]) == ("unfinished", "")
    assert status in (GOOD, NO, WRONG)
    if report["report"] == "take":
        (adapter,) = report["adapters"]
        assert (
            sorted(path.name for path in (place / adapter["path"]).iterdir()) == adapter["files"] == ["README.md", "run.json"]
        )


def test_sizes_and_a_suggestion_are_reports(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is cut and what is suggested stand in; other tests compute them."""
    monkeypatch.setattr("orchestrator.adapters.taking.cut_adapters", lambda *_: iter([("LoRA r9, cut to r1", 100.0)]))
    assert main(["cut", "done", "--pick", "best", "--size", "1", "--to", "cut", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(report)
    assert (report["sizes"], report["path"]) == ({"LoRA r9, cut to r1": 100}, "cut")
    suggestion = SimpleNamespace(text=f"# mine\n{SWEEP}", seconds=math.nan)
    monkeypatch.setattr("orchestrator.suggest.suggest.suggest", lambda *_: suggestion)
    assert main(["suggest", "--model", "m", "--data", "rows.csv", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(report)
    assert (report["sweep_file"], report["seconds"]) == (suggestion.text, None)


def test_a_stopped_command_says_so_as_a_report(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.review.past_sweep.find_sweep", stop)
    assert main(["front", "done", "--json"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["exit_status"], report["message"]) == ("stopped", 130, "stopped")

"""The skill that assistants get: every command in it does what it says, and its form is the open format of agent skills."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import yaml

from orchestrator.commands.app import COMMANDS, GOOD, WRONG, main
from orchestrator.driver.display import SweepOutcome
from orchestrator.record.events import SessionEnded, Wanted
from orchestrator.record.folder import SweepFolder
from orchestrator.record.log import read_state
from orchestrator.results.answer import Kind
from tests.orchestrator.commands.test_reports import VALIDATOR
from tests.orchestrator.conftest import Cli
from tests.orchestrator.recorded import over_seeds, record, write_adapter, write_log
from tests.orchestrator.stand_in import ROOT

SKILL = ROOT / "orchestrator" / "shipped" / "SKILL.md"
SWEEP = """\
name: tickets
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment]
seeds: [0, 1]
training: {max_steps: 2, batch_size: 8, max_length: 24, train_examples: 40, eval_examples: 20}
space: [{method: lora, rank: {values: [1, 8]}, learning_rate: 1e-2}]
"""
REPORTS = {
    "plan": "plan", "run": "front", "front": "front", "more": "front", "take": "take", "status": "status",
    "compare": "compare", "export": "export", "judge": "front", "apply": "apply",
    "wait": "status", "list": "list", "remove": "remove",
}  # fmt: skip
"""The report of each command that the skill has."""


def commands() -> list[list[str]]:
    """The commands of the skill's blocks, in order, without their first word."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", SKILL.read_text(), re.M | re.S)
    return [shlex.split(line, comments=True)[1:] for block in blocks for line in block.splitlines()]


@pytest.mark.slow
def test_every_command_is_run_on_a_recorded_sweep(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("orchestrator.review.prospect.probe_plan", lambda plan: None)
    monkeypatch.setattr("orchestrator.commands.results.AGAIN_SECONDS", 0.0)
    (here / "tickets.yaml").write_text(SWEEP)
    adapter = write_adapter(here / "trial" / "adapter")
    scores = {"LoRA r1": (89, 90, 91.5), "LoRA r8": (90, 92, 91), "LoRA r16": (91, 92, 91.5)}
    rows = {label: (100 * 4**number, over_seeds(*values)) for number, (label, values) in enumerate(scores.items())}
    model = yaml.safe_load(SWEEP)["model"]
    folder = record(here / "runs" / "tickets", rows, seeds=(0, 1, 2), model=model, adapter=adapter)
    state = read_state(SweepFolder(folder).record)
    again = replace(state.started, again="craft-sweeps run tickets.yaml --resume", folder=str(folder))
    write_log(folder, again, Wanted(keys=[*state.entries]), SessionEnded(status="finished"))
    monkeypatch.setattr(
        "orchestrator.commands.run.run_file", lambda call, console: SweepOutcome(read_state(SweepFolder(folder).record), 1.0)
    )
    reports = {}
    for arguments in commands():
        status = main(arguments)
        report = reports[arguments[0]] = json.loads(capsys.readouterr().out)
        VALIDATOR.validate(report)
        assert (status, report["report"]) == (GOOD, REPORTS[arguments[0]]), (arguments, report)
    assert {words[0] for words in commands()} == reports.keys()
    assert reports["front"]["answer"]["label"] == reports["take"]["label"] == "LoRA r16"
    assert reports["more"]["answer"]["command"] == "craft-sweeps more tickets"
    assert reports["compare"]["first"] != reports["compare"]["second"]
    assert reports["judge"]["answer"]["label"] == "LoRA r16", "as the sweep itself says"


def test_it_has_the_form_of_a_skill_and_names_what_there_is() -> None:
    head, body = re.match(r"---\n(.*?)^---\n(.*)", SKILL.read_text(), re.S | re.M).groups()  # type: ignore[union-attr]
    front = yaml.safe_load(head)
    assert front.keys() == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", front["name"])
    assert len(front["name"]) <= 64
    assert len(front["description"]) <= 1024
    assert not {"<", ">"} & {*front["description"]}
    assert len(body.splitlines()) < 500
    assert [kind for kind in get_args(Kind) if f"`{kind}`" not in body] == [], "it says what to do with each kind of answer"
    names = {row.name for row in COMMANDS}
    assert set(re.findall(r"craft-sweeps ([a-z]+)", body)) <= names
    reports = json.loads((ROOT / "docs" / "reports.schema.json").read_text())["$defs"].values()
    fields = {name for report in reports for name in report.get("properties", {})}
    shown = set(re.findall(r"`(?!tickets)(?:[a-z]+\.)*([a-z_]+)`", body))
    kinds = {*get_args(Kind), "null", "within"}
    assert shown - fields - names - kinds == set()


def test_it_is_written_once_and_nothing_else_is_written_over(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "skills" / "craft-sweeps" / "SKILL.md"
    for _ in range(2):
        assert main(["skill", "--to", str(tmp_path / "skills")]) == GOOD
        assert file.read_text() == SKILL.read_text()
    file.write_text("mine")
    assert "is a different skill" in cli("skill", "--to", str(tmp_path / "skills"), status=WRONG).err
    assert file.read_text() == "mine"

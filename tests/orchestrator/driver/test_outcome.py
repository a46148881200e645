"""The next commands that the terminal proposes when a sweep has ended."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.commands import session
from orchestrator.driver.outcome import SweepOutcome, show_outcome, show_unsent
from orchestrator.plan.trial import Trial, TrialResult
from orchestrator.plan.work import scored_line
from orchestrator.record.events import SessionStarted, Wanted
from orchestrator.record.state import Entry, State, fold
from orchestrator.results.front import mark_front
from orchestrator.results.summary import summarize_entries
from orchestrator.sweepfile.load import load_sweep
from tests.orchestrator.plans import count

SWEEP = """\
name: mine
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [custom/mail]
seeds: {seeds}
data: {{custom: {{mail: {{train: {file}, text: text, label: label}}}}}}
space: [{{method: lora, rank: {{values: [1, 2]}}}}]
"""


@pytest.mark.parametrize(("seeds", "chance", "offered"), [([0], 50.0, True), ([0, 1, 2], 50.0, True), ([0, 1, 2], 95.0, False)])
def test_an_adapter_is_offered_if_one_is_above_random_guessing(
    tmp_path: Path, seeds: list[int], chance: float, offered: bool
) -> None:
    (tmp_path / "mail.csv").write_text("text,label\n" + "".join(f"letter {row},{row % 2}\n" for row in range(40)))
    (tmp_path / "mine.yaml").write_text(SWEEP.format(seeds=seeds, file=tmp_path / "mail.csv"))
    sweep = load_sweep(tmp_path / "mine.yaml", [f"storage={tmp_path / 'runs'}"])
    plan = count(sweep, lambda run: 1000 * run.parameters["rank"])
    entries = []
    for trial in plan.trials:
        score = 80.0 + 5 * trial.run.parameters["rank"] + 0.1 * trial.run.seed
        result = TrialResult(trial.key, "finished", {"score": score}, {"random_guessing": chance}, 3, 1.0)
        entries.append(replace(Entry(trial.trial, result), phase="ended"))
    summaries = mark_front(summarize_entries(entries), sweep.objectives)
    keys = {entry.key: entry for entry in entries}
    state = State(entries=keys, wanted=dict.fromkeys(keys))
    console = Console(file=io.StringIO(), width=200)
    show_outcome(plan, SweepOutcome(state, 1.0), summaries, console, "sqlite:///x", [])
    screen = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("craft-sweeps take" in screen) == offered


@pytest.mark.parametrize(
    ("scored", "setting", "said"),
    [
        (40, "", "set a larger `validation` file, or data.custom.mail.reported"),
        (40, "training={eval_examples: 40}", "set a larger eval_examples"),
        (200, "", ""),
    ],
)
def test_the_plan_proposes_what_gives_more_rows(tmp_path: Path, scored: int, setting: str, said: str) -> None:
    (tmp_path / "mail.csv").write_text("text,label\na,0\nb,1\n")
    (tmp_path / "mine.yaml").write_text(SWEEP.format(seeds=[0], file=tmp_path / "mail.csv"))
    line = scored_line(load_sweep(tmp_path / "mine.yaml", [setting] if setting else []), {"custom/mail": (400, scored)})
    assert line.endswith(f"at 50 % right: {said}" if said else "200 examples of custom/mail")


def test_the_command_to_continue_is_there_before_the_store_is_waited_for() -> None:
    screen, seen = io.StringIO(), list[str]()

    class Away:
        def wait(self, seconds: float) -> int:
            seen.append(screen.getvalue())
            return 7

    again = "craft-sweeps run x.yaml --resume"
    log = [
        SessionStarted(sweep={}, configurations=1, trainings=1, again=again),
        Wanted(keys=["k"], trials=[Trial("k", "c", "LoRA", "lora", "glue/rte", 0, "honest", {})]),
    ]
    outcome = SweepOutcome(fold(log), 1.0)
    console = Console(file=screen, width=200)
    assert not session._is_shipped(Away(), 60.0, outcome, console)  # type: ignore[arg-type]
    assert seen[0] == ""
    assert "1 trial without a result; continue with: craft-sweeps run x.yaml --resume\n" in seen[1]
    show_unsent(7, Path("runs/x"), Console(file=screen, width=200))
    assert screen.getvalue().splitlines()[-1] == "7 events not in the tracking store yet; send with: craft-sweeps replay runs/x"

"""Reports: each keeps to the published schema, by another validator, and has the values that the terminal shows.

With `--json`, the stdout of a command holds one report, and the exit status is that of the table.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from docs.generate import reports_schema
from orchestrator.commands import run as commands_of_runs
from orchestrator.commands.app import GOOD, LEFT, NO, STOPPED, WRONG
from orchestrator.driver.request import pending
from orchestrator.plan.table import print_plan
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import Ended, Wanted
from orchestrator.record.folder import SweepFolder
from orchestrator.record.state import State
from orchestrator.results.report import Report
from orchestrator.review.front_report import front_report
from orchestrator.review.past_sweep import read_folder
from orchestrator.review.prospect import look_ahead
from orchestrator.tools.signals import SIGNALS
from tests.craft.audit.plain_folders import CONFIGS, rows, saved
from tests.orchestrator.conftest import Cli
from tests.orchestrator.plans import count, rank, toy_sweep
from tests.orchestrator.recorded import over_seeds, printed, record, write_adapter, write_log
from tests.orchestrator.stand_in import ROOT

SCHEMA = reports_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def checked(report: Report) -> dict[str, Any]:
    """The report as a program reads it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = report.to_json()
    assert text.isascii()
    fields = json.loads(text, parse_constant=refuse)
    VALIDATOR.validate(fields)
    return dict(fields)


def value(report: Any, path: str) -> Any:
    """What a report has at a place such as `rows.0.label`."""
    for part in path.split("."):
        report = report[int(part)] if part.isdecimal() else report[part]
    return report


NAN, INFINITE = over_seeds(math.nan, 80, 81), over_seeds(math.inf, 80, 81)


@pytest.mark.parametrize(
    ("configurations", "answered"),
    [({}, False), ({"LoRA a": (1, {})}, False), ({"LoRA a": (1, over_seeds(80))}, True), ({"LoRA a": (1, NAN)}, True),
     ({"LoRA a": (1, INFINITE), "LoRA b": (2, over_seeds(1, 2, 3))}, True)],
)  # fmt: skip
def test_a_front_without_some_numbers_is_json(tmp_path: Path, configurations: Any, answered: bool) -> None:
    seeds = (0,) if len(configurations.get("LoRA a", (0, {}))[1]) == 1 else (0, 1, 2)
    report = checked(front_report(read_folder(record(tmp_path / "s", configurations, seeds=seeds))))
    assert (report["answer"]["kind"] not in ("unfinished", "failed")) == bool(report["answer"]["configuration"]) == answered
    assert len(report["rows"]) == len(configurations)
    for change in ({"format": 2}, {"report": "other"}, {"sweep": None}, {"rows": [{}]}):
        assert not VALIDATOR.is_valid(report | change)


PLANS = {
    "grid": ("seeds: [0, 1]\nspace: [{method: lora, rank: {values: [1, 2]}}]\n", 4, 2),
    "sizes": ("space: [{method: craft, ranks: [all, 8, 8], sizes: [20]}]\n", 1, 2),
    "constraint": (
        "space: [{method: lora, rank: {values: [1, 2]}}]\nconstraints: {trainable_parameters: {max: 150}}\n", 1, 1,
    ),
    "learned": ("search: {algorithm: tpe, configurations: 3}\nspace: [{method: lora, rank: {min: 1, max: 4}}]\n", 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_has_the_counts_of_the_table(tmp_path: Path, name: str) -> None:
    text, trainings, configurations = PLANS[name]
    plan = count(toy_sweep(tmp_path, text), lambda run: rank(run) if "rank" in run.parameters else 128)
    made = look_ahead(plan, elsewhere=True)
    report, shown = checked(made), printed(lambda console: print_plan(plan, console, made.steps, lines=made.lines))
    assert (report["trainings"], len(report["configurations"])) == (trainings, configurations)
    for row in report["configurations"]:
        line = next(line for line in shown.splitlines() if row["configuration"] in line)
        assert all(text in line for text in (row["label"], f"{row['trainable_parameters']:,}", f"{row['trials']}"))
    assert [f"dropped: {row['label']}: {row['reason']}" in shown for row in report["dropped"]] == [True] * (
        name == "constraint"
    )
    assert report["most_trainings"] == (3 if report["adaptive"] else trainings)


def test_a_plan_counts_what_is_left(tmp_path: Path) -> None:
    plan = count(toy_sweep(tmp_path, PLANS["grid"][0], f"storage={tmp_path / 'runs'}"), rank)
    trials = [trial.trial for trial in plan.trials]
    plan.sweep.folder.mkdir(parents=True)
    result = TrialResult(trials[0].key, "finished", {"score": 80.0}, steps=10, seconds=20.0)
    write_log(plan.sweep.folder, Wanted(keys=[trial.key for trial in trials], trials=trials), Ended(result=result))
    fresh, left = (checked(look_ahead(plan, resume=resume)) for resume in (False, True))
    assert (fresh["ended"], fresh["optimizer_steps_left"]) == (0, fresh["optimizer_steps"])
    assert (left["ended"], left["optimizer_steps_left"]) == (1, left["optimizer_steps"] * 3 / 4)
    assert "1 of 4 trainings have ended already" in left["notes"]
    assert left["seconds"] is None


def test_the_page_for_programs_has_every_exit_status_kind_and_report() -> None:
    page = (ROOT / "docs" / "for-programs.md").read_text().partition("\n## Reports\n")[2]
    statuses = [int(status) for status in re.findall(r"^- (\d+): ", page, re.MULTILINE)]
    assert statuses == sorted({*range(3), STOPPED, LEFT, *(128 + number for number in SIGNALS)})
    names = [
        *SCHEMA["$defs"]["ErrorReport"]["properties"]["kind"]["enum"],
        *(name for name in SCHEMA["discriminator"]["mapping"] if name != "error"),
    ]
    assert [name for name in names if f"`{name}`" not in page] == []
    example = json.loads(page.rpartition("```json\n")[2].partition("```")[0])
    VALIDATOR.validate(example)
    fields = {name for schema in SCHEMA["$defs"].values() for name in schema.get("properties", {})}
    code = set(re.findall(r'\["(\w+)"\]', page))
    assert code <= fields


SWEEP = """\
name: next
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [toy/sentiment]
space: [{method: lora, rank: {values: [1, 2]}}]
"""


@pytest.fixture
def place(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a sweep that has run, one that has only begun, and a sweep file."""
    monkeypatch.setattr("orchestrator.review.prospect.probe_plan", lambda plan: None)
    adapter = write_adapter(here / "trial" / "adapter")
    (adapter / "sub").mkdir()
    (adapter / "sub" / "tokenizer.json").write_text("{}")
    both = {"LoRA r1": (100, over_seeds(80, 81, 82)), "LoRA r9": (900, over_seeds(90, 92, 91))}
    record(here / "runs" / "done", both, seeds=(0, 1, 2), adapter=adapter)
    record(here / "runs" / "begun", {"LoRA r1": (100, {})})
    (here / "next.yaml").write_text(SWEEP)
    (here / "wrong.yaml").write_text(SWEEP + "trainig: {epochs: 1}\nseedz: [1]\n")
    return here


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("plan next.yaml", {"report": "plan", "trainings": 2}),
        ("front done", {"report": "front", "sweep": "done", "rows.0.enough": False, "rows.1.enough": True}),
        ("front done --within 50", {"answer.within": 50, "rows.0.enough": True, "rows.1.enough": False}),
        ("front runs/begun", {"knee": None, "answer.kind": "unfinished", "answer.configuration": ""}),
        ("compare done done --configuration-b under:200", {"report": "compare", "higher": "first"}),
        (
            "take done --pick best --to adapter",
            {"report": "take", "label": "LoRA r9", "trainable_parameters": 900, "form": "adapter", "adapters.0.seed": 1,
             "adapters.0.score": 92, "adapters.0.files": ["README.md", "run.json", "sub/tokenizer.json"],
             "adapters.0.load.0": "from craft import load_adapter"},
        ),
        ("pause done", {"report": "request", "verb": "pause", "done": False, "trials": []}),
        ("continue done", {"report": "request", "verb": "continue", "command": ""}),
        ("stop begun 0000000000000001", {"report": "request", "verb": "stop", "trials": ["0000000000000001"]}),
        ("export done --to results", {"report": "export", "trials": 6, "path": "results/trials.csv"}),
    ],
)  # fmt: skip
def test_stdout_has_one_report(place: Path, call: str, expected: dict[str, Any], cli: Cli) -> None:
    report = cli(*call.split(), "--json", status=NO if "begun" in call and "front" in call else GOOD).report
    VALIDATOR.validate(report)
    assert {path: value(report, path) for path in expected} == expected
    if report["report"] == "request":  # it waits for the next driver
        (waits,) = pending(SweepFolder(place / "runs" / report["sweep"]))
        assert (waits.verb, waits.trial) == (report["verb"], *(report["trials"] or [None]))
    for adapter in report.get("adapters", ()):
        folder = place / adapter["path"]
        assert sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()) == adapter["files"]


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        ("plan wrong.yaml", "sweep file", "trainig"),
        ("plan absent.yaml", "sweep file", "absent.yaml: there is no such file"),
        ("stop begun LoRA", "sweep file", "no trial 'LoRA'"),
        ("stop begun 000000000000", "sweep file", "names 2 trials"),
        ("retry done 0000000000000000", "sweep file", "it is finished"),
        ("status absent", "no such sweep", "there is no sweep 'absent'"),
        ("front absent --tracking-uri http://me:secret@127.0.0.1:9", "store", "http://***@127.0.0.1:9 cannot be read"),
        ("export done --to /proc/x", "system", "No such file or directory"),
        ("statsu done", "call", "Did you mean 'status'? See craft-sweeps"),
        ("status", "call", "Missing argument 'SWEEP'"),
        ("front done --jsn", "call", "No such option"),
        ("take done --pick best", "call", "say where it goes"),
        ("take done --pick best --to runs", "call", "not empty"),
        ("suggest --model m --data absent.csv", "call", "no file absent.csv"),
        ("compare done begun", "nothing yet", ""),
        ("take begun --pick best --to adapter", "nothing yet", ""),
        ("more done", "nothing yet", ""),
        ("export begun --to results", "nothing yet", ""),
        ("cut begun --pick best --size 1 --to cut", "nothing yet", ""),
    ],
)
def test_a_wrong_call_is_a_sentence_for_people_and_a_report_for_programs(
    place: Path, call: str, kind: str, said: str, cli: Cli
) -> None:
    before, status = sorted(place.iterdir()), NO if kind == "nothing yet" else WRONG
    shown, printed = cli(*call.split(), status=status).err, cli(*call.split(), "--json", status=status)
    VALIDATOR.validate(report := printed.report)
    assert (report["report"], report["kind"], report["exit_status"], printed.err) == ("error", kind, status, "")
    assert len(report["mistakes"]) == (len(report["message"].splitlines()) if kind == "sweep file" else 1)
    assert all(said in text and "Traceback" not in text and "secret" not in text for text in (shown, report["message"]))
    assert sorted(place.iterdir()) == before


def test_sizes_and_a_suggestion_are_reports(place: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """What is cut and what is suggested stand in; other tests compute them."""
    monkeypatch.setattr("orchestrator.adapters.taking.cut_adapters", lambda *_: iter([("LoRA r9, cut to r1", 100.0)]))
    report = cli("cut", "done", "--pick", "best", "--size", "1", "--to", "cut", "--json").report
    VALIDATOR.validate(report)
    assert (report["sizes"], report["path"]) == ({"LoRA r9, cut to r1": 100}, "cut")
    suggestion = SimpleNamespace(text=f"# mine\n{SWEEP}", seconds=math.nan)
    monkeypatch.setattr("orchestrator.suggest.suggest.suggest", lambda *_: suggestion)
    report = cli("suggest", "--model", "m", "--data", "rows.csv", "--json").report
    VALIDATOR.validate(report)
    assert (report["sweep_file"], report["seconds"]) == (suggestion.text, None)


def test_a_stopped_command_says_so_as_a_report(place: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrator.review.past_sweep.find_sweep", stop)
    report = cli("front", "done", "--json", status=130).report
    assert (report["kind"], report["exit_status"], report["message"]) == ("stopped", 130, "stopped")


@pytest.mark.parametrize("call", ["run next.yaml --json", "more two --yes --json"])
def test_a_sweep_that_is_stopped_has_one_report_whoever_started_it(
    call: str, place: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    both = {"LoRA r1": (100, over_seeds(70)), "LoRA r8": (800, over_seeds(90))}
    state = SimpleNamespace(started=SimpleNamespace(folder=record(place / "runs" / "two", both, seeds=(0,))))
    outcome = SimpleNamespace(trouble=None, signal=2, left=["a trial"], open=False, state=state)
    monkeypatch.setattr(commands_of_runs, "run_file", lambda *_: outcome)
    monkeypatch.setattr(State, "again", "craft-sweeps run next.yaml --resume")
    assert cli(*call.split(), status=STOPPED).report["report"] == "front"


BEGINS_AGAIN = """
from orchestrator.tools.quiet import only_report
from orchestrator.tools.signals import begin_again
with only_report():
    print("noise")
    begin_again(["-c", "import sys; print('report', '' in sys.path)"], 2)
"""


def test_a_process_that_begins_again_writes_its_report_to_stdout() -> None:
    done = subprocess.run([sys.executable, "-c", BEGINS_AGAIN], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("report False\n", "noise\n"), "no module in the folder replaces a library"


@pytest.mark.slow
def test_an_audit_reports_the_smaller_adapter(tiny_bert: str, here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tiny_bert, CONFIGS["lora"], here / "whole")
    monkeypatch.setattr("craft.audit.audit._helps", lambda *_: True)
    report = cli(
        "audit", "whole", "--data", rows(here), "--label", "label", "--within", "100", "--to", "small", "--json"
    ).report
    VALIDATOR.validate(report)
    assert (report["report"], report["enough"], report["path"], report["cut_from"]) == ("audit", 64, "small", None)
    assert Path("small/adapter_model.safetensors").exists()

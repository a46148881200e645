"""Reports: each keeps to the published schema, by another validator, and has the values that the terminal shows."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from craft.spec import RunSpec
from docs.generate import reports_schema
from orchestrator.adapters.model_card import Taken
from orchestrator.adapters.taking import take_report
from orchestrator.commands.app import LEFT, STOPPED, error_report
from orchestrator.commands.check import CheckReport, Finding
from orchestrator.plan.table import print_plan
from orchestrator.plan.trial import TrialResult
from orchestrator.record.events import Ended, Wanted
from orchestrator.results.front import mark_front
from orchestrator.results.metrics import amount, number
from orchestrator.results.report import Report
from orchestrator.results.tuning import Tuning
from orchestrator.review.front_report import front_report, row_of
from orchestrator.review.front_tables import show_front
from orchestrator.review.past_sweep import NoSuchSweep, PastSweep, read_folder
from orchestrator.review.pick import choose_seed, pick
from orchestrator.review.prospect import look_ahead, plan_report
from orchestrator.sweepfile.mistakes import NothingMeets, SweepError
from orchestrator.tools.signals import SIGNALS
from orchestrator.tracking.client import TrackingError
from tests.orchestrator.plans import count, rank, toy_sweep
from tests.orchestrator.recorded import over_seeds, printed, record, write_log
from tests.orchestrator.results.test_answer import STEEP
from tests.orchestrator.stand_in import ROOT

SCHEMA = reports_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SEEDS = (0, 1, 2)
ENOUGH = {
    "LoRA small": (100, over_seeds(70, 72, 71)),
    "LoRA middle": (5_000, over_seeds(90, 92, 91)),
    "LoRA large": (80_000, over_seeds(91, 92, 91.5)),
    "LoRA cut": (10, over_seeds(99)),
}


def checked(report: Report) -> dict[str, Any]:
    """The report as a program reads it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = report.to_json()
    assert text.isascii()
    fields = json.loads(text, parse_constant=refuse)
    VALIDATOR.validate(fields)
    return dict(fields)


@pytest.fixture
def front(tmp_path: Path) -> PastSweep:
    """Three complete configurations of three seeds, and one with a single seed."""
    return read_folder(record(tmp_path / "front", ENOUGH, seeds=SEEDS))


def test_the_schema_is_what_the_code_says_and_describes_every_field() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    bare = [
        f"{part}.{name}"
        for part, schema in SCHEMA["$defs"].items()
        for name, field in schema.get("properties", {}).items()
        if not field.get("description")
    ]
    assert bare == []


@pytest.mark.parametrize("change", [{"format": 2}, {"report": "other"}, {"sweep": None}, {"rows": [{}]}])
def test_the_schema_refuses_what_is_no_report(front: PastSweep, change: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(checked(front_report(front)) | change)


def test_a_front_has_the_values_of_the_table(front: PastSweep) -> None:
    report = checked(front_report(front))
    shown = printed(lambda console: show_front(front.summaries, front.sweep, front.answer, "", console))
    lines = [line for line in shown.splitlines() if "LoRA" in line and line.startswith("│")]
    assert [row["label"] for row in report["rows"]] == ["LoRA small", "LoRA middle", "LoRA large", "LoRA cut"]
    for row, line in zip(report["rows"], lines, strict=True):
        value, half = row["score"]["value"], (row["score"]["high"] or math.nan) - (row["score"]["low"] or math.nan)
        cells = [row["label"], amount("trainable_parameters", row["trainable_parameters"]), number(value) if value else "–"]
        cells += [f"± {half / 2:.2f}", number(row["p_front"]), number(row["p_enough"])] if row["complete"] else []
        assert all(cell in line for cell in cells), (cells, line)
        assert (row["on_front"], row["enough"]) == ("●" in line, "✓" in line)
    assert report["answer"]["text"].splitlines()[0] in shown
    assert report["caption"] in shown
    assert report["answer"]["label"] == "LoRA middle"
    chance = next(row["p_enough"] for row in report["rows"] if row["label"] == "LoRA middle")
    assert report["answer"]["p_better"] == pytest.approx(1 - chance)


def test_a_front_may_be_judged_by_other_points(front: PastSweep) -> None:
    wide = checked(front_report(front.with_within(50)))
    assert [row["label"] for row in wide["rows"] if row["enough"]] == ["LoRA small"]
    assert (wide["answer"]["within"], wide["answer"]["configuration"]) == (50, wide["rows"][0]["configuration"])
    with pytest.raises(ValueError, match="above 0 and at most 100"):
        front.with_within(0)


NAN, INFINITE = over_seeds(math.nan, 80, 81), over_seeds(math.inf, 80, 81)


@pytest.mark.parametrize(
    ("configurations", "answered"),
    [({}, False), ({"LoRA a": (1, {})}, False), ({"LoRA a": (1, over_seeds(80))}, True), ({"LoRA a": (1, NAN)}, True),
     ({"LoRA a": (1, INFINITE), "LoRA b": (2, over_seeds(1, 2, 3))}, True)],
)  # fmt: skip
def test_a_front_without_some_numbers_is_json(tmp_path: Path, configurations: Any, answered: bool) -> None:
    seeds = (0,) if len(configurations.get("LoRA a", (0, {}))[1]) == 1 else SEEDS
    report = checked(front_report(read_folder(record(tmp_path / "s", configurations, seeds=seeds))))
    assert (report["answer"]["kind"] not in ("unfinished", "failed")) == bool(report["answer"]["configuration"]) == answered
    assert len(report["rows"]) == len(configurations)


def test_findings_have_what_the_terminal_shows() -> None:
    findings = [
        Finding("good", "disk", "there is room"),
        Finding("bad", "storage", "cannot be written", "give another --storage"),
    ]
    report = checked(CheckReport.of(findings))
    assert (report["ok"], checked(CheckReport.of(findings[:1]))["ok"]) == (False, True)
    shown = printed(CheckReport.of(findings).show)
    assert all(row[name] in shown for row in report["findings"] for name in ("level", "subject", "sentence", "remedy"))


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
    steps = {row.id: 30 for row in plan.trained}
    report = checked(plan_report(plan, steps, lines=[("scored on 100 examples", "")]))
    shown = printed(lambda console: print_plan(plan, console, steps))
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
    assert checked(plan_report(plan, {}))["optimizer_steps"] is None


def test_what_was_taken_says_where_it_is_and_how_it_loads(front: PastSweep, tmp_path: Path) -> None:
    chosen = pick("enough", front.summaries, front.sweep.objectives)
    entry, why = choose_seed(front.trials(chosen.summary.configuration), None)
    run = RunSpec(model="m", task="toy/sentiment", method="lora", parameters={"rank": 1}, seed=1)
    (tmp_path / "adapter" / "sub").mkdir(parents=True)
    (tmp_path / "adapter" / "sub" / "tokenizer.json").write_text("{}")
    run_file = {"spec": run.model_dump(mode="json"), "kind": "classification", "labels": ["no", "yes"], "facts": {}}
    (tmp_path / "adapter" / "run.json").write_text(json.dumps(run_file))
    taken = [Taken("demo", chosen.summary, entry, (why,), folder=tmp_path / "adapter")]
    report = checked(take_report(front, chosen, taken))
    assert (report["label"], report["trainable_parameters"]) == ("LoRA middle", 5000)
    (adapter,) = report["adapters"]
    assert (adapter["seed"], adapter["score"], adapter["files"]) == (1, 92, ["run.json", "sub/tokenizer.json"])
    assert adapter["load"][0] == "from craft import load_adapter"
    alone = checked(take_report(front, chosen, taken, written=False, registered=["registered as version 1 of m"]))
    assert (alone["adapters"][0]["path"], alone["adapters"][0]["load"], len(alone["registered"])) == (None, [], 1)


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (SweepError(["s.yaml:1: a: wrong", "s.yaml:2: b: wrong"]), "sweep file", 2),
        (NoSuchSweep("there is no sweep 'x'"), "no such sweep", 2),
        (NothingMeets("nothing has finished"), "nothing yet", 1),
        (TrackingError("http://me:secret@host does not answer"), "store", 2),
        (FileNotFoundError(2, "No such file or directory", "a.yaml"), "system", 2),
        (ValueError("--to x is not empty"), "call", 2),
        (KeyboardInterrupt(), "stopped", 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_is_a_report_with_its_exit_status(error: BaseException, kind: str, status: int) -> None:
    report = checked(error_report(error))
    assert (report["kind"], report["exit_status"]) == (kind, status)
    assert report["message"]
    assert "secret" not in json.dumps(report)
    assert len(report["mistakes"]) == (2 if kind == "sweep file" else 1)


def test_settings_are_text_as_in_the_store(tmp_path: Path) -> None:
    folder = record(tmp_path / "s", {"LoRA a": (1, over_seeds(80, 81))})
    sweep = read_folder(folder)
    strange = {"dropout": math.inf, "ranks": ("all", 8, 8), "tf32": False, "learning_rate": 3e-4, "path": tmp_path}
    entries = {entry.key: replace(entry, trial=replace(entry.trial, parameters=strange)) for entry in sweep.entries}
    (row,) = checked(front_report(replace(sweep, state=replace(sweep.state, entries=entries))))["rows"]
    shown = {"dropout": "inf", "ranks": "all,8,8", "tf32": "false", "learning_rate": "3e-4", "path": str(tmp_path)}
    assert row["parameters"] == shown


def test_a_sweep_with_tuned_settings_says_what_they_took() -> None:
    spent = Tuning(3, 9, 1, 60.0, at_end=("highest learning_rate",))
    (summary,) = mark_front([replace(STEEP[0], tuning=spent)], yaml.safe_load("{score: maximize}"))
    row = row_of(summary).model_dump()
    assert (row["tuned"], row["tuning_trials"], row["tuning_at_end"]) == (True, 9, ["highest learning_rate"])


def test_the_page_for_programs_has_every_exit_status_kind_and_report() -> None:
    page = (ROOT / "docs" / "for-programs.md").read_text().partition("\n## Reports\n")[2]
    statuses = [int(status) for status in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
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

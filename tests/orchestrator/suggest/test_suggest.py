"""A suggested file says what the data are, passes `plan` and fits the hours; wrong data are refused as by the plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from craft.settings import CustomTask, TrainingSettings
from craft.tasks.files import DataError, Rows
from craft.trainer.probe import Speed
from orchestrator.plan.plan import make_plan
from orchestrator.plan.work import Work, count_work
from orchestrator.suggest.facts import (
    DataFacts,
    Machine,
    ModelFacts,
    columns_of,
    kind_of,
)
from orchestrator.suggest.suggest import Bounds, Design, suggest
from orchestrator.sweepfile.load import load_sweep
from tests.orchestrator.conftest import Cli

LETTERS = ["my parcel did not come", "the invoice is wrong again", "please close my account", "how do I send it back"]
QUEUES = ["delivery", "billing", "account", "returns"]
ROWS = 240


def classes(row: int) -> dict[str, Any]:
    return {"id": f"T{row}", "body": f"{LETTERS[row % 4]} {row}", "queue": QUEUES[row % 4]}


CASES: dict[str, tuple[Callable[[int], dict[str, Any]], str | None, tuple[str, ...]]] = {
    "classes": (classes, "queue", ("text: [body]", "label: queue", "4 classes")),
    "skewed": (
        lambda row: {"text": f"letter number {row}", "label": int(row % 10 == 0)},
        "label", ("metric: macro_f1", "Classes: 0 216, 1 24"),
    ),
    "scores": (
        lambda row: {"text": f"how good is wine number {row}", "points": round(80 + row % 20 / 3, 2)},
        "points", ("kind: regression", "numbers on a scale"),
    ),
    "pairs": (
        lambda row: {"first": f"{LETTERS[row % 4]} {row}", "second": f"{LETTERS[row % 3]} {row + 1}", "same": "yn"[row % 2]},
        "same", ("text: [first, second]", "a pair of texts"),
    ),
    "answers": (
        lambda row: {"question": f"who was in story {row}?", "answer": f"there was a dog called {row}"},
        None, ("kind: generation", "prompt: [question]", "the base model, unchanged"),
    ),
}  # fmt: skip


@pytest.fixture
def write(here: Path) -> Callable[..., str]:
    """Writes the rows of a case as JSONL into the current folder; returns the file's name."""

    def write_rows(make: Callable[[int], dict[str, Any]], rows: int = ROWS) -> str:
        Path("mine.jsonl").write_text("".join(json.dumps(make(row)) + "\n" for row in range(rows)))
        return "mine.jsonl"

    return write_rows


@pytest.fixture
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a step takes 0.2 s."""
    training = TrainingSettings(batch_size=16, max_length=16, group_by_length=True)
    machine = Machine(training, cpu=1, gpu=0, at_once=2, memory=2**20, speed=Speed(2.0, 0.2, 0.01))
    monkeypatch.setattr("orchestrator.suggest.suggest.measure_machine", lambda run: machine)
    monkeypatch.setattr("orchestrator.review.prospect.probe_plan", lambda plan: machine.speed)


@pytest.mark.slow
@pytest.mark.usefixtures("slow_machine")
@pytest.mark.parametrize("case", CASES)
def test_the_file_says_what_the_rows_are_and_passes_the_plan(
    case: str, write: Callable[..., str], tiny_bert: str, request: pytest.FixtureRequest, cli: Cli
) -> None:
    make, label, lines = CASES[case]
    model = request.getfixturevalue("stories") if case == "answers" else tiny_bert
    suggestion = suggest(model, write(make), label, hours=0.5)
    assert ("metric:" in suggestion.text) == (case == "skewed")
    for line in lines:
        assert line in suggestion.text
    Path("sweep.yaml").write_text(suggestion.text)
    assert "by a few steps that were timed here" in cli("plan", "sweep.yaml").out


@pytest.mark.slow
@pytest.mark.usefixtures("slow_machine")
def test_more_hours_never_give_less_work_and_say_what_is_left_out(write: Callable[..., str], tiny_bert: str) -> None:
    data, before = write(classes), Work()
    for hours in (0.05, 0.1, 0.2, 0.5, 1, 2, 10):
        suggestion = suggest(tiny_bert, data, "queue", hours=hours)
        Path("sweep.yaml").write_text(suggestion.text)
        work = sum(count_work(make_plan(load_sweep("sweep.yaml"))).values(), Work())
        assert suggestion.seconds <= 3600 * hours
        assert work.trainings >= before.trainings
        longer = suggestion.bounds.longer(suggestion.design)
        used = suggestion.seconds >= 0.6 * 3600 * hours
        assert used or not longer or not suggestion.left_out, "the hours are used, but for more passes than help"
        assert ("Left out" in suggestion.text) == bool(suggestion.left_out)
        before = work
    assert suggestion.left_out == ()


@pytest.mark.usefixtures("slow_machine")
def test_whatever_labels_and_names_hold_the_file_is_one_that_loads(tmp_path: Path, tiny_bert: str) -> None:
    ends, column, file = "\n \r \x85 \u2028 \u2029 \x0c name: other", "queue\u2028name", tmp_path / "odd\u2028file\n.jsonl"
    rows = [{"body": f"{LETTERS[row % 4]} {row}", "system": "brief", column: f"{row % 2}{ends}"} for row in range(120)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text = suggest(tiny_bert, str(file), column, hours=0.05).text
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8")
    (own,) = load_sweep(tmp_path / "sweep.yaml").data.custom.values()
    assert (own.train, own.label) == (str(file), column)
    assert "# Columns that the model does not read: system." in text
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.slow
@pytest.mark.usefixtures("slow_machine")
def test_a_validation_file_is_scored_and_equal_texts_of_both_are_named(write: Callable[..., str], tiny_bert: str) -> None:
    data = write(classes)
    Path("dev.csv").write_text(
        "body,queue\n" + "".join(f"{LETTERS[row % 4]} {row},{QUEUES[row % 4]}\n" for row in range(200, 320))
    )
    suggestion = suggest(tiny_bert, data, "queue", hours=1, validation="dev.csv")
    assert suggestion.bounds.data.reported == 120
    assert "validation: dev.csv" in suggestion.text
    assert "reported:" not in suggestion.text
    assert "40 of 120 reported rows are training rows too" in suggestion.text


DESKS = ("Parcel desk", "Money desk", "Account desk", "Return desk")


@pytest.mark.parametrize(
    ("title", "left_out"),
    [
        (lambda row: DESKS[row % 4], True),
        (lambda row: f"{DESKS[row % 4]} {row // 4 % 3}", True),  # three names of each label
        (lambda row: DESKS[row % 4].upper() if row % 50 else "", True),  # some cells are empty
        (lambda row: DESKS[row % 4 if row % 100 else 1], True),  # one in a hundred is wrong
        (lambda row: DESKS[row % 4 if row % 5 else row % 3], False),  # one in ten is wrong
        (lambda row: f"on day {row % 61} of summer", False),
        (lambda row: f"letter number {row}", False),
    ],
)
def test_a_column_that_tells_the_label_is_left_out_and_named(title: Callable[[int], str], left_out: bool) -> None:
    columns = {
        "body": [f"{LETTERS[row % 4]} {row}" for row in range(400)],
        "queue_title": [title(row) for row in range(400)],
        "queue": [QUEUES[row % 4] for row in range(400)],
    }
    notes: list[str] = []
    text = columns_of(Rows("mine.csv", columns), "queue", (), None, notes)["text"]
    assert text == (["body"] if left_out else ["body", "queue_title"])
    (note,) = notes
    assert (
        "Left out: column queue_title, because it tells the label" if left_out else "A choice: body and queue_title"
    ) in note
    assert columns_of(Rows("mine.csv", columns), "queue", ("queue_title",), None, warned := [])["text"] == ["queue_title"]
    assert ["tells the label" in warning for warning in warned] == [True] * left_out
    if left_out:
        del columns["body"]
        with pytest.raises(DataError, match="queue_title tells the label"):
            columns_of(Rows("mine.csv", columns), "queue", ())


@pytest.mark.slow
@pytest.mark.usefixtures("slow_machine")
def test_a_file_with_bad_rows_in_another_encoding_gives_a_sweep_that_reads_it_so(tmp_path: Path, tiny_bert: str) -> None:
    rows = [f"größer als {row},{'ab'[row % 2]}" for row in range(120)]
    (tmp_path / "mine.csv").write_bytes("\n".join(["text,label", *rows, " ,a", "leer,", "drei,a,b"]).encode("cp1252"))
    data = str(tmp_path / "mine.csv")
    with pytest.raises(DataError, match="suggest --encoding cp1252"):
        suggest(tiny_bert, data, "label", hours=1)
    with pytest.raises(DataError, match="suggest --skip-bad"):
        suggest(tiny_bert, data, "label", hours=1, encoding="cp1252")
    text = suggest(tiny_bert, data, "label", hours=0.05, encoding="cp1252", skip_bad=True).text
    assert f"# Warning: 3 of 123 rows of {data} are left out, because they cannot be used." in text
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8")
    (own,) = load_sweep(tmp_path / "sweep.yaml").data.custom.values()
    assert (own.encoding, own.skip_bad) == ("cp1252", True)


HEAD = "text,label\n"
TWO = HEAD + "".join(f"row {row},{row % 2}\n" for row in range(200))
FEW = HEAD + "one two,a\nthree four,b\n"
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (HEAD + "one two,a\nthree four,a\n", {}, "holds 1 different labels; classification needs 2"),
    (
        HEAD + "".join(f"letter {row} of many,T{row}\n" for row in range(40)),
        {},
        "40 different labels in 40 rows: is it the lab",
    ),
    (FEW, {"label": "queue"}, "has no column 'queue'; its columns are: text, label"),
    (FEW, {"label": None}, "label: name the column to predict"),
    (FEW, {"label": None, "text": ["a", "b", "c"]}, "text: a, b, c: a model reads one column"),
    ("text;label\n" + "one two;3,5\nthree four;4\n" * 9, {}, "label: '3,5' has a decimal comma"),
    (HEAD + "one,a\nthree,b\n", {}, "no column looks like text"),
    (FEW, {"text": ["text", "label"]}, "text: label is the label"),
    ("a,b,c,label\n" + "one two,one two,one two,x\n" * 9, {}, "a, b, c look like texts"),
    (TWO, {"kind": "pairs"}, "kind: got 'pairs'; allowed are: classification, regression, generation"),
    (TWO, {"hours": 0}, "hours: got 0; a number above 0"),
    (TWO, {"hours": 0.01}, "hours: 0.01 are too few"),
    (TWO, {"name": "a/b"}, "name: got 'a/b'"),
]


@pytest.mark.usefixtures("slow_machine")
@pytest.mark.parametrize(("content", "arguments", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_what_cannot_be_is_refused_with_the_reason(
    content: str, arguments: dict[str, Any], message: str, tmp_path: Path, tiny_bert: str
) -> None:
    (tmp_path / "mine.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        suggest(**{"model": tiny_bert, "data": str(tmp_path / "mine.csv"), "label": "label", **arguments})


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["yes", "no"] * 20, "classification"),
        (["0", "1"] * 20, "classification"),
        ([1, 2, 3, 4, 5] * 20, "classification"),
        ([*range(77)] * 3, "classification"),  # codes of classes
        ([*range(500, 540)], "classification"),  # as many as rows: names of rows, and an error of the plan
        ([0.0, 2.4, 5.0] * 20, "regression"),
        ([0.0, 2.4, 5.0] * 20 + ["?", "inf"], "regression"),  # two mistakes among the numbers
        (["1", "2", "3"] * 20 + ["?"], "classification"),
        (["12", "340", "7"] * 3 + [str(row * 7) for row in range(60)], "regression"),
        ([f"the answer is number {row}" for row in range(40)], "generation"),
        (["the same long name", "another long name"] * 20, "classification"),
    ],
)
def test_the_kind_of_task_is_that_of_the_label(cells: list[Any], kind: str) -> None:
    assert kind_of(cells) == kind


CHAT = [[{"role": "user", "content": "hi"}]] * 2
ALPACA = {"instruction": ["a b"] * 2, "input": ["", ""], "output": ["c"] * 2}
ASKED = {"asked": ["a b c", "d e f"], "said": ["one two three", "four five six"]}


@pytest.mark.parametrize(
    ("columns", "label", "expected"),
    [
        ({"documents": [[{"text": "a b"}]] * 2, "chat": CHAT}, None, {"messages": "chat"}),
        ({"chat": CHAT}, "chat", {"messages": "chat"}),
        (ALPACA, None, {"prompt": ["instruction", "input"], "response": "output"}),
        (ASKED, "said", {"prompt": ["asked"], "response": "said"}),
    ],
)
def test_columns_of_answers(columns: dict[str, list[Any]], label: str | None, expected: dict[str, Any]) -> None:
    assert columns_of(Rows("mine.jsonl", columns), label, ()) == {"kind": "generation", **expected}


@pytest.mark.usefixtures("slow_machine")
@pytest.mark.parametrize(
    "name", ["2024", *(pytest.param(name, marks=pytest.mark.slow) for name in ("1e5", "null", "my data (1)", "größe"))]
)
def test_the_name_of_a_file_is_that_of_a_task(name: str, write: Callable[..., str], tiny_bert: str) -> None:
    file = Path(write(classes)).rename(f"{name}.jsonl")
    Path("sweep.yaml").write_text(suggest(tiny_bert, str(file), "queue", hours=0.05).text)
    assert load_sweep("sweep.yaml").task_names[0].startswith("custom/")


@pytest.mark.usefixtures("slow_machine")
def test_equal_texts_with_different_labels_are_named(write: Callable[..., str], tiny_bert: str) -> None:
    data = write(lambda row: classes(row) | {"body": f"letter number {row % 230}"})
    assert "20 rows share their text but not their label" in suggest(tiny_bert, data, "queue", hours=0.05).text


def bounds_of(rows: int, model: ModelFacts) -> Bounds:
    data = DataFacts(
        "mine", CustomTask(train="a.csv", text=("t",), label="u"), "classification", rows, rows // 10, 0.1,
        rows // 4, {}, (20, 40, 60), 48, (), (), (),
    )  # fmt: skip
    return Bounds(data, model, 16)


ALL = ("q", "k", "v", "o", "up", "down")


@pytest.mark.parametrize(
    ("hidden", "count", "expected"),
    [(384, 3, [1e-3, 2e-3, 4e-3]), (768, 1, [1e-3]), (4096, 5, [8e-5, 2e-4, 3e-4, 7e-4, 1e-3])],
)
def test_rates_lie_around_what_is_usual_for_the_width(hidden: int, count: int, expected: list[float]) -> None:
    assert bounds_of(1000, ModelFacts(2, hidden, 1, ALL, hidden)).rates(Design(rates=count)) == expected


@pytest.mark.parametrize("rows", [120, 540, 1620, 6000, 50_000])
def test_a_pass_comes_before_three_these_before_rates_and_rates_before_other_methods(rows: int) -> None:
    bounds = bounds_of(rows, ModelFacts(6, 384, 1, ALL, 384))
    for _, design in bounds.stages():
        if max(design.rates, design.methods, design.seeds) > 1:
            assert design.steps >= 3 * bounds.epoch
            assert design.steps >= 400 or design.steps >= 20 * bounds.epoch - 16
        assert design.rates > 1 or design.methods == 1
        assert design.methods == len(bounds.methods) or design.seeds == 1
    first = Design()
    below = [design.steps for design in bounds.longer(first) if design.steps < bounds.epoch]
    assert below == [*range(70, bounds.epoch, 10)], "by tens up to a pass"


def test_methods_are_those_for_which_the_model_has_projections() -> None:
    assert bounds_of(1000, ModelFacts(2, 64, 1, ALL, 64)).methods == ["lora", "everywhere", "ia3", "craft"]
    assert bounds_of(1000, ModelFacts(2, 64, 1, ("q", "k", "v", "o"), 64)).methods == ["lora", "craft"]

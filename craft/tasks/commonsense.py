"""commonsense: eight question sets answered by one language model, trained on their mixture (LLM-Adapters, arXiv 2304.01933).

One trial trains on the mixture and is scored on every test, so the suite is one task. Data lie in `data.root`:

    commonsense/commonsense_170k.json (or commonsense_16k.json)     records of instruction, input, output, answer
    commonsense/dataset/NAME/test.json                              the same, one folder a test

Rows become the columns `text` (the instruction), `input`, `response`, `label` (the right answer as text), `family` (how answers
look, a key of `extraction.PATTERNS`) and `group` (the test; in the mixture the family, which is all that a record tells).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from craft.data_settings import DataSettings
from craft.tasks.extraction import PATTERNS, family_of
from craft.tasks.files import DataError, DataUnavailable, Rows, read_rows
from craft.tasks.rows import fingerprint
from craft.tasks.task import RawData, Task

if TYPE_CHECKING:
    from datasets import Dataset

SOURCE = "github.com/AGI-Edgerunners/LLM-Adapters"
MIXTURES = ("commonsense_170k.json", "commonsense_16k.json")
COLUMNS = ("text", "input", "response", "label", "family", "group")


@dataclass(frozen=True)
class TestSet:
    """One of the eight: its folder in the published layout, how its answers look, and how many questions it has."""

    folder: str
    family: str
    size: int


TESTS: dict[str, TestSet] = {
    "boolq": TestSet("boolq", "truth", 3270),
    "piqa": TestSet("piqa", "solution", 1838),
    "siqa": TestSet("social_i_qa", "answer", 1954),
    "hellaswag": TestSet("hellaswag", "ending", 10042),
    "winogrande": TestSet("winogrande", "option", 1267),
    "arc_easy": TestSet("ARC-Easy", "answer", 2376),
    "arc_challenge": TestSet("ARC-Challenge", "answer", 1172),
    "openbookqa": TestSet("openbookqa", "answer", 500),
}


def load(task: Task, data: DataSettings) -> RawData:
    """Reads the mixture and the tests that `data.generation.tests` names (all eight unless it says otherwise)."""
    tests = data.generation.tests
    if data.root is None:
        raise DataError(
            f"{task.name}: the data are read from a folder; give one that holds commonsense/{MIXTURES[0]} and "
            f"commonsense/dataset/NAME/test.json (NAME: {', '.join(TESTS[name].folder for name in tests)}) as data.root. "
            f"They are in {SOURCE}"
        )
    folder = Path(data.root).expanduser() / "commonsense"
    paths = {name: folder / "dataset" / TESTS[name].folder / "test.json" for name in tests}
    absent = [name for name, path in paths.items() if not path.is_file()]
    if absent:
        present = [name for name, test in TESTS.items() if (folder / "dataset" / test.folder / "test.json").is_file()]
        advice = f"set data.generation.tests to [{', '.join(present)}]" if present else "complete the folder"
        raise DataUnavailable(
            f"{task.name}: no test set for {', '.join(absent)} in {folder / 'dataset'} (expected "
            f"{', '.join(f'{TESTS[name].folder}/test.json' for name in absent)}). A mean over fewer tests is another number, "
            f"so they are not left out silently: {advice} to score only the tests that are there"
        )
    file = mixture(data)
    train = _checked(read_rows(file), None)
    reported = {f"_{name}": _checked(read_rows(path), name) for name, path in paths.items()}
    return RawData(train, reported, fingerprint([train, *reported.values()]), (file, *paths.values()))


def notes(data: DataSettings, reported: dict[str, int]) -> list[str]:
    """Returns notes for readers of the score: which tests it averages if not all, which tests have another size than
    published, and whether the smaller mixture was used."""
    said = []
    if set(data.generation.tests) != set(TESTS):
        said.append(f"mean of {len(reported)} of the 8 commonsense tests: {', '.join(data.generation.tests)}")
    odd = [f"{name} {size} of {TESTS[name].size}" for name, size in reported.items() if size != TESTS[name].size]
    if odd:
        said.append(f"tests not of their published size: {', '.join(odd)}")
    if mixture(data).name == MIXTURES[1]:
        said.append(f"trained on {MIXTURES[1]}, a tenth of the mixture that published rows are trained on")
    return said


def mixture(data: DataSettings) -> Path:
    """Finds the file with the training mixture."""
    folder = Path(data.root or "").expanduser() / "commonsense"
    for name in MIXTURES:
        if (folder / name).is_file():
            return folder / name
    raise DataUnavailable(f"commonsense: no training mixture in {folder}: put {' or '.join(MIXTURES)} there, from {SOURCE}")


def _checked(rows: Rows, test: str | None) -> Dataset:
    from datasets import Dataset, Features, Value

    columns = {name: rows.column(name) for name in ("instruction", "output", "answer")}
    inputs = rows.columns.get("input") or [""] * len(rows)
    families = []
    for row in range(len(rows)):
        for name, cells in columns.items():
            if not isinstance(cells[row], str) or not cells[row].strip():
                raise DataError(f"{rows.place(row)}: {name!r} is {cells[row]!r}; text is expected")
        if not isinstance(inputs[row], str | None):
            raise DataError(f"{rows.place(row)}: 'input' is {inputs[row]!r}; text is expected")
        families.append(family_of(answer := columns["answer"][row]))
        if families[row] is None or (test is not None and families[row] != TESTS[test].family):
            allowed = [PATTERNS[TESTS[test].family]] if test else [*PATTERNS.values()]
            names = " or ".join(pattern.pattern for pattern in allowed).replace("|", ", ")
            raise DataError(f"{rows.place(row)}: 'answer' is {answer!r}; allowed are: {names}")
    table: dict[str, Sequence[Any]] = {
        "text": columns["instruction"],
        "input": [text or "" for text in inputs],
        "response": columns["output"],
        "label": columns["answer"],
        "family": families,
        "group": families if test is None else [test] * len(rows),
    }
    return Dataset.from_dict(table, features=Features({name: Value("string") for name in COLUMNS}))


TASKS: tuple[Task, ...] = (
    Task(
        "commonsense", "Eight commonsense question sets, one model", "generation", ("text",), "label", (),
        ("accuracy",), "accuracy", load,
    ),
)  # fmt: skip

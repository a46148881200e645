r"""commonsense: eight question sets answered by one language model, trained on their mixture (LLM-Adapters, arXiv 2304.01933).

One trial trains on the mixture and is scored on every test, so the suite is one task. Data are in `data.root`:

    commonsense/commonsense_170k.json (or commonsense_16k.json)     records of instruction, input, output, answer
    commonsense/dataset/NAME/test.json                              the same, one folder a test

Rows become the columns `text` (the instruction), `input`, `response`, `label` (the right answer as text), `family` (how answers
look, a key of PATTERNS) and `group` (the test; in the mixture the family, which is all that a record tells).

Under `score: generate` the first match of the family's pattern in what the model writes is its answer, as in the published
code. Under `score: cloze` the model reads options' own texts:

    question    Question: Which equipment keeps out mold spores?\nAnswer:   ->  " safety goggles" | " breathing mask" | ...
    ending      She bends down and grabs the pole. the lady                 ->  " swings and lands in her arms." | ...
    option      Sarah was a better surgeon than Maria so {Sarah | Maria}    ->  " always got the harder cases."
    truth       Question: is house tax the same as property tax?\nAnswer:   ->  " true" | " false"

These are the forms of lm-evaluation-harness: PIQA, ARC and OpenBookQA; HellaSwag; WinoGrande by partial evaluation (Trinh and
Le 2018, arXiv 1806.02847); BoolQ, whose answers are here those of the mixture. The instruction of a record holds all of it, so
training texts have the same form: the context and the right option's continuation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from craft.settings import DataSettings, GenerationSettings
from craft.tasks.files import DataError, DataUnavailable, Rows, read_rows
from craft.tasks.prompts import PROMPTS, Option, Texts
from craft.tasks.rows import fingerprint, read_cells, read_text
from craft.tasks.task import Published, RawData, Task

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

SOURCE = "github.com/AGI-Edgerunners/LLM-Adapters"
MIXTURE_SIZE = 170_420
MIXTURES = ("commonsense_170k.json", "commonsense_16k.json")
# Alternatives are tried from the left, as in the published code; none begins another, so their order does not matter.
PATTERNS: dict[str, re.Pattern[str]] = {
    "truth": re.compile(r"true|false"),
    "solution": re.compile(r"solution1|solution2"),
    "answer": re.compile(r"answer1|answer2|answer3|answer4|answer5"),
    "ending": re.compile(r"ending1|ending2|ending3|ending4"),
    "option": re.compile(r"option1|option2"),
}
_MARK = "### Response:"
_TASK = re.compile(
    r"Please (?:choose the correct \w+ (?:to the question|to (?:fill in the blank to )?complete the given sentence)"
    r"|answer the following question with true or false, question):\s*"
)
_FORMAT = re.compile(r"\s*Answer format:\s*(\S+)\s*$")


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
    folder = Path(data.root or "").expanduser() / "commonsense"
    for name in MIXTURES:
        if (folder / name).is_file():
            return folder / name
    raise DataUnavailable(f"commonsense: no training mixture in {folder}: put {' or '.join(MIXTURES)} there, from {SOURCE}")


def _checked(rows: Rows, test: str | None) -> Dataset:
    from datasets import Dataset, Features, Value

    def read_family(answer: str) -> str:
        allowed = PATTERNS if test is None else {TESTS[test].family: PATTERNS[TESTS[test].family]}
        for family, pattern in allowed.items():
            if pattern.fullmatch(answer):
                return family
        names = " or ".join(pattern.pattern for pattern in allowed.values()).replace("|", ", ")
        raise DataError(f"holds {answer!r}; allowed are: {names}")

    columns = {name: read_cells(rows, name, read_text) for name in ("instruction", "output", "answer")}
    inputs = [""] * len(rows)
    if "input" in rows.columns:
        inputs = read_cells(rows, "input", lambda cell: "" if cell is None else read_text(cell, empty=True))
    families = read_cells(rows, "answer", read_family)
    table = {
        "text": columns["instruction"],
        "input": inputs,
        "response": columns["output"],
        "label": columns["answer"],
        "family": families,
        "group": families if test is None else [test] * len(rows),
    }
    return Dataset.from_dict(table, features=Features(dict.fromkeys(table, Value("string"))))


def extract(output: str, family: str) -> str:
    """Reads the answer in a model's output, `""` if there is none.

    If a model writes the mark of a response again, the text after the last mark is read; the published script reads the text
    before the second.
    """
    match = PATTERNS[family].search(output.rsplit(_MARK, 1)[-1])
    return match.group() if match else ""


def score(groups: Sequence[str], answers: Sequence[str], labels: Sequence[str]) -> dict[str, float]:
    """Computes accuracies x 100 of extracted answers: `accuracy_<group>`, their plain mean as `score`, and `answered`."""
    hits: dict[str, list[bool]] = {}
    for group, answer, label in zip(groups, answers, labels, strict=True):
        hits.setdefault(group, []).append(answer == label)
    by_group = {f"accuracy_{group}": 100.0 * sum(right) / len(right) for group, right in hits.items()}
    mean = sum(by_group.values()) / len(by_group)
    answered = 100.0 * sum(answer != "" for answer in answers) / len(answers)
    return {"score": mean, "accuracy": mean, **by_group, "answered": answered}


@dataclass(frozen=True)
class QuestionForm:
    """`craft.tasks.prompts.Form` of the questions: the template of the settings, or the cloze form."""

    tokenizer: PreTrainedTokenizerBase
    settings: GenerationSettings
    templated: bool = False

    @property
    def name(self) -> str:
        return "cloze" if self.settings.score == "cloze" else self.settings.prompt

    def texts(self, rows: Mapping[str, Sequence[str]]) -> Texts:
        template, pairs = PROMPTS[self.settings.prompt], list(zip(rows["text"], rows["input"], strict=True))
        asked = [template.for_evaluation(*pair) for pair in pairs]
        if self.settings.score != "cloze":
            return Texts([template.for_training(*pair) for pair in pairs], list(rows["response"]), asked)
        right = []
        for label, options, text in zip(rows["label"], self.options(rows), rows["text"], strict=True):
            if label not in options:
                raise ValueError(f"the answer {label!r} is none of {', '.join(options)} in {text[:120]!r}")
            right.append(options[label])
        return Texts([option.context for option in right], [option.continuation for option in right], asked)

    def options(self, rows: Mapping[str, Sequence[str]]) -> list[dict[str, Option]]:
        return [read_options(*cells) for cells in zip(rows["text"], rows["input"], rows["family"], strict=True)]

    def notes(self, rows: Mapping[str, Sequence[str]]) -> list[str]:
        return []


def read_options(instruction: str, context: str, family: str) -> dict[str, Option]:
    """Reads the options of an instruction of the mixture in cloze form, by their answers; `context` comes first."""
    last = _FORMAT.search(instruction)
    text = instruction[: last.start()] if last else instruction
    begin = _TASK.match(text)
    text = text[begin.end() :] if begin else text
    prefix = f"{context}\n" if context else ""
    if family == "truth":
        before = f"{prefix}Question: {text.strip()}\nAnswer:"
        return {answer: Option(before, f" {answer}", len(answer)) for answer in ("true", "false")}
    listed = [answer for answer in (last[1].split("/") if last else []) if PATTERNS[family].fullmatch(answer)]
    answers = dict.fromkeys(listed if len(listed) > 1 else sorted(PATTERNS[family].findall(instruction.lower())))
    question, texts = _split(text, [*answers])
    if len(answers) < 2 or not question or not all(texts):
        raise ValueError(
            f"no question or no text of an option in {instruction[:120]!r}: score: cloze reads 'Answer1: text Answer2: ...'"
        )
    options = dict(zip(answers, texts, strict=True))
    if family == "option":
        before, _, behind = question.partition("_")
        if not (behind := behind.strip()):
            raise ValueError(f"no blank '_' with text behind it in {instruction[:120]!r}: score: cloze puts each option there")
        return {answer: Option(prefix + before + text, f" {behind}", len(behind)) for answer, text in options.items()}
    before = prefix + (question if family == "ending" else f"Question: {question}\nAnswer:")
    return {answer: Option(before, f" {text}", len(text)) for answer, text in options.items()}


def _split(text: str, answers: Sequence[str]) -> tuple[str, list[str]]:
    """Splits `text` into the question and the text of each option; texts are empty where the option's mark is missing."""
    begins, ends, at = [], [], 0
    for answer in answers:
        mark = f"{answer.capitalize()}:"
        place = text.find(mark, at)
        if place < 0:
            return text.strip(), [""] * len(answers)
        at = place + len(mark)
        begins.append(at)
        ends.append(place)
    return text[: ends[0]].strip(), [text[begin:end].strip() for begin, end in zip(begins, [*ends[1:], len(text)], strict=True)]


TASKS: tuple[Task, ...] = (
    Task(
        "commonsense", "Eight commonsense question sets, one model", "generation", ("text",), "label", (),
        ("accuracy",), "accuracy", load, form=QuestionForm,
        published=lambda data: Published(MIXTURE_SIZE, tuple(TESTS[name].size for name in data.generation.tests), SOURCE),
    ),
)  # fmt: skip

"""The commonsense suite: what is read and refused, what counts as an answer, the mean of the tests, and the forms of cloze."""

from __future__ import annotations

import json

import pytest

from craft.settings import DataSettings, GenerationSettings
from craft.tasks import TASKS, expand_tasks
from craft.tasks.commonsense import PATTERNS, TESTS, QuestionForm, extract, notes, read_options, score
from craft.tasks.files import DataError
from craft.tasks.splits import load_splits

TASK = TASKS["commonsense"]
ANSWERS = {
    "boolq": ("true", "false"), "piqa": ("solution1", "solution2"), "siqa": ("answer1", "answer2", "answer3"),
    "hellaswag": ("ending1", "ending2", "ending3", "ending4"), "winogrande": ("option1", "option2"),
    "arc_easy": ("answer1", "answer2", "answer3", "answer4"), "arc_challenge": ("answer1", "answer2", "answer3", "answer5"),
    "openbookqa": ("answer1", "answer2", "answer3", "answer4"),
}  # fmt: skip


def record(answer, number=0):
    return {"instruction": f"Question {number}?", "input": "", "output": f"the correct answer is {answer}", "answer": answer}


@pytest.fixture
def root(tmp_path):
    """A folder in the published layout: 40 records a family to train on, 4 questions a test."""
    folder = tmp_path / "commonsense"
    mixture = [record(answer, number) for answers in ANSWERS.values() for number in range(20) for answer in answers[:2]]
    for name, test in TESTS.items():
        (folder / "dataset" / test.folder).mkdir(parents=True)
        rows = [record(ANSWERS[name][number % len(ANSWERS[name])], number) for number in range(4)]
        (folder / "dataset" / test.folder / "test.json").write_text(json.dumps(rows))
    (folder / "commonsense_170k.json").write_text(json.dumps(mixture))
    return tmp_path


def settings(root, **generation):
    return DataSettings(root=str(root), generation=generation)


def test_one_trial_is_scored_on_eight_tests_and_searched_by_the_shares_of_the_families(root):
    splits = load_splits(TASK, settings(root))
    assert list(splits.reported) == [f"_{name}" for name in TESTS]
    assert splits.train.column_names == ["text", "input", "response", "label", "family", "group"]
    assert splits.reported["_siqa"][1] == {
        "text": "Question 1?", "input": "", "response": "the correct answer is answer2", "label": "answer2",
        "family": "answer", "group": "siqa", "row": 2,
    }  # fmt: skip
    assert expand_tasks(["commonsense"], DataSettings()) == ["commonsense"]
    counts = {family: splits.search["family"][:].count(family) for family in PATTERNS}
    assert counts == {"truth": 4, "solution": 4, "answer": 16, "ending": 4, "option": 4}


def test_the_small_mixture_is_taken_where_the_large_one_is_not(root):
    folder = root / "commonsense"
    records = json.loads((folder / "commonsense_170k.json").read_text())
    (folder / "commonsense_16k.json").write_text(json.dumps(records[:50]))
    assert len(load_splits(TASK, settings(root), protocol="customary").train) == 320
    assert notes(settings(root), {name: test.size for name, test in TESTS.items()}) == []
    (folder / "commonsense_170k.json").unlink()
    assert len(load_splits(TASK, settings(root), protocol="customary").train) == 50
    (note,) = notes(settings(root), {name: test.size for name, test in TESTS.items()})
    assert "commonsense_16k.json, a tenth of the mixture" in note


def test_a_missing_test_is_reported_and_has_to_be_left_out_by_name(root):
    (root / "commonsense" / "dataset" / "social_i_qa" / "test.json").unlink()
    with pytest.raises(DataError) as caught:
        load_splits(TASK, settings(root))
    assert "no test set for siqa" in str(caught.value)
    assert "social_i_qa/test.json" in str(caught.value)
    assert "set data.generation.tests to [boolq, piqa, hellaswag," in str(caught.value)
    chosen = settings(root, tests=["boolq", "piqa"])
    assert list(load_splits(TASK, chosen).reported) == ["_boolq", "_piqa"]
    assert notes(chosen, {"boolq": 4, "piqa": 1838}) == [
        "mean of 2 of the 8 commonsense tests: boolq, piqa",
        "tests not of their published size: boolq 4 of 3270",
    ]


def test_a_missing_mixture_or_folder_is_named_with_where_it_is(root):
    (root / "commonsense" / "commonsense_170k.json").unlink()
    with pytest.raises(DataError, match=r"no training mixture in .*_170k\.json or commonsense_16k\.json.*LLM-Adapters"):
        load_splits(TASK, settings(root))
    with pytest.raises(DataError, match=r"data\.root"):
        load_splits(TASK, DataSettings())


PIQA = "dataset/piqa/test.json"
MIXTURE = "commonsense_170k.json"


@pytest.mark.parametrize(
    ("place", "content", "message"),
    [
        (
            PIQA,
            [record("solution1"), record("answer1")],
            "row 2: column 'answer' holds 'answer1'; allowed are: solution1, solution2",
        ),
        (PIQA, [{"instruction": "a", "answer": "solution1"}], "no column 'output'; its columns are: instruction, answer"),
        (MIXTURE, [record("true"), record("yes")], "row 2: column 'answer' holds 'yes'"),
        (MIXTURE, [record("true"), record("true") | {"instruction": " "}], "row 2: column 'instruction' holds ' '; text"),
    ],
)
def test_broken_files_are_named_with_their_place(root, place, content, message):
    (root / "commonsense" / place).write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        load_splits(TASK, settings(root))
    assert message in str(caught.value)
    assert place.split("/")[-1] in str(caught.value)


AWKWARD = [
    ("the correct answer is answer3", "answer", "answer3"),
    ("", "answer", ""),
    ("   \n", "truth", ""),
    ("I do not know.", "answer", ""),
    ("not answer1 but answer2", "answer", "answer1"),  # several: the first counts
    ("Answer1", "answer", ""),  # wrong case
    ("True or false? true", "truth", "false"),  # the first that is written as asked
    ("the correct answer is answer 2", "answer", ""),  # a blank inside
    ("answer12", "answer", "answer1"),  # the pattern has no edges
    ("solution3", "solution", ""),
    ("option1option2", "option", "option1"),
    ("this is untrue", "truth", "true"),  # inside a word too
    ("the answer is answer2", "option", ""),  # an answer to something else
    ("solution2.\n\n### Instruction: solution1", "solution", "solution2"),  # goes on after the answer
    ("### Instruction: answer1\n### Response:\nthe correct answer is answer2", "answer", "answer2"),  # prompt and output
    ("answer1\n### Response: answer3", "answer", "answer3"),  # after the last mark
    ("answer1 ### Response: answer2 ### Response:\n  answer3 \n", "answer", "answer3"),
]


@pytest.mark.parametrize(("output", "pattern", "answer"), AWKWARD)
def test_awkward_outputs(output, pattern, answer):
    assert extract(output, pattern) == answer


def test_the_score_is_the_mean_of_the_tests_not_of_the_questions():
    values = score(["a", "a", "a", "a", "b"], ["x", "x", "x", "", "z"], ["x", "x", "x", "x", "y"])
    assert values == {"score": 37.5, "accuracy": 37.5, "accuracy_a": 75.0, "accuracy_b": 0.0, "answered": 80.0}


@pytest.mark.slow
def test_real_tests_have_their_published_sizes(real_data):
    there = [name for name, test in TESTS.items() if (real_data / "commonsense" / "dataset" / test.folder).is_dir()]
    splits = load_splits(TASK, settings(real_data, tests=there), train_examples=100)
    assert {suffix[1:]: len(split) for suffix, split in splits.reported.items()} == {name: TESTS[name].size for name in there}
    for split in splits.reported.values():
        for row in split.select(range(200)):
            assert extract(row["response"], row["family"]) == row["label"]


FORMS = {
    "question": (
        "Please choose the correct answer to the question: What stops mold?\n\nAnswer1: safety goggles Answer2: a mask\n\n"
        "Answer format: answer1/answer2", "answer",
        [("Question: What stops mold?\nAnswer:", " safety goggles"), ("Question: What stops mold?\nAnswer:", " a mask")],
    ),
    "solution": (
        "Please choose the correct solution to the question: dresser\n\n"
        "Solution1: use a pin \n\nSolution2: finish with  a pin \n\n"
        "Answer format: solution1/solution2", "solution",
        [("Question: dresser\nAnswer:", " use a pin"), ("Question: dresser\nAnswer:", " finish with  a pin")],
    ),
    "ending": (
        "Please choose the correct ending to complete the given sentence: Clean and jerk: She bends. the lady\n\n"
        "Ending1: swings. Ending2: pulls.\n\nAnswer format: ending1/ending2", "ending",
        [("Clean and jerk: She bends. the lady", " swings."), ("Clean and jerk: She bends. the lady", " pulls.")],
    ),
    "blank": (
        "Please choose the correct answer to fill in the blank to complete the given sentence: Sarah beat Maria so _ won.\n\n"
        "Option1: Sarah Option2: Maria Answer format: option1/option2", "option",
        [("Sarah beat Maria so Sarah", " won."), ("Sarah beat Maria so Maria", " won.")],
    ),
    "truth": (
        "Please answer the following question with true or false, question: is it so?\n\nAnswer format: true/false", "truth",
        [("Question: is it so?\nAnswer:", " true"), ("Question: is it so?\nAnswer:", " false")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("instruction", "kind", "expected"), FORMS.values(), ids=FORMS)
def test_the_forms(instruction: str, kind: str, expected: list[tuple[str, str]]) -> None:
    options = read_options(instruction, "", kind)
    assert [option[:2] for option in options.values()] == expected
    assert [option.characters for option in options.values()] == [len(text.strip()) for _, text in expected]
    behind = read_options(instruction, "A passage.", kind).values()
    assert [option.context for option in behind] == [f"A passage.\n{context}" for context, _ in expected]
    form = QuestionForm(None, GenerationSettings(score="cloze"))  # type: ignore[arg-type]
    rows = {"text": [instruction], "input": [""], "family": [kind], "label": [[*options][1]]}
    assert form.texts(rows)[:2] == ([expected[1][0]], [expected[1][1]])
    with pytest.raises(ValueError, match=f"the answer 'answer9' is none of {', '.join(options)} in"):
        form.texts(rows | {"label": ["answer9"]})


@pytest.mark.parametrize(
    ("instruction", "kind", "message"),
    [
        ("Which?\n\nAnswer format: answer1/answer2", "answer", "no question or no text of an option"),
        ("Which?\n\nAnswer1: a Answer3: b\n\nAnswer format: answer1/answer2", "answer", "no question or no text"),
        ("Which?\n\nAnswer1:  Answer2: b\n\nAnswer format: answer1/answer2", "answer", "no question or no text"),
        ("Answer1: a Answer2: b\n\nAnswer format: answer1/answer2", "answer", "no question or no text"),
        ("Sarah won.\n\nOption1: Sarah Option2: Maria Answer format: option1/option2", "option", "no blank '_'"),
        ("So won _\n\nOption1: Sarah Option2: Maria Answer format: option1/option2", "option", "no blank '_'"),
    ],
)
def test_another_form_is_refused(instruction: str, kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_options(instruction, "", kind)


def test_cloze_has_no_template() -> None:
    with pytest.raises(ValueError, match="score: cloze"):
        GenerationSettings(score="cloze", prompt="llm_adapters")

"""Every row of TASKS says what it needs to, and its data fit what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from craft.settings import DataSettings
from craft.tasks import SUITES, TASKS, find_task
from craft.tasks.commonsense import COLUMNS, TESTS
from craft.tasks.files import Rows
from craft.tasks.rows import fingerprint, to_dataset
from craft.tasks.splits import load_splits
from craft.tasks.task import RawData, Task
from craft.testing import check_task


def count_words(task: Task, data: DataSettings) -> RawData:
    splits = []
    for first in (0, 40):
        texts = [" ".join(f"w{number}" for number in range(first, first + size % 2 + 1)) for size in range(20)]
        rows = Rows("made here", {"sentence": texts, "words": [len(text.split()) - 1 for text in texts]})
        splits.append(to_dataset(rows, task))
    return RawData(splits[0], {"": splits[1]}, fingerprint(splits))


ONE_MORE = Task(
    "counting/words", "Has the text two words?", "classification", ("sentence",), "words", ("one", "two"),
    ("accuracy", "f1"), "accuracy", count_words,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def one_row_more() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, ONE_MORE.name, ONE_MORE)
        patch.setitem(SUITES, ONE_MORE.suite, (ONE_MORE.name,))
        yield


@pytest.fixture(params=[*TASKS, ONE_MORE.name])
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]


@pytest.fixture
def settings(task: Task, request: pytest.FixtureRequest) -> DataSettings:
    """Where the task's data lie: published data in the folder of CRAFT_TEST_DATA, others are made by code."""
    if task.suite not in ("glue", "commonsense"):
        return DataSettings()
    root = request.getfixturevalue("real_data")
    if not (root / task.name).is_dir():
        pytest.skip(f"{root} has no {task.name}")
    tests = [name for name, one in TESTS.items() if (root / "commonsense" / "dataset" / one.folder / "test.json").is_file()]
    return DataSettings(root=str(root), generation={"tests": tests})


def test_it_is_found_by_its_name(task: Task) -> None:
    assert find_task(task.name, DataSettings()) is task
    with pytest.raises(ValueError, match=f"Did you mean .{task.name}"):
        find_task(task.name + "x", DataSettings())


def test_its_data_and_metrics_fit_what_it_says(task: Task, settings: DataSettings) -> None:
    check_task(task.name, settings)


def test_its_columns_are_those_of_its_kind(task: Task, settings: DataSettings) -> None:
    splits = load_splits(task, settings, eval_examples=200)
    expected = list(COLUMNS) if task.kind == "generation" else [*("text", "text_pair")[: len(task.text)], "label"]
    for split in (splits.train, splits.search, *splits.reported.values()):
        assert [name for name in split.column_names if name != "row"] == expected


TOY = [TASKS[name] for name in SUITES["toy"]]

# The suite is part of what a score means: it may only change knowingly, together with these and the changelog.
FINGERPRINTS = {
    "toy/sentiment": "9c7cd80916ea819c",
    "toy/paraphrase": "55212c36287b47cd",
}


@pytest.mark.parametrize("task", TOY, ids=lambda task: task.name)
def test_the_suite_is_equal_on_every_machine(task):
    assert load_splits(task, DataSettings(), protocol="customary").fingerprint[:16] == FINGERPRINTS[task.name]

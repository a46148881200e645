"""Every row of TASKS: it says what it needs to, is found by its name and its suite, and its data fit what it says.

One row more is a task added as CONTRIBUTING says: nothing but its row makes it known.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from craft.data_settings import DataSettings
from craft.tasks import SUITES, TASKS, expand_tasks, find_task
from craft.tasks.commonsense import COLUMNS, TESTS
from craft.tasks.files import Rows
from craft.tasks.metrics import METRICS, compute_metrics
from craft.tasks.rows import fingerprint, to_dataset
from craft.tasks.splits import load_splits
from craft.tasks.task import RawData, Task


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


def test_it_is_found_by_its_name_and_in_its_suite(task: Task) -> None:
    assert find_task(task.name, DataSettings()) is task
    assert task.name in expand_tasks([task.suite], DataSettings())
    with pytest.raises(ValueError, match=f"Did you mean .{task.name}"):
        find_task(task.name + "x", DataSettings())


def test_its_metrics_are_known_and_fit_its_kind(task: Task) -> None:
    assert task.title.strip()
    assert task.primary in task.metrics
    assert bool(task.labels) == (task.kind == "classification")
    assert len(set(task.labels)) == len(task.labels) != 1
    if task.kind != "generation":
        assert all(METRICS[metric].fits(task.kind, len(task.labels)) for metric in task.metrics)


def test_its_data_fit_what_it_says(task: Task, settings: DataSettings) -> None:
    splits = load_splits(task, settings, eval_examples=200)
    expected = list(COLUMNS) if task.kind == "generation" else [*("text", "text_pair")[: len(task.text)], "label"]
    for split in (splits.train, splits.search, *splits.reported.values()):
        assert len(split)
        assert [name for name in split.column_names if name != "row"] == expected
        if task.kind == "classification":
            assert set(split["label"][:]) <= set(range(len(task.labels)))
        if task.span is not None:
            assert task.span[0] <= min(split["label"][:]) <= max(split["label"][:]) <= task.span[1]


# Answers in words are scored in test_commonsense.py.
@pytest.mark.parametrize("task", [*(n for n, row in TASKS.items() if row.kind != "generation"), ONE_MORE.name], indirect=True)
def test_right_answers_score_100(task: Task, settings: DataSettings) -> None:
    for split in load_splits(task, settings, eval_examples=200).reported.values():
        scores = compute_metrics(task, split["label"][:], split["label"][:])
        assert scores == pytest.approx(dict.fromkeys([*task.metrics, "score"], 100.0))

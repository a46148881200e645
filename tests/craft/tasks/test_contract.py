"""Every row of TASKS says what it needs to, and its data fit what it says."""

from __future__ import annotations

import pytest

from craft.settings import DataSettings
from craft.tasks import SUITES, TASKS, find_task
from craft.tasks.commonsense import COLUMNS, TESTS
from craft.tasks.splits import load_splits
from craft.tasks.task import Task
from craft.testing import check_task

LARGE = ("glue/sst2", "glue/mnli", "glue/qnli", "glue/qqp", "commonsense")


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in TASKS])
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


# The suite is part of what a score means: it may only change knowingly, together with these and the changelog.
FINGERPRINTS = {
    "toy/sentiment": "9c7cd80916ea819c",
    "toy/paraphrase": "55212c36287b47cd",
}


def test_the_suite_is_equal_on_every_machine():
    found = {name: load_splits(TASKS[name], DataSettings(), protocol="customary").fingerprint[:16] for name in SUITES["toy"]}
    assert found == FINGERPRINTS

"""Every row of TASKS says what it needs to, and its data fit what it says."""

from __future__ import annotations

import pytest

from craft.settings import DataSettings
from craft.tasks import SUITES, TASKS
from craft.tasks.commonsense import TESTS
from craft.tasks.splits import load_splits
from craft.testing import check_task

LARGE = ("glue/sst2", "glue/mnli", "glue/qnli", "glue/qqp", "commonsense")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in TASKS])
def test_its_data_and_metrics_fit_what_it_says(name: str, request: pytest.FixtureRequest) -> None:
    """Published data lie in the folder of CRAFT_TEST_DATA, others are made by code."""
    if name in SUITES["toy"]:
        check_task(name)
        return
    root = request.getfixturevalue("real_data")
    if not (root / name).is_dir():
        pytest.skip(f"{root} has no {name}")
    tests = [name for name, one in TESTS.items() if (root / "commonsense" / "dataset" / one.folder / "test.json").is_file()]
    check_task(name, DataSettings(root=str(root), generation={"tests": tests}))


# The suite is part of what a score means: it may only change knowingly, together with these and the changelog.
FINGERPRINTS = {
    "toy/sentiment": "9c7cd80916ea819c",
    "toy/paraphrase": "55212c36287b47cd",
}


def test_the_suite_is_equal_on_every_machine() -> None:
    digests = {name: load_splits(TASKS[name], DataSettings(), protocol="customary").fingerprint[:16] for name in SUITES["toy"]}
    assert digests == FINGERPRINTS

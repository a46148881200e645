"""What the plan says of own rows: the classes, and the doubts about them."""

import numpy as np
import pytest

from craft.settings import CustomTask, DataSettings
from craft.tasks import find_task
from craft.tasks.metrics import compute_metrics
from orchestrator.review.own_data import describe_classes
from tests.craft.tasks.tickets import tickets, write


def test_the_plan_counts_and_doubts_classes(tmp_path):
    counts = {"Household": 30, "knowledge": 9, "house hold": 6, "caf\u00e9": 5, "cafe\u0301": 5, "none": 5, "01": 6, "1.0": 5}
    cells = [name for name, count in {**counts, "none|knowledge": 1}.items() for _ in range(count)]
    path = write(tmp_path / "train.csv", [{"title": f"{row}", "body": "b", "queue": cell} for row, cell in enumerate(cells)])
    task, data = tickets(path)
    first, *doubts = describe_classes(task, data.custom["tickets"])
    assert first.startswith("9 classes: Household 30, knowledge 9, 01 6, house hold 6, 1 5, ")
    assert [doubt.partition(" are ")[0] for doubt in doubts[:3]] == [
        "'01' and '1'",
        "'Household' and 'house hold'",
        "'cafe\u0301' and 'caf\u00e9'",
    ]
    assert doubts[3] == "of fewer than 5 rows, too few to learn and score: none|knowledge 1"
    assert doubts[4].startswith("class 'none'")
    assert doubts[5].startswith("'none|knowledge' joins other classes (none, knowledge)")
    assert len(doubts) == 6


def test_large_numbers_are_classes_of_their_own(tmp_path):
    names = [10**15, 10**15 + 1, 2**53, 2**53 + 1, "9" * 5000 + ".0", "1e-400", "1e-401"]
    rows = [{"title": f"{row}", "body": "b", "queue": names[row % len(names)]} for row in range(70)]
    task, data = tickets(write(tmp_path / "train.jsonl", rows))
    _, *doubts = describe_classes(task, data.custom["tickets"])
    assert (len(task.labels), doubts) == (7, [])


def test_f1_is_that_of_the_rarer_class_or_of_the_one_that_is_named(tmp_path):
    rows = [{"text": f"t{row}", "label": ("rare", "usual")[row % 10 > 0]} for row in range(100)]
    path = str(write(tmp_path / "train.csv", rows))

    def scores(**settings):
        block = CustomTask(train=path, text="text", label="label", metric="f1", **settings)
        task = find_task("custom/x", DataSettings(custom={"x": block}))
        labels = np.array([row % 10 > 0 for row in range(100)]).astype(int)
        return compute_metrics(task, np.ones(100, dtype=int), labels)["score"], next(describe_classes(task, block))

    assert scores() == (0.0, "2 classes: usual 90, rare 10; f1 is of the class 'rare'")
    assert scores(positive="usual") == (
        pytest.approx(100 * 180 / 190),
        "2 classes: usual 90, rare 10; f1 is of the class 'usual'",
    )
    assert scores(labels=("usual", "rare"))[1].endswith("'rare'")
    with pytest.raises(ValueError, match=r"data\.custom\.x\.positive: got 'odd'; allowed are: rare, usual"):
        scores(positive="odd")

"""Tasks of the user's own: labels, splits and metrics, and the doubts of the plan about them."""

import pytest

from craft.settings import CustomTask, DataSettings
from craft.tasks import expand_tasks, find_task
from craft.tasks.files import DataError
from craft.tasks.splits import load_splits
from tests.craft.tasks.tickets import ROWS, tickets, write


def test_without_validation_a_seeded_tenth_is_reported(tmp_path):
    task, data = tickets(write(tmp_path / "train.csv", ROWS))
    splits = load_splits(task, data)
    parts = [set(split["text"][:]) for split in (splits.train, splits.search, splits.reported[""])]
    assert [len(part) for part in parts] == [48, 6, 6]
    assert len(set.union(*parts)) == 60
    assert sorted(splits.reported[""]["label"][:]) == [0, 0, 1, 1, 2, 2]


def test_with_validation_that_file_is_reported(tmp_path):
    path = write(tmp_path / "train.csv", ROWS)
    task, data = tickets(path, validation=str(write(tmp_path / "dev.jsonl", ROWS[:5])))
    splits = load_splits(task, data, protocol="customary")
    assert splits.reported[""]["text"][:] == [row["title"] for row in ROWS[:5]] == splits.search["text"][:]
    assert len(splits.train) == 60


@pytest.mark.parametrize("labels", [None, ("low", "high")])
def test_regression(tmp_path, labels):
    rows = [{"text": f"text {row}", "stars": row / 2} for row in range(40)]
    task, data = tickets(write(tmp_path / "train.csv", rows), text="text", label="stars", kind="regression", labels=labels)
    splits = load_splits(task, data)
    assert (task.kind, task.labels, task.primary) == ("regression", (), "pearson")
    stars = [*splits.train["label"], *splits.search["label"], *splits.reported[""]["label"]]
    assert sorted(stars) == [row / 2 for row in range(40)]


@pytest.mark.parametrize("number", [1e300, 10**400, -(10**400), "1e999", "9" * 5000])
def test_a_number_beyond_float32_is_named(tmp_path, number):
    path = write(tmp_path / "train.jsonl", [{"text": f"text {row}", "stars": (row, number)[row == 7]} for row in range(40)])
    with pytest.raises(DataError, match=r"line 8: column 'stars' holds .*; a model computes in float32.*3\.4e\+38"):
        load_splits(*tickets(path, text="text", label="stars", kind="regression"))


@pytest.mark.parametrize(
    ("cells", "given", "labels", "numbers"),
    [
        ([0, 1, 2, 1], None, ("0", "1", "2"), [0, 1, 2, 1]),
        ([-1, 1, 10, 2], None, ("-1", "1", "2", "10"), [0, 1, 3, 2]),
        (["1", "0", "1", "0"], ("bad", "good"), ("bad", "good"), [1, 0, 1, 0]),
        (["good", "bad", "good", "good"], ("bad", "good"), ("bad", "good"), [1, 0, 1, 1]),
        ([1.0, 0.0, 1.0, 0.0], None, ("0", "1"), [1, 0, 1, 0]),
        (["1.0", 1, "1", 0.0, "0", "-0.0"], None, ("0", "1"), [1, 1, 1, 0, 0, 0]),
        (["1.0", "1.1", "1", "1.1"], ("1.0", "1.1"), ("1", "1.1"), [0, 1, 0, 1]),
        (["01", "1", "2", "1"], None, ("01", "1", "2"), [0, 1, 2, 1]),
        (["NA", "EU", "NA", "EU"], ("NA", "EU"), ("NA", "EU"), [0, 1, 0, 1]),
        (["[urgent]", "(b)", "{x}", "[urgent]"], None, ("(b)", "[urgent]", "{x}"), [1, 0, 2, 1]),
    ],
)
def test_labels_by_name_or_number(tmp_path, cells, given, labels, numbers):
    rows = [{"text": f"t{row}", "label": cell} for row, cell in enumerate(cells)]
    path = str(write(tmp_path / "train.jsonl", rows))
    task, data = tickets(path, validation=path, text="text", label="label", labels=given)
    assert task.labels == labels
    assert load_splits(task, data, protocol="customary").reported[""]["label"][:] == numbers


MISSING = ("None", "nan", "null", "N/A", "NA", "-")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (["door"], "holds ['door']; a label is expected, one for each row"),
        ({"door": 1}, "holds {'door': 1}; a label is expected, one for each row"),
        ([0, 1, 0], "holds [0, 1, 0]; a label is expected, one for each row"),
        ("['door', 'window']", "a label is expected, one for each row"),
        ("b'door'", "a label is expected, one for each row"),
        ("\ud83d good", "holds half a surrogate pair"),
        (None, "holds nothing; a label is expected"),
        *((blank, f"holds '{blank}'; a label is expected") for blank in ("", "  ")),
        *((word, f"holds '{word}'; a label is expected. If {word} is a class") for word in MISSING),
    ],
)
@pytest.mark.parametrize("named", [None, ("help", "sales", "spam")])
def test_a_label_cell_holds_one_label(tmp_path, cell, message, named):
    path = write(tmp_path / "train.jsonl", [*ROWS, {"title": "a", "body": "b", "queue": cell}])
    with pytest.raises(DataError) as caught:
        tickets(path, labels=named)
    assert "train.jsonl, line 61: column 'queue' holds" in str(caught.value)
    assert message in str(caught.value)


def test_bytes_and_names_of_rows_are_no_labels(tmp_path):
    rows = [{"title": "a", "body": "b", "queue": label} for label in (b"door", b"window")]
    with pytest.raises(DataError, match=r"row 1: column 'queue' holds b'door'; a label is expected, one for each row"):
        tickets(write(tmp_path / "train.parquet", rows))
    path = write(tmp_path / "train.csv", [row | {"queue": f"n{number}"} for number, row in enumerate(ROWS)])
    with pytest.raises(DataError, match="column 'queue' holds 60 different labels in 60 rows: is it the label"):
        tickets(path)


def test_equal_texts_are_on_one_side_of_every_split(tmp_path):
    rows = [{"text": f"text {row % 20}" + " " * (row % 2), "label": "ab"[row % 2]} for row in range(200)]
    path, columns = str(write(tmp_path / "train.csv", rows)), {"text": "text", "label": "label"}
    splits = load_splits(*tickets(path, **columns, reported=0.3))
    parts = [{text.strip() for text in split["text"]} for split in (splits.train, splits.search, splits.reported[""])]
    assert list(map(len, parts)) == [12, 2, 6]
    assert len(set.union(*parts)) == 20
    assert splits.notes == []
    assert len(load_splits(*tickets(path, **columns)).reported[""]) == 20
    splits = load_splits(*tickets(path, **columns, validation=path), eval_examples=50)
    assert splits.notes == ["50 of 50 reported rows are training rows too (equal texts): their score may be learnt by heart"]
    with pytest.raises(ValueError, match="reported is the share of train"):
        tickets(path, **columns, validation=path, reported=0.2)


@pytest.mark.parametrize(
    "other",
    ["THE Caf\u00e9 , is fine.", " the cafe\u0301, is  fine .", "the cafe, is \uff46ine.", "the cafe, is\u00a0fi\u200bne."],
)
def test_texts_that_many_tokenizers_read_as_equal_are_on_one_side(tmp_path, other):
    rows = [
        {"text": text, "label": "ab"[row % 2]}
        for row in range(30)
        for text in (f"the caf\u00e9, is fine. {row}", f"{other} {row}")
    ]
    splits = load_splits(*tickets(write(tmp_path / "train.csv", rows), text="text", label="label"))
    parts = [{text.split()[-1] for text in split["text"]} for split in (splits.train, splits.search, splits.reported[""])]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 30


@pytest.mark.parametrize(
    ("training", "validation", "named"),
    [
        ([1, 2], [0, 1], None),
        ([2, 3, 4, 5], [1, 2, 3], None),
        ([1.5, 2.5], [0, 1.5], None),
        (["a", "b"], ["0", "a"], None),
        (["1", "2"], ["0", "1"], ["1", "2"]),
    ],
)
def test_a_number_that_names_no_class_is_no_position(tmp_path, training, validation, named):
    def file(name, cells):
        return str(write(tmp_path / name, [{"text": f"t{row}", "label": cell} for row, cell in enumerate(cells * 5)]))

    block = {"validation": file("b.jsonl", validation), "text": "text", "label": "label", "labels": named}
    with pytest.raises(
        DataError, match=rf"b\.jsonl, line 1: column 'label' holds '?{validation[0]}'?; allowed are: {training[0]}, "
    ):
        load_splits(*tickets(file("a.jsonl", training), **block))


def test_metrics_are_checked_against_the_kind(tmp_path):
    path = write(tmp_path / "train.csv", ROWS)
    assert tickets(path, metric="macro_f1")[0].primary == "macro_f1"
    with pytest.raises(
        ValueError, match=r"data\.custom\.tickets\.metric: metric 'pearson' does not fit; allowed are: accuracy"
    ):
        tickets(path, metric="pearson")
    with pytest.raises(ValueError, match="unknown metric 'acuracy'"):
        tickets(path, metric="acuracy")


def test_the_suite_custom_is_all_of_the_users_tasks(tmp_path):
    path = str(write(tmp_path / "train.csv", ROWS))
    block = CustomTask(train=path, text="title", label="queue")
    data = DataSettings(custom={"a": block, "b": block})
    fields = {"train", "validation", "text", "label", "kind", "labels", "metric"}
    assert set(block.model_dump(mode="json")) == fields, "a record of a task without instructions says nothing of them"
    assert expand_tasks(["custom", "toy/sentiment"], data) == ["custom/a", "custom/b", "toy/sentiment"]
    with pytest.raises(ValueError, match="unknown task 'custom/c'"):
        find_task("custom/c", data)

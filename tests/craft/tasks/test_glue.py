"""GLUE from a folder: what is read, and what is said of folders that are not right."""

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from craft.settings import DataSettings
from craft.tasks import TASKS
from craft.tasks.files import DataError
from craft.tasks.splits import load_splits

PUBLISHED = {
    "cola": (8551, {"": 1043}), "sst2": (67349, {"": 872}), "mrpc": (3668, {"": 408}), "stsb": (5749, {"": 1500}),
}  # fmt: skip


def write(root, name, split, **columns):
    folder = root / "glue" / name
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{split}.parquet")


def cola(root, labels=(0, 1) * 10, **columns):
    rows = {"sentence": [f"sentence {row}" for row in range(len(labels))], "label": list(labels)} | columns
    for split in ("train", "validation"):
        write(root, "cola", split, **rows)
    return DataSettings(root=str(root))


def refused(task, data):
    with pytest.raises(DataError) as caught:
        load_splits(TASKS[task], data)
    return str(caught.value)


def test_columns_are_normalized(tmp_path):
    for split in ("train", "validation"):
        write(tmp_path, "qqp", split, question1=["a b", "c", "g"], question2=["d", "e f", "h"], label=[0, 1, 1], idx=[0, 1, 2])
    splits = load_splits(TASKS["glue/qqp"], DataSettings(root=str(tmp_path)), protocol="customary")
    assert splits.reported[""].column_names == ["text", "text_pair", "label", "row"]
    assert splits.reported[""][1] == {"text": "c", "text_pair": "e f", "label": 1, "row": 2}


def test_a_missing_folder_or_file_says_what_is_expected_and_what_is_there(tmp_path):
    data = cola(tmp_path)
    message = refused("glue/rte", data)
    for part in (str(tmp_path / "glue" / "rte"), "train.parquet, validation.parquet", "in that folder: cola"):
        assert part in message
    (tmp_path / "glue" / "cola" / "validation.parquet").unlink()
    assert "its folder holds: train.parquet" in refused("glue/cola", data)


SCORES = {"sentence1": ["a", "b"], "sentence2": ["a", "b"]}


@pytest.mark.parametrize(
    ("task", "columns", "message"),
    [
        ("cola", {"text": ["a"], "label": [1]}, "has no column 'sentence'; its columns are: text, label"),
        ("cola", {"sentence": ["a", "b"], "label": [0, 2]}, "0 (unacceptable), 1 (acceptable)"),
        ("cola", {"sentence": ["a", "b"], "label": [0, None]}, "row 2: column 'label' holds"),
        ("cola", {"sentence": ["a", "b"], "label": [0, 0.5]}, "row 2: column 'label' holds"),
        ("cola", {"sentence": ["a", None], "label": [0, 1]}, "row 2: column 'sentence' holds nothing; text is expected"),
        ("stsb", SCORES | {"label": [1.0, float("nan")]}, "row 2: column 'label' holds nan; a finite number"),
        ("stsb", SCORES | {"label": [1.0, 5.5]}, "row 2: column 'label' holds 5.5; allowed is 0 to 5"),
        ("stsb", SCORES | {"label": [1.0, -0.1]}, "row 2: column 'label' holds -0.1; allowed is 0 to 5"),
    ],
)
def test_a_wrong_file_is_named_with_its_place(tmp_path, task, columns, message):
    for split in ("train", "validation"):
        write(tmp_path, task, split, **columns)
    said = refused(f"glue/{task}", DataSettings(root=str(tmp_path)))
    assert "train.parquet" in said
    assert message in said


def test_the_hub_out_of_reach_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    message = refused("glue/rte", DataSettings())
    for part in ("nyu-mll/glue", "HF_HUB_OFFLINE is set", "glue/rte/train.parquet", "--set data.root=FOLDER"):
        assert part in message


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_real_glue_has_its_published_sizes(name, real_data):
    splits = load_splits(TASKS[f"glue/{name}"], DataSettings(root=str(real_data)), protocol="customary")
    assert (len(splits.train), {suffix: len(split) for suffix, split in splits.reported.items()}) == PUBLISHED[name]


@pytest.mark.slow
def test_real_mnli_has_both_validation_sets(real_data):
    splits = load_splits(TASKS["glue/mnli"], DataSettings(root=str(real_data)), protocol="customary")
    assert {suffix: len(split) for suffix, split in splits.reported.items()} == {"_matched": 9815, "_mismatched": 1000}
    assert len(splits.search) == 10815

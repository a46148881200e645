"""GLUE from a folder: what is read, and what is said of folders that are not right."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from craft.settings import DataSettings
from craft.tasks import TASKS, expand_tasks
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
    assert splits.reported[""].column_names == ["text", "text_pair", "label"]
    assert splits.reported[""][1] == {"text": "c", "text_pair": "e f", "label": 1}


def test_a_missing_folder_says_what_is_expected_and_what_is_there(tmp_path):
    data = cola(tmp_path)
    message = refused("glue/rte", data)
    assert str(tmp_path / "glue" / "rte") in message
    assert "train.parquet, validation.parquet" in message
    assert "in that folder: cola" in message


def test_a_missing_file_is_named(tmp_path):
    data = cola(tmp_path)
    (tmp_path / "glue" / "cola" / "validation.parquet").unlink()
    message = refused("glue/cola", data)
    assert "validation.parquet" in message
    assert "its folder holds: train.parquet" in message


def test_a_missing_column_lists_the_columns(tmp_path):
    for split in ("train", "validation"):
        write(tmp_path, "cola", split, text=["a"], label=[1])
    message = refused("glue/cola", DataSettings(root=str(tmp_path)))
    assert "train.parquet has no column 'sentence'; its columns are: text, label" in message


@pytest.mark.parametrize("label", [2, -1, None, 0.5])
def test_a_wrong_label_is_named_with_its_row(tmp_path, label):
    message = refused("glue/cola", cola(tmp_path, labels=(0, 1, label)))
    assert "train.parquet, row 3: column 'label' holds" in message
    assert "0 (unacceptable), 1 (acceptable)" in message


def test_a_score_that_is_no_number_is_named(tmp_path):
    write(tmp_path, "stsb", "train", sentence1=["a", "b"], sentence2=["a", "b"], label=[1.0, float("nan")])
    write(tmp_path, "stsb", "validation", sentence1=["a"], sentence2=["a"], label=[1.0])
    assert "train.parquet, row 2: column 'label' holds nan; a finite number" in refused(
        "glue/stsb", DataSettings(root=str(tmp_path))
    )


@pytest.mark.parametrize("value", [5.5, -0.1, 100.0])
def test_a_similarity_out_of_range_is_named(tmp_path, value):
    for split in ("train", "validation"):
        write(tmp_path, "stsb", split, sentence1=["a", "b"], sentence2=["a", "b"], label=[5.0, value])
    message = refused("glue/stsb", DataSettings(root=str(tmp_path)))
    assert f"train.parquet, row 2: column 'label' holds {value}; allowed is 0 to 5" in message


def test_missing_text_is_named(tmp_path):
    message = refused("glue/cola", cola(tmp_path, labels=(0, 1), sentence=["a", None]))
    assert "row 2: column 'sentence' holds nothing; text is expected" in message


def test_an_empty_split_and_a_broken_file_are_told_apart(tmp_path):
    data = cola(tmp_path)
    validation = tmp_path / "glue" / "cola" / "validation.parquet"
    pq.write_table(pa.table({"sentence": pa.array([], pa.string()), "label": pa.array([], pa.int64())}), validation)
    assert f"{validation} holds no rows" in refused("glue/cola", data)
    validation.write_bytes(b"this is no parquet file")
    assert f"{validation} is not a parquet file" in refused("glue/cola", data)


def test_the_hub_out_of_reach_says_what_to_do(tmp_path):
    script = (
        "from craft.spec import DataSettings\nfrom craft.tasks import TASKS\nfrom craft.tasks.splits import load_splits\n"
        "try:\n    load_splits(TASKS['glue/rte'], DataSettings())\nexcept ValueError as error:\n    print(error)\n"
    )
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "nyu-mll/glue" in done.stdout
    assert "HF_HUB_OFFLINE is set" in done.stdout
    assert "glue/rte/train.parquet" in done.stdout
    assert "--set data.root=FOLDER" in done.stdout


def test_importing_tasks_loads_no_heavy_library():
    script = "import sys, craft.tasks, craft.tasks.splits, craft.tasks.metrics, craft.tasks.prompts; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "datasets", "sklearn", "transformers", "pandas", "pyarrow"} & set(modules)


def test_the_suite_is_the_eight_in_order():
    tasks = expand_tasks(["glue", "glue/rte"], DataSettings())
    assert tasks == [f"glue/{name}" for name in ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")]


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_glue_has_its_published_sizes(name, real_data):
    splits = load_splits(TASKS[f"glue/{name}"], DataSettings(root=str(real_data)), protocol="customary")
    assert (len(splits.train), {suffix: len(split) for suffix, split in splits.reported.items()}) == PUBLISHED[name]


def test_real_mnli_has_both_validation_sets(real_data):
    splits = load_splits(TASKS["glue/mnli"], DataSettings(root=str(real_data)), protocol="customary")
    assert {suffix: len(split) for suffix, split in splits.reported.items()} == {"_matched": 9815, "_mismatched": 1000}
    assert len(splits.search) == 10815

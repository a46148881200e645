"""Every task's data; protocols: who sees which rows, seeded, nested, kept while files stay the same; wrong folders of GLUE."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from craft.settings import DataSettings, HubSplit
from craft.tasks import SUITES, TASKS, find_task
from craft.tasks.commonsense import TESTS
from craft.tasks.files import DataError, DataUnavailable, read_rows
from craft.tasks.glue import phrases
from craft.tasks.hub_splits import read_split
from craft.tasks.splits import carve, load_splits
from craft.testing import check_task
from orchestrator.plan.plan import make_plan
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError

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


def test_the_suite_is_equal_on_every_machine() -> None:
    digests = {name: load_splits(TASKS[name], DataSettings(), protocol="customary").fingerprint[:16] for name in SUITES["toy"]}
    # The suite is part of what a score means: it may only change knowingly, together with these and the changelog.
    assert digests == {"toy/sentiment": "9c7cd80916ea819c", "toy/paraphrase": "55212c36287b47cd"}


TASK = TASKS["glue/cola"]


@pytest.fixture
def data(tmp_path):
    write_cola(tmp_path, 400)
    return DataSettings(root=str(tmp_path))


def write(root, name, split, **columns):
    folder = root / "glue" / name
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{split}.parquet")


def write_cola(root, n, word="train"):
    for split, rows in (("train", n), ("validation", 60)):
        sentences, labels = ([f"{word} {split} {row}" for row in range(rows)], [int(row % 4 > 0) for row in range(rows)])
        write(root, "cola", split, sentence=sentences, label=labels)


def texts(split):
    return split["text"][:]


def test_honest_carves_search_from_train_and_leaves_dev_alone(data):
    splits = load_splits(TASK, data, train_examples=10_000)
    train, search = set(texts(splits.train)), set(texts(splits.search))
    assert not train & search
    assert train | search == {f"train train {row}" for row in range(400)}
    assert texts(splits.reported[""]) == [f"train validation {row}" for row in range(60)]
    assert (len(search), sum(splits.search["label"][:])) == (40, 30), "the shares of the classes stay"


def test_cuts_are_nested_samples_and_not_the_first_rows(data):
    small = load_splits(TASK, data, train_examples=20, eval_examples=10)
    large = load_splits(TASK, data, train_examples=100, eval_examples=30)
    whole = load_splits(TASK, data)
    for few, many, all_rows in (
        (small.train, large.train, whole.train),
        (small.search, large.search, whole.search),
        (small.reported[""], large.reported[""], whole.reported[""]),
    ):
        assert texts(few) == texts(many)[: len(few)]
        assert set(texts(many)) < set(texts(all_rows))
        assert texts(many) != texts(all_rows)[: len(many)]
    assert (len(small.train), len(small.search), len(small.reported[""])) == (20, 10, 10)


def test_the_fingerprint_is_of_the_data_not_of_the_cut(data, tmp_path):
    fingerprint = load_splits(TASK, data).fingerprint
    assert fingerprint == load_splits(TASK, data, protocol="customary", train_examples=7).fingerprint
    other = tmp_path / "elsewhere"
    write_cola(other, 400)
    assert load_splits(TASK, DataSettings(root=str(other))).fingerprint == fingerprint
    write_cola(other, 400, word="other")
    assert load_splits(TASK, DataSettings(root=str(other))).fingerprint != fingerprint


def test_data_stay_in_the_process_while_their_files_stay_the_same(data, tmp_path, monkeypatch):
    assert len(load_splits(TASK, data, protocol="customary").train) == 400
    with monkeypatch.context() as patched:
        patched.setattr("craft.tasks.glue.read_rows", lambda path: pytest.fail(f"{path} was read again"))
        assert len(load_splits(TASK, data, train_examples=5).train) == 5
    write_cola(tmp_path, 200)
    assert len(load_splits(TASK, data, protocol="customary").train) == 200


def test_carve_gives_each_side_of_a_stratum_a_row_where_it_can():
    kept, apart = carve(["a"] * 50 + ["b"] * 2 + ["c"], 0.1, seed=1)
    assert len(apart) == 6
    assert sorted(kept + apart) == list(range(53))
    assert len({50, 51} & set(apart)) == 1
    assert 52 in kept


def test_carve_leaves_groups_whole():
    groups = [row - row % 5 for row in range(500)] + list(range(500, 540))
    strata = [int(row % 4 == 0) for row in range(540)]  # rows of a group have several labels
    kept, apart = carve(strata, 0.1, seed=1, groups=groups)
    assert sorted(kept + apart) == list(range(540))
    assert not {groups[row] for row in kept} & {groups[row] for row in apart}
    assert len(apart) == 41 + 14  # of the 405 and the 135 rows in groups whose first row is of that label
    assert sum(strata[groups[row]] for row in apart) == 14
    assert apart != carve(strata, 0.1, seed=2, groups=groups)[1]


def test_carve_takes_the_smallest_group_where_none_is_small_enough():
    kept, apart = carve([0] * 20, 0.1, seed=1, groups=[0] * 12 + [12] * 8)
    assert (kept, apart) == (list(range(12)), list(range(12, 20)))
    assert carve([0] * 20, 0.1, seed=1, groups=[0] * 20)[1] == []


def test_equal_texts_are_kept_together_and_other_splits_stay_as_they_were(data, tmp_path):
    assert texts(load_splits(TASK, data).search) == texts(
        load_splits(TASK, DataSettings(root=data.root, search_groups=False)).search
    )
    sentences, labels = [f"text {row // 4}" for row in range(400)], [row // 4 % 2 for row in range(400)]
    write(tmp_path, "cola", "train", sentence=sentences, label=labels)
    splits = load_splits(TASK, data)
    assert not {*texts(splits.train)} & {*texts(splits.search)}
    assert splits.seen == {"search": 0, "reported": 0}
    rows = load_splits(TASK, DataSettings(root=data.root, search_groups=False))
    assert rows.seen["search"] > 30
    assert rows.notes[0].startswith(f"{rows.seen['search']} of 40 search rows are training rows too")


PHRASES = ["a very good film", "very good", "good film .", "good", "a bad film", "bad", "a bad", "goo", "good"]


def test_a_phrase_belongs_to_the_longest_text_that_contains_it(tmp_path):
    assert phrases(PHRASES) == [0, 0, 2, 0, 4, 4, 4, 7, 0]
    sentences = [text for number in range(40) for text in (f"sentence {number} is bad", f"sentence {number}")]
    for split in ("train", "validation"):
        write(tmp_path, "sst2", split, sentence=sentences, label=[0, 1] * 40)
    splits = load_splits(TASKS["glue/sst2"], DataSettings(root=str(tmp_path)))
    numbers = [{text.split()[1] for text in texts(split)} for split in (splits.train, splits.search)]
    assert not numbers[0] & numbers[1]
    assert len(splits.search) == 4
    assert all(text.endswith("bad") for text in texts(splits.search)), "whole sentences choose"
    before = load_splits(TASKS["glue/sst2"], DataSettings(root=str(tmp_path), search_groups=False))
    assert {text.split()[1] for text in texts(before.search)} & {text.split()[1] for text in texts(before.train)}


def test_too_few_rows_to_split_are_refused(tmp_path):
    write_cola(tmp_path, 1)
    with pytest.raises(DataError, match="1 training rows cannot be split"):
        load_splits(TASK, DataSettings(root=str(tmp_path)))


def refused(task, root):
    with pytest.raises(DataError) as caught:
        load_splits(TASKS[task], DataSettings(root=root and str(root)))
    return str(caught.value)


def test_columns_are_normalized(tmp_path):
    for split in ("train", "validation"):
        write(tmp_path, "qqp", split, question1=["a b", "c", "g"], question2=["d", "e f", "h"], label=[0, 1, 1], idx=[0, 1, 2])
    splits = load_splits(TASKS["glue/qqp"], DataSettings(root=str(tmp_path)), protocol="customary")
    assert splits.reported[""].column_names == ["text", "text_pair", "label", "row"]
    assert splits.reported[""][1] == {"text": "c", "text_pair": "e f", "label": 1, "row": 2}


def test_a_missing_folder_or_file_says_what_is_expected_and_what_is_there(tmp_path):
    write_cola(tmp_path, 20)
    message = refused("glue/rte", tmp_path)
    for part in (str(tmp_path / "glue" / "rte"), "train.parquet, validation.parquet", "in that folder: cola"):
        assert part in message
    (tmp_path / "glue" / "cola" / "validation.parquet").unlink()
    assert "its folder holds: train.parquet" in refused("glue/cola", tmp_path)


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
    said = refused(f"glue/{task}", tmp_path)
    assert "train.parquet" in said
    assert message in said


PUBLISHED = {
    "cola": (8551, {"": 1043}), "sst2": (67349, {"": 872}), "mrpc": (3668, {"": 408}), "stsb": (5749, {"": 1500}),
    "mnli": (16187, {"_matched": 9815, "_mismatched": 1000}),
}  # fmt: skip
"""Of MNLI a part is here, with both of its validation sets."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_real_glue_has_its_published_sizes(name, real_data):
    splits = load_splits(TASKS[f"glue/{name}"], DataSettings(root=str(real_data)), protocol="customary")
    sizes = {suffix: len(split) for suffix, split in splits.reported.items()}
    assert (len(splits.train), sizes) == PUBLISHED[name]
    assert len(splits.search) == sum(sizes.values())


@pytest.mark.parametrize("protocol", ["honest", "customary"])
def test_the_search_split_may_be_cut_alone(data, protocol):
    whole = load_splits(TASK, data, protocol=protocol)
    splits = load_splits(TASK, data, protocol=protocol, eval_examples=50, search_examples=7)
    assert len(splits.search) == 7
    assert set(texts(splits.search)) < set(texts(whole.search))
    assert len(splits.reported[""]) == 50
    assert texts(load_splits(TASK, data, protocol=protocol, search_examples=7).reported[""]) == texts(whole.reported[""])


NAMES = ["spam", "help", "sales"]
TEXTS = [f"letter {number} about {NAMES[number % 3]}" for number in range(60)]
FEATURES = datasets.Features({"body": datasets.Value("string"), "queue": datasets.ClassLabel(names=NAMES)})
ROWS = datasets.Dataset.from_dict({"body": TEXTS, "queue": [number % 3 for number in range(60)]}, features=FEATURES)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_dataset(folder: Path, kind: str) -> dict[str, Any]:
    """Writes the rows as a dataset with the splits train and test, and returns how they are named."""
    parts = datasets.DatasetDict({"train": ROWS, "test": ROWS.select(range(12))})
    if kind == "saved":
        parts.save_to_disk(str(folder))
    for name, part in parts.items():
        if kind == "parquet":
            folder.mkdir(exist_ok=True)
            part.to_parquet(folder / f"{name}.parquet")
        elif kind == "arrow":
            part.save_to_disk(str(folder / name))
    if kind == "arrow":
        return {"train": {"path": str(folder / "train")}, "validation": {"path": str(folder / "test")}}
    return {"train": {"path": str(folder)}, "validation": {"path": str(folder), "split": "test"}}


def letters(**parts: Any) -> tuple[Any, DataSettings]:
    data = DataSettings.model_validate({"custom": {"letters": {"text": "body", "label": "queue", **parts}}})
    return find_task("custom/letters", data), data


@pytest.mark.parametrize("kind", ["saved", "arrow", "parquet"])
def test_a_split_gives_the_rows_of_a_file_and_a_part_of_it_some(tmp_path: Path, kind: str) -> None:
    lines = [f"{text},{NAMES[number % 3]}" for number, text in enumerate(TEXTS)]
    for name, part in (("train", lines), ("test", lines[:12])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["body,queue", *part, ""]))
    files = {"train": str(tmp_path / "train.csv"), "validation": str(tmp_path / "test.csv")}
    read = []
    for parts in (files, write_dataset(tmp_path / "set", kind)):
        task, data = letters(**parts)
        assert task.labels == ("help", "sales", "spam")
        read.append(load_splits(task, data))
    assert read[0].fingerprint == read[1].fingerprint
    assert read[0].train["text"][:] == read[1].train["text"][:]
    whole = parts["train"]
    own = {"train": whole | {"split": "train[:50%]"}, "validation": whole | {"split": "train[-20:-10]+train[-10:]"}}
    splits = load_splits(*letters(**own))
    assert {*splits.train["text"], *splits.search["text"]} == {*TEXTS[:30]}
    assert splits.reported[""]["text"][:] == TEXTS[-20:]


def test_images_and_sounds_of_a_split_are_left_out(tmp_path: Path) -> None:
    """They are broken here, and the library that decodes sounds need not be installed."""
    media = {"sound": datasets.Audio(), "page": datasets.Image(), "pages": datasets.List({"scan": datasets.Image()})}
    broken = {"bytes": b"broken", "path": None}
    cells = {"sound": [broken], "page": [broken], "pages": [[{"scan": broken}]], "more": ['{"b": 1}']}
    schema = datasets.Features({"body": datasets.Value("string"), **media, "more": datasets.Json()}).arrow_schema
    pq.write_table(pa.table({"body": ["a letter"], **cells}, schema), tmp_path / "train.parquet")
    assert read_split(HubSplit(path=str(tmp_path))).columns == {"body": ["a letter"], "more": [{"b": 1}]}


def test_a_time_that_python_has_no_value_for_is_refused_with_its_column(tmp_path: Path) -> None:
    times = pa.array([253_402_300_800], pa.timestamp("s"))  # the year 10000
    pq.write_table(pa.table({"body": ["a letter"], "sent": times}), tmp_path / "train.parquet")
    for source in (str(tmp_path / "train.parquet"), HubSplit(path=str(tmp_path))):
        with pytest.raises(DataError, match=r"train.*: column 'sent' cannot be read \(date value out of range\)\. Take it out"):
            read_rows(source) if isinstance(source, str) else read_split(source)


def test_unlabelled_rows(tmp_path: Path) -> None:
    hidden = datasets.Dataset.from_dict({"body": TEXTS, "queue": [-1] * 60}, features=FEATURES)
    datasets.DatasetDict({"train": ROWS, "test": hidden}).save_to_disk(str(tmp_path / "set"))
    place = {"path": str(tmp_path / "set")}
    with pytest.raises(ValueError, match="set test, row 1: column 'queue' holds nothing"):
        load_splits(*letters(train=place, validation=place | {"split": "test"}))


def test_the_hub_out_of_reach_says_what_to_do(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    message = refused("glue/rte", None)
    for part in ("nyu-mll/glue", "HF_HUB_OFFLINE is set", "glue/rte/train.parquet", "--set data.root=FOLDER"):
        assert part in message


def test_a_hub_that_is_away_is_named_with_what_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    with pytest.raises(DataUnavailable, match=r"nothing en train.*load_dataset\('nobody/nothing', 'en'\).*HF_DATASETS_CACHE"):
        letters(train={"path": "nobody/nothing", "name": "en"})


FILE = """
name: letters
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [custom/letters]
data: {{custom: {{letters: {{text: body, label: queue, train: {train}}}}}}}
space: [{{method: head}}]
"""


def sweep_file(folder: Path, train: str) -> Path:
    (folder / "letters.yaml").write_text(FILE.format(train=train))
    return folder / "letters.yaml"


def test_a_sweep_file_names_a_folder_next_to_it(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", "saved")
    file = sweep_file(tmp_path, "{path: set, split: test}")
    sweep = load_sweep(file, [f"storage={tmp_path}"])
    assert sweep.data.custom["letters"].parts[0].path == str(tmp_path / "set")  # type: ignore[union-attr]
    assert len(make_plan(sweep).trials) == 1


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            "{path: set, slit: test}",
            "train.slit: unknown key 'slit'. Did you mean 'split'? Allowed here: path, name, split",
        ),
        ("{split: test}", "letters.train.path: missing"),
        ("{path: set, split: nope}", "letters: .*set nope: the datasets library cannot read it from the folder"),
        ("3", "letters.train: got 3; must be text"),
    ],
)
def test_a_wrong_split_is_named_with_its_place(tmp_path: Path, train: str, message: str) -> None:
    write_dataset(tmp_path / "set", "saved")
    with pytest.raises(SweepError, match=message.replace("?", r"\?")):
        load_sweep(sweep_file(tmp_path, train))

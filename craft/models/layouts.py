"""LAYOUTS: where transformers keep their projections. A model has the first layout whose `q` and `down` it has.

A layout maps a word to the end of the module's path (a regular expression). `pattern[i/n]` is the i-th of n equal parts of a
fused module's outputs: `transformer.h.3.attn.c_attn[0/3]` is q of GPT-2, outputs 0 to d of 3 d.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

WORDS = ("q", "k", "v", "o", "gate", "up", "down")

_BERT = {
    "q": r"attention\.self\.query",
    "k": r"attention\.self\.key",
    "v": r"attention\.self\.value",
    "o": r"attention\.output\.dense",
    "up": r"intermediate\.dense",
    "down": r"layer\.\d+\.output\.dense",
}
_LLAMA = {
    "q": r"self_attn\.q_proj",
    "k": r"self_attn\.k_proj",
    "v": r"self_attn\.v_proj",
    "o": r"self_attn\.o_proj",
    "gate": r"mlp\.gate_proj",
    "up": r"mlp\.up_proj",
    "down": r"mlp\.down_proj",
}
_OPT = {
    "q": r"(?:self|encoder)_attn\.q_proj",
    "k": r"(?:self|encoder)_attn\.k_proj",
    "v": r"(?:self|encoder)_attn\.v_proj",
    "o": r"(?:self|encoder)_attn\.out_proj",
    "up": r"fc1",
    "down": r"fc2",
}
_DISTILBERT = {
    "q": r"attention\.q_lin",
    "k": r"attention\.k_lin",
    "v": r"attention\.v_lin",
    "o": r"attention\.out_lin",
    "up": r"ffn\.lin1",
    "down": r"ffn\.lin2",
}
_GPT2 = {
    "q": r"attn\.c_attn[0/3]",
    "k": r"attn\.c_attn[1/3]",
    "v": r"attn\.c_attn[2/3]",
    "o": r"attn\.c_proj",
    "up": r"mlp\.c_fc",
    "down": r"mlp\.c_proj",
}
_T5 = {
    "q": r"(?:SelfAttention|EncDecAttention)\.q",
    "k": r"(?:SelfAttention|EncDecAttention)\.k",
    "v": r"(?:SelfAttention|EncDecAttention)\.v",
    "o": r"(?:SelfAttention|EncDecAttention)\.o",
    "gate": r"DenseReluDense\.wi_0",
    "up": r"DenseReluDense\.wi(?:_1)?",
    "down": r"DenseReluDense\.wo",
}
_MPNET = _BERT | {
    "q": r"attention\.attn\.q",
    "k": r"attention\.attn\.k",
    "v": r"attention\.attn\.v",
    "o": r"attention\.attn\.o",
}
_MODERNBERT = {
    "q": r"attn\.Wqkv[0/3]",
    "k": r"attn\.Wqkv[1/3]",
    "v": r"attn\.Wqkv[2/3]",
    "o": r"attn\.Wo",
    "gate": r"mlp\.Wi[0/2]",
    "up": r"mlp\.Wi[1/2]",
    "down": r"mlp\.Wo",
}
_DEBERTA = _BERT | {
    "q": r"attention\.self\.query_proj",
    "k": r"attention\.self\.key_proj",
    "v": r"attention\.self\.value_proj",
}
_LFM2 = {
    "q": r"self_attn\.q_proj",
    "k": r"self_attn\.k_proj",
    "v": r"self_attn\.v_proj",
    "o": r"self_attn\.out_proj",
    "gate": r"feed_forward\.w1",
    "up": r"feed_forward\.w3",
    "down": r"feed_forward\.w2",
}

LAYOUTS: tuple[Mapping[str, str], ...] = (_BERT, _LLAMA, _OPT, _DISTILBERT, _GPT2, _T5, _MPNET, _MODERNBERT, _DEBERTA, _LFM2)


def find_layout(paths: Iterable[str]) -> Mapping[str, str]:
    """Finds the layout of a model by the paths of its linear modules; an empty one if none of LAYOUTS fits."""
    paths = list(paths)
    fits = (each for each in LAYOUTS if all(any(ends(path, each[word]) for path in paths) for word in ("q", "down")))
    return next(fits, {})


def ends(path: str, pattern: str) -> bool:
    """Returns whether a module's path ends as a pattern, without its part of a fused module, says."""
    return re.search(rf"(?:^|\.)(?:{pattern.partition('[')[0]})$", path) is not None

"""Writes small GGUF files as llama.cpp's converter lays them out: a LLaMA of two layers, its tokens bytes and a few merges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Format
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

HEADS, KEY_HEADS, LAYERS, WIDTH, INNER = 4, 2, 2, 64, 96
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ Ġ", "a n", "Ġ the")
FIELDS: dict[str, Any] = {
    "context_length": 128, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": INNER, "head_count": HEADS,
    "head_count_kv": KEY_HEADS, "rope_dimension_count": WIDTH // HEADS, "rope_freq_base": 50_000.0, "layer_norm_rms_eps": 1e-5,
    "tokenizer_model": "gpt2", "token_merges": MERGES, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    "unk_token_id": 0, "add_bos_token": False,
}  # fmt: skip
"""What the file says of every model, by the names of `gguf.GGUFWriter`'s methods."""


def vocabulary() -> list[str]:
    return [*SPECIAL, *sorted(bytes_to_unicode().values()), *(merge.replace(" ", "") for merge in MERGES)]


def random_llama(seed: int = 0) -> LlamaForCausalLM:
    """The model that is written: its output layer is its embedding, as SmolLM2's."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": 50_000.0},
        rms_norm_eps=1e-5,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def write(path: Path, model: LlamaForCausalLM, form: Format = Format.F32, leave_out: str = "-", **changes: Any) -> Path:
    """Writes `model` but its tensors with `leave_out` in their names; `changes`: architecture, pre, extra tensors, parts."""
    architecture = changes.get("architecture", "llama")
    writer = gguf.GGUFWriter(path, architecture)
    fields = FIELDS | {
        "tokenizer_pre": changes.get("pre", "smollm"),
        "token_list": vocabulary(),
        "vocab_size": len(vocabulary()),
    }
    fields["token_types"] = [3 if token in SPECIAL else 1 for token in vocabulary()]
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    if "parts" in changes:
        writer.add_uint16("split.count", changes["parts"])
    for name, tensor in tensors(model).items():
        if leave_out not in name:
            put(writer, name, tensor, form if tensor.ndim > 1 else Format.F32)
    for name, tensor in changes.get("extra", {}).items():
        put(writer, name, tensor, Format.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def put(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray, form: Format) -> None:
    if form in (Format.F32, Format.F16):
        writer.add_tensor(name, tensor.astype(np.float16 if form == Format.F16 else np.float32))
    else:
        writer.add_tensor(name, gguf.quants.quantize(tensor, form), raw_dtype=form)


def tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The model's weights under their names in a GGUF file; q and k as llama.cpp orders their rows."""
    names, found = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS), {}
    for name, weight in model.base_model.state_dict(prefix="model.").items():
        heads = {"q_proj": HEADS, "k_proj": KEY_HEADS}.get(name.split(".")[-2])
        content = weight.numpy() if heads is None else interleaved(weight.numpy(), heads)
        found[names.get_name(name, (".weight",))] = content
    return found


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Each head's rows as pairs of the two halves: llama.cpp's order, for its way of rotating positions."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))

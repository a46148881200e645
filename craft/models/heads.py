"""The task head: its modules, its float32 format, and which models cannot answer in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel
from torch import nn

from craft.models.compute import inputs_in_float32
from craft.results import ModelUnsuited
from craft.tasks.task import Kind

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# PEFT's word for what a model of each kind of task is.
TASK_TYPES: dict[Kind, str] = {"classification": "SEQ_CLS", "regression": "SEQ_CLS", "generation": "CAUSAL_LM"}


DECODER = "Tasks that are answered in words take a language model, such as HuggingFaceTB/SmolLM2-135M"


def head_names(model: nn.Module) -> tuple[str, ...]:
    """Returns the names of the modules that are the task head: direct children next to the base model that hold weights.

    Empty for language models, whose output layer belongs to the base. BERT: `classifier`; DistilBERT: `pre_classifier`,
    `classifier`; LLaMA and GPT-2: `score`.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    if "ForSequenceClassification" not in type(base).__name__:
        return ()
    body = base.base_model_prefix
    return tuple(name for name, child in base.named_children() if name != body and any(True for _ in child.parameters()))


def is_head(parameter: str, heads: Sequence[str]) -> bool:
    """Returns whether `parameter` is in one of the modules `heads`, with or without a PEFT model around it."""
    return parameter.removeprefix("base_model.model.").split(".", 1)[0] in heads


def keep_head_in_float32(model: nn.Module) -> None:
    for name in head_names(model):
        head = model.get_submodule(name)
        if any(weight.dtype != torch.float32 for weight in head.parameters()):
            head.to(torch.float32)
            head.register_forward_pre_hook(inputs_in_float32)


def model_class(name: str, kind: Kind, config: PreTrainedConfig) -> Any:
    """Returns the class of transformers that puts a task's head on the model. Raises ModelUnsuited."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

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

"""Which modules of a model are its task head, and how the head stays float32 under a 16-bit base."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from peft import PeftModel
from torch import nn

from craft.models.compute import inputs_in_float32
from craft.tasks.task import Kind

# PEFT's word for what a model of each kind of task is.
TASK_TYPES: dict[Kind, str] = {"classification": "SEQ_CLS", "regression": "SEQ_CLS", "generation": "CAUSAL_LM"}


def head_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the modules that are the task head: direct children next to the base model that hold weights.

    Empty for language models, whose output layer belongs to the base. BERT: `classifier`; DistilBERT: `pre_classifier`,
    `classifier`; LLaMA and GPT-2: `score`.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    if "ForSequenceClassification" not in type(base).__name__:
        return ()
    body = base.base_model_prefix
    return tuple(name for name, child in base.named_children() if name != body and any(True for _ in child.parameters()))


def is_head(parameter: str, heads: Sequence[str]) -> bool:
    """Whether the parameter called `parameter` lies in one of the modules `heads`, with or without a PEFT model around it."""
    return parameter.removeprefix("base_model.model.").split(".", 1)[0] in heads


def keep_head_in_float32(model: nn.Module) -> None:
    for name in head_names(model):
        head = model.get_submodule(name)
        if any(weight.dtype != torch.float32 for weight in head.parameters()):
            head.to(torch.float32)
            head.register_forward_pre_hook(inputs_in_float32)

"""Only the positions that the loss sees go through a language model's last layer.

    texts      prompt prompt prompt prompt answer answer <pad>         the loss sees `answer`, in the one position before each
    places                          ──────────────              (b, k) k is the most that any text of the batch has
    logits                                                      (b, k, vocabulary), not (b, tokens, vocabulary)

A vocabulary has a hundred thousand entries and an answer about ten tokens, so this saves gigabytes and, where the vocabulary
is most of the model (Gemma 3 270M), a fifth of a step. A text with fewer than k positions in the loss gets others of its own,
whose targets the loss leaves out, so no position comes twice.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn

from craft.tasks.prompts import IGNORED


def can_choose(model: nn.Module) -> bool:
    """Returns whether a transformers model computes logits at chosen positions of each text (`logits_to_keep`, (b, k)).

    Not with layers on several devices: the last hidden states are not where the positions are.
    """
    wrapped: Any = model
    base = wrapped.get_base_model() if hasattr(model, "get_base_model") else model
    takes = "logits_to_keep" in inspect.signature(base.forward).parameters
    # Other people's models, and older versions of transformers, read the argument in ways of their own.
    slices = hasattr(sys.modules[type(base).__module__], "slice_logits_to_keep")
    return takes and slices and not hasattr(model, "hf_device_map")


def places_in_loss(labels: torch.Tensor) -> torch.Tensor:
    """Returns the positions whose next token is in the loss, (b, k), in order; `labels` are (b, tokens), on the CPU."""
    taught = labels[:, 1:] != IGNORED
    most = max(1, int(taught.sum(dim=1).max()))
    return (~taught).int().argsort(dim=1, stable=True)[:, :most].sort(dim=1).values


def loss_at(model: nn.Module, inputs: dict[str, Any], labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Computes `craft.scoring.passes.token_loss` of `model` at `places` alone, (b, k), from `places_in_loss`."""
    logits = model(**inputs, logits_to_keep=places).logits
    assert logits.shape[:2] == places.shape, f"{type(model).__name__} gave logits {tuple(logits.shape)}"
    return next_token_loss(logits, labels[:, 1:].gather(1, places))


def next_token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sums the cross-entropy over the targets that are in the loss: (b, k, vocabulary) by (b, k)."""
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1), ignore_index=IGNORED, reduction="sum"
    )

"""A pass of a model over a split: in evaluation mode, in batches of about equal length; and a language model's loss.

Only the positions that the loss sees go through a language model's last layer. A vocabulary has a hundred thousand entries and
an answer about ten tokens, so this saves gigabytes and, where the vocabulary is most of the model (Gemma 3 270M), a fifth of a
step.

    texts      prompt prompt prompt prompt answer answer <pad>         the loss sees `answer`, in the one position before each
    places                          ──────────────              (b, k) k is the most that any text of the batch has
    logits                                                      (b, k, vocabulary), not (b, tokens, vocabulary)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from peft.helpers import DoraCaching
from torch import nn

from craft.models.compute import base_of
from craft.processes import Group, current
from craft.scoring.encoding import Collator, Encoded, places_in_loss
from craft.tasks.prompts import IGNORED
from craft.watch import watch

T = TypeVar("T")


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Puts the model in eval mode, without gradients, and restores its own mode. PEFT computes DoRA's norms once inside."""
    training = model.training
    model.train()  # empties PEFT's cache of norms
    model.eval()
    try:
        # no_grad and not inference_mode: a method may keep what it computed here for the next training step.
        with torch.no_grad(), DoraCaching():
            yield
    finally:
        model.train(training)


def compute_by_length(
    lengths: Sequence[int] | np.ndarray,
    batch_size: int,
    compute: Callable[[list[int]], T],
    name: str,
    group: Group | None = None,
) -> list[tuple[list[int], T]]:
    """Computes something of batches of rows, the longest first, so that one too large for memory fails at once.

    The processes of a group (those of this run if not given) take turns. Where they compute each batch together, all have
    equally many: one too many is dropped. Returns the row numbers of every batch and what was computed of them.
    """
    group, order = group or current(), np.argsort(np.asarray(lengths), kind="stable")[::-1].tolist()
    batches = [order[begin : begin + batch_size] for begin in range(0, len(order), batch_size)]
    values: dict[int, T] = {}
    for begin in range(0, len(batches), group.count):
        number = begin + group.rank
        if number < len(batches) or group.way == "shard":
            values[number] = compute(batches[min(number, len(batches) - 1)])
        watch(name, min((begin + group.count) * batch_size, len(order)), len(order))
    values = {number: value for part in (group.gather(values)) for number, value in part.items()}
    return [(rows, values[number]) for number, rows in enumerate(batches)]


def can_choose(model: nn.Module) -> bool:
    """Returns whether a transformers model computes logits at chosen positions of each text (`logits_to_keep`, (b, k)).

    Not with layers on several devices: the last hidden states are not where the positions are.
    """
    base = base_of(model)
    takes = "logits_to_keep" in inspect.signature(base.forward).parameters
    # Other people's models, and older versions of transformers, read the argument in ways of their own.
    slices = hasattr(sys.modules[type(base).__module__], "slice_logits_to_keep")
    return takes and slices and not hasattr(model, "hf_device_map")


def token_loss(model: nn.Module, inputs: dict[str, Any], labels: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """Sums the cross-entropy of the next token over the tokens in the loss; `labels` are (b, tokens).

    Logits are those of all positions, or of `places` alone, (b, k), from `places_in_loss`.
    """
    if places is None:
        logits, targets = model(**inputs).logits[:, :-1], labels[:, 1:]
    else:
        logits, targets = model(**inputs, logits_to_keep=places).logits, labels[:, 1:].gather(1, places)
        assert logits.shape[:2] == places.shape, f"{type(model).__name__} gave logits {tuple(logits.shape)}"
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1), ignore_index=IGNORED, reduction="sum"
    )


def mean_token_loss(model: nn.Module, texts: Encoded, collator: Collator, batch_size: int, name: str = "loss") -> float:
    """Computes the training loss over a split, by token; the model is left in the mode that it was in."""
    device = next(model.parameters()).device
    chooses = can_choose(model)

    def compute(rows: list[int]) -> tuple[float, int]:
        batch = collator([texts[index] for index in rows])
        labels = batch.pop("labels")
        inputs = {name: tensor.to(device) for name, tensor in batch.items()}
        places = places_in_loss(labels).to(device) if chooses else None
        loss = token_loss(model, inputs, labels.to(device), places)
        return float(loss), int((labels != IGNORED).sum())

    with eval_mode(model):
        sums = [value for _, value in compute_by_length(texts.lengths, batch_size, compute, name)]
    return sum(loss for loss, _ in sums) / sum(tokens for _, tokens in sums)

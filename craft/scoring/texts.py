"""Instructions as tokens: each process encodes a split of texts once, as flat arrays; and a language model's loss on it.

The counterpart of `craft.scoring.encoding` for tasks that are answered in words. An example's loss is on its tokens from a
start on; the start is kept instead of a label for every token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from peft.helpers import DoraCaching
from torch import nn
from torch.utils.data import Dataset

from craft.data_settings import GenerationSettings
from craft.processes import Group, current
from craft.scoring.encoding import Collator, Example
from craft.scoring.positions import can_choose, loss_at, next_token_loss, places_in_loss
from craft.tasks import cloze
from craft.tasks.forms import Form
from craft.tasks.prompts import IGNORED, PROMPTS, encode
from craft.tasks.splits import remembered

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
Tick = Callable[[str, int, int], None]
"""Called during long work with its name, the number that is done and the number of all."""

_PIECE = 2048


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
    tick: Tick,
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
        tick(name, min((begin + group.count) * batch_size, len(order)), len(order))
    values = {number: value for part in (group.gather(values)) for number, value in part.items()}
    return [(rows, values[number]) for number, rows in enumerate(batches)]


@dataclass(frozen=True)
class EncodedTexts(Dataset[Example]):
    """n texts: `tokens` flat, cut by `offsets` (n + 1,); the loss sees a text's tokens from its entry of `starts` (n,) on.

    `untaught` counts texts that were left out because nothing of their response is within the length.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray
    untaught: int = 0

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Example:
        tokens = self.tokens[self.offsets[index] : self.offsets[index + 1]]
        labels = tokens.astype(np.int64)
        labels[: self.starts[index]] = IGNORED
        return {"input_ids": tokens, "labels": labels}

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, (n,)."""
        return np.diff(self.offsets)


def encode_texts(
    split: Any,
    tokenizer: PreTrainedTokenizerBase,
    settings: GenerationSettings,
    max_length: int,
    *,
    key: object,
    form: Form | None = None,
) -> EncodedTexts:
    """Encodes the training texts of a split, or takes them from this process's memory if it has seen them before.

    Args:
        split: with the columns of `craft.tasks.commonsense.COLUMNS`, or of own instructions, whose `form` is given.
        key: all else that decides the tokens: the tokenizer's name and revision, the data's fingerprint, how they were cut.
    """
    name = form.name if form else "cloze" if settings.score == "cloze" else settings.prompt
    texts = "texts", name, settings.loss, settings.date, max_length, key
    return remembered(texts, lambda: _encoded(split, tokenizer, settings, max_length, form))


def _encoded(
    split: Any, tokenizer: PreTrainedTokenizerBase, settings: GenerationSettings, max_length: int, form: Form | None
) -> EncodedTexts:
    prompt = PROMPTS[settings.prompt]
    tokens: list[np.ndarray] = []
    starts: list[int] = []
    for begin in range(0, len(split), _PIECE):
        rows = split[begin : begin + _PIECE]
        prompts, responses = (
            form.taught(rows)
            if form
            else cloze.read_taught(rows)
            if settings.score == "cloze"
            else ([prompt.for_training(*pair) for pair in zip(rows["text"], rows["input"], strict=True)], rows["response"])
        )
        for text in encode(
            tokenizer, prompts, responses, max_length=max_length, loss=settings.loss, special=not (form and form.templated)
        ):
            if text.teaches:
                tokens.append(np.asarray(text.tokens, dtype=np.int32))
                starts.append(text.start)
    if not starts:
        raise ValueError(
            f"none of {len(split)} texts has any of its response within max_length {max_length}: there is nothing to learn. "
            "Give a larger max_length"
        )
    untaught = len(split) - len(starts)
    return EncodedTexts(np.concatenate(tokens), np.cumsum([0, *map(len, tokens)]), np.asarray(starts, dtype=np.int64), untaught)


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Computes the cross-entropy of the next token, summed over the tokens that are in the loss.

    Args:
        logits: (b, tokens, vocabulary).
        labels: (b, tokens); -100 where a token is not in the loss.
    """
    return next_token_loss(logits[:, :-1], labels[:, 1:])


def mean_token_loss(model: nn.Module, texts: EncodedTexts, collator: Collator, batch_size: int, tick: Tick) -> float:
    """Computes the training loss over a split, by token; the model is left in the mode that it was in."""
    device = next(model.parameters()).device
    chooses = can_choose(model)

    def compute(rows: list[int]) -> tuple[float, int]:
        batch = collator([texts[index] for index in rows])
        labels = batch.pop("labels")
        inputs = {name: tensor.to(device) for name, tensor in batch.items()}
        if chooses:
            loss = loss_at(model, inputs, labels.to(device), places_in_loss(labels).to(device))
        else:
            loss = token_loss(model(**inputs).logits, labels.to(device))
        return float(loss), int((labels != IGNORED).sum())

    with eval_mode(model):
        sums = [value for _, value in compute_by_length(texts.lengths, batch_size, compute, tick, "loss")]
    return sum(loss for loss, _ in sums) / sum(tokens for _, tokens in sums)

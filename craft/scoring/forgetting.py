"""Forgetting of a language model: its mean loss on the tokens of a text, after training minus before.

    forgetting = loss after - loss before                in nats a token; below 0 the model reads the text better than before
    loss       = - sum of log p(token | those before it in its window) / number of tokens that are predicted

The text is read in windows that do not overlap. A tokenizer that puts a token in front of every text (LLaMA's) puts one in
front of every window, so each token of the text is predicted once; without such a token the first of a window is not predicted.
The loss before training is the base model's, before a method is put on it: PiSSA and others change the base's weights then.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
from torch import nn
from transformers import PreTrainedTokenizerBase

from craft.results import TEXT, TEXT_DIGEST, Unavailable
from craft.scoring.encoding import Collator, Encoded, positions
from craft.scoring.passes import mean_token_loss
from craft.settings import ForgettingSettings
from craft.spec import RunSpec
from craft.tasks.task import Kind

WINDOW = 512
SHIPPED = Path(__file__).with_name("plain_text.txt")
BEFORE, AFTER = "text_loss_before", "text_loss_after"


class Forgetting:
    """The text of one run, and the model's loss on it before a method is put on the model."""

    def __init__(
        self,
        settings: ForgettingSettings,
        tokenizer: PreTrainedTokenizerBase,
        model: nn.Module,
        loss_before: float | None = None,
    ) -> None:
        """Measures the loss before training, unless a record of a run on the same base has it."""
        text = read_text(settings)
        self._windows = windows(tokenizer, text, min(WINDOW, positions(tokenizer, model)))
        self._collator = Collator(int(tokenizer.pad_token_id))
        self._loss_before = self._loss(model) if loss_before is None else loss_before
        self.facts = {TEXT: settings.name, TEXT_DIGEST: hashlib.sha256(text.encode()).hexdigest()}

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """Computes `forgetting`, and the two losses that it is the difference of, in nats a token."""
        after = self._loss(model)
        return {"forgetting": after - self._loss_before, BEFORE: self._loss_before, AFTER: after}

    def _loss(self, model: nn.Module) -> float:
        # One window at a time: the logits of a window over a large vocabulary take half a gigabyte.
        loss = mean_token_loss(model, self._windows, self._collator, 1, "forgetting")
        if not math.isfinite(loss):
            raise ValueError(f"the loss on the text of measure.forgetting is {loss}")
        return loss


def refuse_under_task_head(spec: RunSpec, kind: Kind) -> None:
    """Raises ValueError if a run asks for `forgetting` on a task that the model does not answer in words."""
    if spec.measure.forgetting is not None and kind != "generation":
        raise ValueError(
            f"measure.forgetting asks for a loss on text, and {spec.task} puts a task head where the language head was; ask "
            "for it with tasks that are answered in words (commonsense) alone, or leave measure.forgetting out"
        )


def text_digest(settings: ForgettingSettings) -> str:
    return hashlib.sha256(read_text(settings).encode()).hexdigest()


def read_text(settings: ForgettingSettings) -> str:
    """Reads the text to measure on. Raises Unavailable, or ValueError if it is not UTF-8, or empty."""
    file = SHIPPED if settings.text is None else Path(settings.text).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"measure.forgetting.text: {file} is no text in UTF-8 ({error.reason} at byte {error.start})"
        ) from None
    except OSError as error:
        raise Unavailable(f"measure.forgetting.text: {file} cannot be read: {error.strerror or error}") from None
    if not text.strip():
        raise ValueError(f"measure.forgetting.text: {file} is empty; give a file with some pages of text")
    return text


def windows(tokenizer: PreTrainedTokenizerBase, text: str, length: int) -> Encoded:
    """Cuts the tokens of `text` into windows of at most `length`, in its order."""
    tokens = np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int32)
    begins, wrapped = tokenizer.bos_token_id, tokenizer("a")["input_ids"]
    first = np.asarray([begins] if begins is not None and wrapped[:1] == [begins] else [], dtype=np.int32)
    step = length - len(first)
    parts = [np.concatenate([first, tokens[at : at + step]]) for at in range(0, len(tokens), step)]
    offsets = np.cumsum([0, *map(len, parts)])
    if offsets[-1] <= len(parts):
        raise ValueError("measure.forgetting.text: the text has fewer than two tokens; give some pages of text")
    return Encoded({"input_ids": np.concatenate(parts)}, offsets, starts=np.ones(len(parts), dtype=np.int64))

"""Outputs of a task head for every example of a split, and losses.

The model is scored as it trained, through its adapter's own forward pass, because merging into 16-bit weights would lose part
of a small update. Examples are batched by length, which saves most of the padding; outputs come back in the split's order. No
random number is drawn, so the number of evaluations does not change the training.

`LOSSES` has a row for each kind of task; tasks that are answered in words are scored by `craft.scoring.answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from craft.scoring.encoding import Collator, EncodedSplit
from craft.scoring.texts import Tick, eval_mode, token_loss
from craft.tasks.metrics import collapsed
from craft.tasks.task import Kind, Task


def predict(
    model: nn.Module,
    split: EncodedSplit,
    collator: Collator,
    batch_size: int,
    tick: Tick = lambda what, done, total: None,
    what: str = "",
) -> np.ndarray:
    """Outputs of the task head for every example, float32 (n, outputs), in the split's order.

    The model is left in the mode, training or not, that it was in. `tick` is called after every batch.
    """
    order = np.argsort(split.lengths, kind="stable")[::-1]  # longest first: a batch too large for memory fails at once
    device = next(model.parameters()).device
    outputs: list[np.ndarray] = []
    with eval_mode(model):
        for begin in range(0, len(order), batch_size):
            batch = collator([split[int(index)] for index in order[begin : begin + batch_size]])
            del batch["labels"]
            logits = model(**{name: tensor.to(device) for name, tensor in batch.items()}).logits
            outputs.append(logits.float().cpu().numpy())
            tick(what, min(begin + batch_size, len(order)), len(order))
    restored = np.empty((len(order), outputs[0].shape[1]), dtype=np.float32)
    restored[order] = np.concatenate(outputs)
    return restored


def _cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.float(), labels, reduction="sum")


def _squared_error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(outputs.float().squeeze(-1), labels.float(), reduction="sum")


# Sums over examples (tokens for a language model). The caller divides by the number in one optimizer step, so that the step
# does not depend on how it is cut into micro-batches.
LOSSES: dict[Kind, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "classification": _cross_entropy,
    "regression": _squared_error,
    "generation": token_loss,
}


def collapse_note(task: Task, outputs: Mapping[str, np.ndarray]) -> str | None:
    """A note on a model that gives the same answer to every example; None for other models."""
    together = np.concatenate(list(outputs.values()))
    if not collapsed(together):
        return None
    if task.kind == "regression":
        return f"collapsed to one value: every prediction is {float(together[0, 0]):.3g}"
    return f"collapsed to one class: every prediction is {task.labels[int(together[0].argmax())]!r}"

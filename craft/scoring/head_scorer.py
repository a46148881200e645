"""`HeadScorer`: scores of tasks that a task head answers with classes or values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import Dataset

from craft.scoring.encoding import Collator, EncodedSplit, EncodedSplits
from craft.scoring.evaluation import LOSSES, collapse_note, predict
from craft.scoring.scorer import PREDICTIONS_FILE, Keep, Reported
from craft.scoring.texts import Tick
from craft.tasks.metrics import compute_metrics, compute_reported

if TYPE_CHECKING:
    from craft.tasks.task import Task


class HeadScorer:
    """`craft.scoring.scorer.Scorer` for tasks that a head answers. Outputs go to `predictions.safetensors`."""

    def __init__(self, task: Task, data: EncodedSplits, collator: Collator, batch_size: int, tick: Tick) -> None:
        """
        Args:
            tick: called after every batch.
        """
        self._tick, self._task, self._data, self._collator, self._batch_size = tick, task, data, collator, batch_size
        self.train: Dataset[Any] = data.train
        self.sizes = {
            "train_examples": len(data.train),
            "search_examples": len(data.search),
            "reported_examples": sum(len(split) for split in data.reported.values()),
        }
        self.passes = {"search": len(data.search)} | {_name(suffix): len(split) for suffix, split in data.reported.items()}
        self._last: tuple[EncodedSplit, list[tuple[int, int]], np.ndarray] | None = None
        self.notes: list[str] = _cut_note(data)
        self.facts: dict[str, Any] = _chance(task, data)

    def search(self, model: nn.Module) -> dict[str, float]:
        outputs = self._predict(model, self._data.search, "search")
        labels = self._data.search.labels
        loss = LOSSES[self._task.kind](torch.from_numpy(outputs), torch.from_numpy(labels))
        values = compute_metrics(self._task, outputs, labels) | {"loss": float(loss / len(labels))}
        return {f"search_{name}": value for name, value in values.items()}

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        splits = self._data.reported
        outputs = {suffix: self._predict(model, split, _name(suffix)) for suffix, split in splits.items()}
        metrics = compute_reported(self._task, {name: (outputs[name], split.labels) for name, split in splits.items()})
        tensors = {f"outputs{suffix}": torch.from_numpy(values) for suffix, values in outputs.items()}
        labels = {f"labels{suffix}": torch.from_numpy(split.labels) for suffix, split in splits.items()}
        save_file(tensors | labels, directory / PREDICTIONS_FILE)
        note = collapse_note(self._task, outputs)
        return Reported(metrics, [note] if note else [])

    def _predict(self, model: nn.Module, split: EncodedSplit, what: str) -> np.ndarray:
        """Outputs of the split: those of the last pass if it was this split with these weights, as at the end of a run under
        `customary`."""
        weights = [(id(weight), 0 if weight.is_inference() else weight._version) for weight in model.parameters()]
        if self._last is None or self._last[0] is not split or self._last[1] != weights:
            self._last = split, weights, predict(model, split, self._collator, self._batch_size, self._tick, what)
        return self._last[2]


def _chance(task: Task, data: EncodedSplits) -> dict[str, float]:
    """`chance`: the reported score of always answering the training split's most frequent class."""
    if task.kind != "classification":
        return {}
    classes, counts = np.unique(data.train.labels, return_counts=True)
    answer = np.eye(len(task.labels), dtype=np.float32)[int(classes[counts.argmax()])]
    outputs = {suffix: (np.tile(answer, (len(split), 1)), split.labels) for suffix, split in data.reported.items()}
    return {"chance": compute_reported(task, outputs)["score"]}


def _cut_note(data: EncodedSplits) -> list[str]:
    """How many inputs lose their end, if that is one in a hundred or more of a split."""
    splits = {"training": data.train} | {_name(suffix): split for suffix, split in data.reported.items()}
    shares = [
        f"{100 * one.cut / len(one):.0f} % of the {name} split" for name, one in splits.items() if 100 * one.cut >= len(one)
    ]
    return [f"inputs cut to max_length: {', '.join(shares)}; a larger training.max_length reads them whole"] if shares else []


def _name(suffix: str) -> str:
    """How progress names a reported split."""
    return suffix.removeprefix("_") or "reported"

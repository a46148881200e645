"""What a run asks of its kind of task: something to train on, the search split's scores, and at the end the reported ones.

`make_scorer` gives the one that fits: `HeadScorer` where a task head answers (classes, values), `craft.answers.AnswerScorer`
where the model answers in words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import Dataset

from craft.encoding import Collator, EncodedSplits, encode, longest_input
from craft.evaluation import collapse_note, predict, reported_metrics, search_metrics
from craft.texts import Tick

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from craft.spec import RunSpec
    from craft.tasks.splits import Splits
    from craft.tasks.task import Task

PREDICTIONS_FILE = "predictions.safetensors"

Keep = Callable[[dict[str, float]], None]
"""Told, while the reported splits are scored, what is known so far: a run that breaks off then goes on from there."""


@dataclass(frozen=True)
class Reported:
    """`score` and its companions on the reported splits, and what a reader must know of them."""

    metrics: dict[str, float]
    notes: list[str] = field(default_factory=list)


class Scorer(Protocol):
    """One run's data, ready for its model. `sizes` goes into the run's facts; `notes` into its notes."""

    train: Dataset[Any]
    sizes: dict[str, int]
    notes: list[str]
    facts: dict[str, Any]

    def search(self, model: nn.Module) -> dict[str, float]:
        """`search_score` and its companions. Raises ValueError if the model's outputs are not finite."""
        ...

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        """The reported splits' scores; the outputs behind them are written into `directory`, where those that are there
        already (from the same run and the same weights) are taken as they are. Raises ValueError as `search` does."""
        ...


class HeadScorer:
    """Tasks that are answered by a head. Outputs go to `predictions.safetensors`."""

    def __init__(self, task: Task, data: EncodedSplits, collator: Collator, batch_size: int) -> None:
        self._task, self._data, self._collator, self._batch_size = task, data, collator, batch_size
        self.train: Dataset[Any] = data.train
        self.sizes = {
            "train_examples": len(data.train),
            "search_examples": len(data.search),
            "reported_examples": sum(len(split) for split in data.reported.values()),
        }
        self.notes: list[str] = []
        self.facts: dict[str, Any] = {}

    def search(self, model: nn.Module) -> dict[str, float]:
        outputs = predict(model, self._data.search, self._collator, self._batch_size)
        return search_metrics(self._task, outputs, self._data.search.labels)

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        splits = self._data.reported
        outputs = {suffix: predict(model, split, self._collator, self._batch_size) for suffix, split in splits.items()}
        metrics = reported_metrics(self._task, outputs, splits)
        tensors = {f"outputs{suffix}": torch.from_numpy(values) for suffix, values in outputs.items()}
        labels = {f"labels{suffix}": torch.from_numpy(split.labels) for suffix, split in splits.items()}
        save_file(tensors | labels, directory / PREDICTIONS_FILE)
        note = collapse_note(self._task, outputs)
        return Reported(metrics, [note] if note else [])


def make_scorer(
    spec: RunSpec, task: Task, splits: Splits, tokenizer: PreTrainedTokenizerBase, config: Any, tick: Tick
) -> Scorer:
    """The scorer of a run, its splits tokenized.

    Args:
        config: the model's, which may know fewer positions than `max_length`.
        tick: told while long splits are scored.

    Raises:
        ValueError: nothing of the data can be learnt within `max_length`.
    """
    training = spec.training
    sizes = training.train_examples, training.eval_examples, training.search_examples
    key = (spec.model, spec.revision, spec.protocol, spec.data.search_fraction, *sizes)
    length = longest_input(training.max_length, tokenizer, config)
    if task.kind == "generation":
        from craft.answers import AnswerScorer

        return AnswerScorer(spec, task, splits, tokenizer, config, length, key, tick)
    data = encode(splits, task, tokenizer, length, key=key)
    return HeadScorer(task, data, Collator(int(tokenizer.pad_token_id)), training.eval_batch_size)

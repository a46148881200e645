"""`Scorer`: one run's data, ready for its model, and what it computes with them; and the losses of all kinds of tasks.

`HeadScorer` where a task head answers with classes or values, `WordScorer` (`craft.scoring.words`) where the model answers in
words.

The model is scored as it trained, through its adapter's own forward pass, because merging into 16-bit weights would lose part
of a small update. Examples are batched by length, which saves most of the padding; outputs come back in the split's order. No
random number is drawn, so the number of evaluations does not change the training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from craft.processes import Group
from craft.results import PREDICTIONS_FOLDER
from craft.scoring.encoding import (
    Collator,
    Encoded,
    EncodedSplits,
    describe_reading,
    encode,
    longest_input,
    refuse_words_without_rows,
    token_key,
)
from craft.scoring.passes import compute_by_length, eval_mode
from craft.scoring.predictions import (
    CREDITS,
    PREDICTIONS_FILE,
    SEARCH_CREDITS,
    Keep,
    Reported,
    count_examples,
    credits_of,
    predictions_of,
    split_name,
    write_predictions,
)
from craft.scoring.words import WordScorer
from craft.spec import RunSpec
from craft.tasks.metrics import METRICS, compute_metrics, compute_reported, decide, is_constant, sides_of
from craft.tasks.splits import Splits, load_splits
from craft.tasks.task import Kind, Task


def predict(
    model: nn.Module, split: Encoded, collator: Collator, batch_size: int, name: str = "", group: Group | None = None
) -> np.ndarray:
    """Computes the outputs of the task head for every example, float32 (n, outputs), in the split's order."""
    device = next(model.parameters()).device

    def compute(rows: list[int]) -> np.ndarray:
        batch = collator([split[row] for row in rows])
        del batch["labels"]
        outputs: np.ndarray = model(**{name: each.to(device) for name, each in batch.items()}).logits.float().cpu().numpy()
        return outputs

    with eval_mode(model):
        batches = compute_by_length(split.lengths, batch_size, compute, name, group)
    restored = np.empty((len(split), batches[0][1].shape[1]), dtype=np.float32)
    for rows, outputs in batches:
        restored[rows] = outputs
    return restored


# Sums over examples, of a task head; `craft.scoring.passes.token_loss` is that of a language model. The caller divides by the
# number in one optimizer step, so that the step does not depend on how it is cut into micro-batches.
LOSSES: dict[Kind, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "classification": lambda outputs, labels: functional.cross_entropy(outputs.float(), labels, reduction="sum"),
    "regression": lambda outputs, labels: functional.mse_loss(outputs.float().squeeze(-1), labels.float(), reduction="sum"),
}


def collapse_note(task: Task, outputs: Mapping[str, np.ndarray]) -> str | None:
    """Notes that a model gives the same answer to every example."""
    decided = decide(np.concatenate([*outputs.values()]), task.kind)
    if len(decided) < 2 or not is_constant(decided):
        return None
    if task.kind == "regression":
        return f"collapsed to one value: every prediction is {decided[0]:.3g}"
    return f"collapsed to one class: every prediction is {task.labels[decided[0]]!r}"


SHUFFLES = 20


def score_blindly(task: Task, data: EncodedSplits) -> float:
    """Returns the best score of answers that no input decides: the training split's most frequent class; under a metric that is
    no share of right answers and no correlation also each class, and the labels in random order (a mean over shuffles)."""
    classes, counts = np.unique(data.train.labels, return_counts=True)
    metric, random = METRICS[task.primary], np.random.default_rng(0)
    plain = metric.percent or metric.signed

    def score(answer: Callable[[np.ndarray], np.ndarray]) -> float:
        splits = data.reported.items()
        return compute_reported(task, {suffix: (answer(split.labels), split.labels) for suffix, split in splits})["score"]

    constant = [int(classes[counts.argmax()])] if plain else range(len(task.labels))
    scores = [score(partial(np.full_like, fill_value=number)) for number in constant]
    return max(scores if plain else [*scores, float(np.mean([score(random.permutation) for _ in range(SHUFFLES)]))])


class HeadScorer:
    """The scores of tasks that a head answers.

    Outputs go to `predictions.safetensors`, the answers in them to `predictions/` (`craft.scoring.predictions`).
    """

    def __init__(self, spec: RunSpec, task: Task, splits: Splits, tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> None:
        length = longest_input(spec.training.max_length, tokenizer, model)
        self._data = data = encode(splits, task, tokenizer, length, key=token_key(spec))
        self._task, self._rows, self._batch_size = task, splits.reported, spec.training.eval_batch_size
        self._collator = Collator(int(tokenizer.pad_token_id))
        self.train = data.train
        reported = {split_name(suffix): len(split) for suffix, split in data.reported.items()}
        self.examples, self.passes = count_examples(len(data.train), len(data.search), reported)
        lost = {"training": data.train} | {split_name(suffix): split for suffix, split in data.reported.items()}
        shares = [
            f"{100 * split.lost / len(split):.0f} % of the {name} split"
            for name, split in lost.items()
            if 100 * split.lost >= len(split)
        ]
        cut = f"inputs cut to max_length: {', '.join(shares)}; a larger training.max_length reads them whole"
        self.notes = [cut] if shares else []
        if task.suite == "custom":
            self.notes += describe_reading(splits, data, tokenizer)
        self.facts: dict[str, Any] = {}
        if task.kind == "classification":
            self.facts["random_guessing"] = score_blindly(task, data)
        self.searched: dict[str, str] = {}

    def search(self, model: nn.Module) -> dict[str, float]:
        outputs = self._predict(model, self._data.search, "search")
        labels = self._data.search.labels
        loss = LOSSES[self._task.kind](torch.from_numpy(outputs), torch.from_numpy(labels))
        values = compute_metrics(self._task, outputs, labels) | {"loss": float(loss / len(labels))}
        self.searched = self._credits(outputs, labels, SEARCH_CREDITS)
        return {f"search_{name}": value for name, value in values.items()}

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        splits = self._data.reported
        outputs = {suffix: self._predict(model, split, split_name(suffix)) for suffix, split in splits.items()}
        metrics = compute_reported(self._task, {name: (outputs[name], split.labels) for name, split in splits.items()})
        tensors = {f"outputs{suffix}": torch.from_numpy(values) for suffix, values in outputs.items()}
        labels = {f"labels{suffix}": torch.from_numpy(split.labels) for suffix, split in splits.items()}
        save_file(tensors | labels, directory / PREDICTIONS_FILE)
        for suffix, values in outputs.items():
            lines = predictions_of(self._task, self._rows[suffix], values)
            write_predictions(directory / PREDICTIONS_FOLDER / f"{split_name(suffix)}.jsonl.gz", lines)
        note = collapse_note(self._task, outputs)
        right = np.concatenate([split.labels for split in splits.values()])
        return Reported(metrics, [note] if note else [], self._credits(np.concatenate([*outputs.values()]), right, CREDITS))

    def _credits(self, outputs: np.ndarray, labels: np.ndarray, name: str) -> dict[str, str]:
        answers, right = sides_of(self._task, self._task.primary, decide(outputs, self._task.kind), labels)
        compute = METRICS[self._task.primary].compute
        return credits_of(lambda rows: 100 * compute(answers[rows], right[rows]), len(right), name)

    def _predict(self, model: nn.Module, split: Encoded, name: str) -> np.ndarray:
        return predict(model, split, self._collator, self._batch_size, name)


Scorer = HeadScorer | WordScorer
"""`examples` and `facts` go into the run's facts, `notes` into its notes. `passes` holds the number of examples of each split,
by the name that watchers get: `search`, and the reported ones. `search` raises ValueError if an output is not finite;
`searched` has its fact SEARCH_CREDITS. `reported` writes the outputs behind the scores into a folder, or reads those there."""


def splits_of(spec: RunSpec, task: Task) -> Splits:
    """Loads the rows that a run trains and is scored on, as many as its settings ask for."""
    training = spec.training
    return load_splits(
        task,
        spec.data,
        protocol=spec.protocol,
        train_examples=training.train_examples,
        eval_examples=training.eval_examples,
        search_examples=training.search_examples,
    )


def make_scorer(spec: RunSpec, task: Task, splits: Splits, tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> Scorer:
    """Makes the scorer of a run and tokenizes its splits. `model` is the base, whose positions bound a text."""
    refuse_words_without_rows(splits, tokenizer, model)
    if task.kind == "generation":
        return WordScorer(spec, task, splits, tokenizer, model)
    return HeadScorer(spec, task, splits, tokenizer, model)

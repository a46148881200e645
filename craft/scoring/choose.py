"""Chooses a run's rows and its scorer, which holds the training data, and computes the search and the reported scores.

`splits_of` reads the rows. `make_scorer` gives the scorer that fits the kind of task: `HeadScorer` where a task head answers
(classes, values), `WordScorer` where the model answers in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from craft.models.loading import load_tokenizer
from craft.scoring.encoding import encode_split, encode_texts
from craft.scoring.head_scorer import HeadScorer
from craft.scoring.predictions import Scorer
from craft.scoring.words import WordScorer
from craft.tasks import custom
from craft.tasks.splits import Splits, load_splits

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerBase

    from craft.data_settings import GenerationSettings
    from craft.spec import RunSpec
    from craft.tasks.task import Task

LONGEST = 2**16
"""Tokens of a text that are counted, at most."""


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


def check_texts(spec: RunSpec) -> None:
    """Checks the run's own data by `craft.tasks.custom.check_texts`."""
    custom_task = spec.data.custom.get(spec.task.removeprefix("custom/"))
    if custom_task is not None and spec.task.startswith("custom/"):
        custom.check_texts(custom_task, load_tokenizer(spec.model, revision=spec.revision), spec.data.generation)


def token_lengths(task: Task, rows: Any, tokenizer: PreTrainedTokenizerBase, settings: GenerationSettings) -> np.ndarray:
    """Counts the tokens that a model would read of each of some training rows if no more than `LONGEST` were cut, (n,)."""
    if task.kind != "generation":
        return encode_split(rows, task.kind, tokenizer, LONGEST).lengths
    assert task.form is not None
    key, form = (tokenizer.name_or_path, rows._fingerprint), task.form(tokenizer, settings)
    return encode_texts(rows, tokenizer, settings, LONGEST, key=key, form=form).lengths


def make_scorer(spec: RunSpec, task: Task, splits: Splits, tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> Scorer:
    """Makes the scorer of a run and tokenizes its splits."""
    scorer = WordScorer if task.kind == "generation" else HeadScorer
    return scorer(spec, task, splits, tokenizer, model)

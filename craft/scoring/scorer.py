"""`Scorer`: one run's data, ready for its model, and what it computes with them.

`HeadScorer` where a task head answers (classes, values), `WordScorer` where the model answers in words.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from craft.scoring.head_scorer import HeadScorer
from craft.scoring.predictions import Keep, Reported
from craft.scoring.words import WordScorer
from craft.tasks.splits import Splits, load_splits

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from craft.scoring.encoding import Encoded
    from craft.spec import RunSpec
    from craft.tasks.task import Task


class Scorer(Protocol):
    """`examples` and `facts` go into the run's facts, `notes` into its notes.

    `passes` holds the number of examples of each split, by the name that watchers get: `search`, and the reported ones.
    `searched` has the fact SEARCH_CREDITS of the last call of `search`.
    """

    train: Encoded
    examples: dict[str, int]
    passes: dict[str, int]
    notes: list[str]
    facts: dict[str, Any]
    searched: dict[str, str]

    def search(self, model: nn.Module) -> dict[str, float]:
        """Computes `search_score` and the other metrics of the search split. Raises ValueError if an output is not finite."""
        ...

    def reported(self, model: nn.Module, directory: Path, keep: Keep) -> Reported:
        """Scores the reported splits, and writes the outputs behind the scores into `directory`, or reads those there."""
        ...


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
    scorer = WordScorer if task.kind == "generation" else HeadScorer
    return scorer(spec, task, splits, tokenizer, model)

"""Chooses the scorer of a run: it holds the training data, and computes the search scores and the reported scores.

`make_scorer` gives the one that fits the kind of task: `HeadScorer` where a task head answers (classes, values),
`craft.scoring.answers.AnswerScorer` where the model answers in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from craft.scoring.encoding import Collator, encode, longest_input
from craft.scoring.head_scorer import HeadScorer
from craft.scoring.scorer import Scorer
from craft.scoring.sharing import Sharing
from craft.scoring.texts import Tick

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from craft.spec import RunSpec
    from craft.tasks.splits import Splits
    from craft.tasks.task import Task


def make_scorer(
    spec: RunSpec,
    task: Task,
    splits: Splits,
    tokenizer: PreTrainedTokenizerBase,
    config: Any,
    tick: Tick,
    team: Sharing | None = None,
) -> Scorer:
    """The scorer of a run, its splits tokenized.

    Args:
        config: the model's configuration, which may allow fewer positions than `max_length`.
        tick: called while long splits are scored.
        team: the processes that train the run; they answer in words together.

    Raises:
        ValueError: no text has any of its response within `max_length`.
    """
    training = spec.training
    sizes = training.train_examples, training.eval_examples, training.search_examples
    key = (spec.model, spec.revision, spec.protocol, spec.data.search_fraction, *sizes)
    length = longest_input(training.max_length, tokenizer, config)
    if task.kind == "generation":
        from craft.scoring.answers import AnswerScorer

        return AnswerScorer(spec, task, splits, tokenizer, config, length, key, tick, team)
    data = encode(splits, task, tokenizer, length, key=key)
    return HeadScorer(task, data, Collator(int(tokenizer.pad_token_id)), training.eval_batch_size)

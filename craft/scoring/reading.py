"""How a tokenizer reads a task's rows: words that it does not know, texts that it does not tell apart, rows that train too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from craft.tasks.splits import Splits, cut
from craft.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from craft.scoring.encoding import Encoded, EncodedSplits

_SAMPLE, _MOST_ROWS = 1000, 50_000
_TOLD = 0.01
"""From this share on, unknown tokens and texts that are read as one are named."""


def describe_unknown(tokens: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Says which share of tokens the tokenizer does not know, if that is one in a hundred or more."""
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    if tokenizer.unk_token_id is None or tokenizer.unk_token_id in special:
        return
    ordinary = tokens[~np.isin(tokens, [*special])]
    share = float(np.mean(ordinary == tokenizer.unk_token_id)) if len(ordinary) else 0.0
    if share >= _TOLD:
        yield f"{100 * share:.0f} % of the tokens are unknown to this tokenizer: take a model of these texts' language"


def describe_reading(splits: Splits, data: EncodedSplits, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Says what the tokenizer loses of the rows. Rows of two splits that it makes equal are named, if not in `Splits.notes`."""
    yield from describe_unknown(data.train.columns["input_ids"], tokenizer)
    names = [name for name in ("text", "text_pair") if name in splits.train.column_names]
    texts = {*zip(*(splits.train[name][:] for name in names), strict=True)}
    rows = _rows(data.train)
    taught = {*rows}
    if len(texts) - len(taught) >= max(1, _TOLD * len(texts)):
        yield f"{len(texts):,} different training texts are read as {len(taught):,}"
    scored = [row for split in data.reported.values() for row in _rows(split)]
    count = sum(row in taught for row in scored)
    if count > splits.seen["reported"]:
        yield (
            f"{count:,} of {len(scored):,} reported rows are training rows too, as the model reads them (equal tokens): their "
            "score may be learnt by heart"
        )


def _rows(split: Encoded) -> Sequence[bytes]:
    tokens = split.columns["input_ids"]
    return [tokens[begin:end].tobytes() for begin, end in zip(split.offsets[:-1], split.offsets[1:], strict=True)]


def doubt_reading(task: Task, splits: Splits, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[str]:
    """Describes how the tokenizer reads the rows before there is a run: all of a file of some size, a sample of the training
    rows of a larger one, for unknown tokens alone."""
    from craft.scoring.encoding import encode

    if task.kind == "generation":
        ids = tokenizer([str(cell) for cell in cut(splits.train, _SAMPLE)["response"]], add_special_tokens=False)["input_ids"]
        return [*describe_unknown(np.concatenate([np.asarray(row, dtype=np.int64) for row in ids]), tokenizer)]
    if len(splits.train) > _MOST_ROWS:
        splits = replace(splits, train=cut(splits.train, _SAMPLE), reported={}, search=cut(splits.search, 1))
    key = "doubts", tokenizer.name_or_path, len(splits.train), len(splits.reported)
    return [*describe_reading(splits, encode(splits, task, tokenizer, max_length, key=key), tokenizer)]

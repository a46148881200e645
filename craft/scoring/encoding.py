"""Text to tokens: each process tokenizes a split once, keeps it as flat arrays and pads it batch by batch.

A sweep trains hundreds of times on the same few splits, so `encode` and `encode_texts` remember them. Tokens are end to end in
one int32 array, which takes a tenth of the memory of Python lists and costs nothing to share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from craft.models.files import model_digest
from craft.settings import GenerationSettings
from craft.spec import RunSpec
from craft.tasks.prompts import IGNORED, Form, shorten
from craft.tasks.prompts import encode as encode_taught
from craft.tasks.splits import Splits, remembered
from craft.tasks.task import Kind, Task

Example = dict[str, Any]
_PIECE = 2048


@dataclass(frozen=True)
class Encoded(Dataset[Example]):
    """Tokens of n examples: `columns` maps a model input's name to a flat int32 array, cut by `offsets` (n + 1,).

    `labels` (n,) are class numbers (int64) or values (float32) for a task head. Examples without them are texts, and the loss
    sees a text's tokens from its entry of `starts` (n,) on. `lost` counts inputs whose end is beyond the limit, and texts that
    were left out because nothing of their response is within it.
    """

    columns: dict[str, np.ndarray]
    offsets: np.ndarray
    labels: Any = None
    starts: Any = None
    lost: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Example:
        begin, end = self.offsets[index], self.offsets[index + 1]
        example: Example = {name: flat[begin:end] for name, flat in self.columns.items()}
        if self.labels is not None:
            return example | {"labels": self.labels[index]}
        labels = example["input_ids"].astype(np.int64)
        labels[: self.starts[index]] = IGNORED
        return example | {"labels": labels}

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, (n,)."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class EncodedSplits:
    """The splits of `craft.tasks.splits.Splits`, tokenized."""

    train: Encoded
    search: Encoded
    reported: dict[str, Encoded]


def places_in_loss(labels: torch.Tensor) -> torch.Tensor:
    """Returns the positions whose next token is in the loss, (b, k), in order; `labels` are (b, tokens), on the CPU.

    A text with fewer than k has others of its own, whose targets the loss leaves out, so no position comes twice.
    """
    taught = labels[:, 1:] != IGNORED
    most = max(1, int(taught.sum(dim=1).max()))
    return (~taught).int().argsort(dim=1, stable=True)[:, :most].sort(dim=1).values


@dataclass(frozen=True)
class Collator:
    """Examples to a batch of tensors (b, longest), padded on the right; `attention_mask` tells tokens from padding.

    Labels are (b,), or (b, longest) where every token has one, padded with a value that the loss ignores. Two options spare a
    training step questions to its device: with `chooses`, `places` (b, k) are the positions that the loss sees
    (`craft.scoring.passes`); with `omits_masks` a batch without padding has no `attention_mask`.
    """

    pad_token_id: int
    chooses: bool = False
    omits_masks: bool = False

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        lengths = [len(example["input_ids"]) for example in examples]
        shape = (len(examples), max(lengths))
        batch: dict[str, torch.Tensor] = {}
        for name in examples[0]:
            if name == "labels" and np.ndim(examples[0][name]) == 0:
                batch[name] = torch.from_numpy(np.stack([example[name] for example in examples]))
                continue
            padding = {"input_ids": self.pad_token_id, "labels": IGNORED}.get(name, 0)
            padded = np.full(shape, padding, dtype=np.int64)
            for row, example in enumerate(examples):
                padded[row, : lengths[row]] = example[name]
            batch[name] = torch.from_numpy(padded)
        if self.chooses:
            batch["places"] = places_in_loss(batch["labels"])
        if not self.omits_masks or min(lengths) < max(lengths):
            batch["attention_mask"] = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
        return batch


def token_key(spec: RunSpec) -> tuple[object, ...]:
    """Returns everything but tokenizer, data's fingerprint and length that decides the tokens of a run's splits."""
    training = spec.training
    cuts = training.train_examples, training.eval_examples, training.search_examples
    return spec.model, model_digest(spec.model, spec.revision), spec.revision, spec.protocol, spec.data.model_dump_json(), *cuts


def longest_input(max_length: int, tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> int:
    return min(max_length, positions(tokenizer, model))


def positions(tokenizer: PreTrainedTokenizerBase, model: nn.Module) -> int:
    """Returns the most tokens that an input may have, by the tokenizer and the model; 10^9 where neither has a limit."""
    config: Any = model.config
    stated = getattr(config.get_text_config(), "max_position_embeddings", None) or 0
    # RoBERTa and its relatives count places from the one after the padding token's, which has a row of the table too.
    tables = [
        len(module.weight) - module.padding_idx - 1
        for name, module in model.named_modules()
        if "position" in name.rpartition(".")[2] and isinstance(getattr(module, "padding_idx", None), int)
    ]
    return int(min([tokenizer.model_max_length, 10**9, *tables, *([stated] if stated > 0 else [])]))


def refuse_no_room(max_length: int, tokenizer: PreTrainedTokenizerBase, pairs: bool) -> None:
    """Raises ValueError if no token of a text, or of one text of a pair, is left next to the tokenizer's own tokens."""
    least = tokenizer.num_special_tokens_to_add(pair=pairs) + 1 + pairs
    if max_length < least:
        raise ValueError(
            f"max_length {max_length} leaves no room for {'two texts' if pairs else 'a text'} next to the special tokens of "
            f"{tokenizer.name_or_path}: it must be {least} at least, and as long as most texts to be of use"
        )


def refuse_words_without_rows(splits: Splits, tokenizer: PreTrainedTokenizerBase, model: Any) -> None:
    """Raises ValueError if a text holds an added word of the tokenizer, such as an image's, for which the model has no row."""
    rows = model.get_input_embeddings().num_embeddings
    rowless = [word for word, place in tokenizer.get_added_vocab().items() if place >= rows]
    for split in (splits.train, splits.search, *splits.reported.values()) if rowless else ():
        for name in split.column_names:
            for text in map(str, split[name][:]):
                if word := next((word for word in rowless if word in text), None):
                    raise ValueError(
                        f"a {name} holds {word!r}, a word that the tokenizer of {tokenizer.name_or_path} has and the model has "
                        f"no row for: {text[max(0, text.find(word) - 40) :][:80]!r}. Take it out of the data"
                    )


def encode(splits: Splits, task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int, *, key: object) -> EncodedSplits:
    """Tokenizes `splits`, or takes them from this process's memory. `key` is all else that decides the tokens."""

    def make() -> EncodedSplits:
        different = {id(split): split for split in (splits.train, splits.search, *splits.reported.values())}
        tokens = {place: encode_split(split, task.kind, tokenizer, max_length) for place, split in different.items()}
        reported = {suffix: tokens[id(split)] for suffix, split in splits.reported.items()}
        return EncodedSplits(tokens[id(splits.train)], tokens[id(splits.search)], reported)

    return remembered(("tokens", task.name, splits.fingerprint, max_length, tokenizer.name_or_path, key), make)


def encode_split(split: Any, kind: Kind, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Encoded:
    """Tokenizes a split in pieces, so that no more than flat arrays are ever held of all of it."""
    pieces: dict[str, list[np.ndarray]] = {}
    lengths: list[int] = []
    lost = 0
    pairs = "text_pair" in split.column_names
    refuse_no_room(max_length, tokenizer, pairs)
    for rows in _pieces(split):
        texts = [[shorten(text, tokenizer, max_length) for text in rows[name]] for name in ("text", "text_pair")[: 1 + pairs]]
        tokens = tokenizer(*texts, truncation=True, max_length=max_length, return_attention_mask=False)
        lengths += [len(ids) for ids in tokens["input_ids"]]
        full = [row for row, ids in enumerate(tokens["input_ids"]) if len(ids) == max_length]
        if full:
            again = tokenizer(*([column[row] for row in full] for column in texts), verbose=False)
            lost += sum(len(ids) > max_length for ids in again["input_ids"])
        for name, values in tokens.items():
            pieces.setdefault(name, []).append(np.concatenate([np.asarray(ids, dtype=np.int32) for ids in values]))
    labels = np.asarray(split["label"][:], dtype=np.float32 if kind == "regression" else np.int64)
    columns = {name: np.concatenate(parts) for name, parts in pieces.items()}
    return Encoded(columns, np.cumsum([0, *lengths]), labels, lost=lost)


def encode_texts(
    split: Any, tokenizer: PreTrainedTokenizerBase, settings: GenerationSettings, max_length: int, *, key: object, form: Form
) -> Encoded:
    """Encodes the training texts of a split, or takes them from memory. `key` is all else that decides the tokens."""

    def make() -> Encoded:
        arrays, starts = list[np.ndarray](), list[int]()
        for rows in _pieces(split):
            contexts, responses, _ = form.texts(rows)
            texts = encode_taught(
                tokenizer, contexts, responses, max_length=max_length, loss=settings.loss, special=not form.templated
            )
            for text in texts:
                if text.start < len(text.tokens):  # a batch without a token in the loss would have a loss of NaN
                    arrays.append(np.asarray(text.tokens, dtype=np.int32))
                    starts.append(text.start)
        if not starts:
            raise ValueError(
                f"none of {len(split)} texts has any of its response within max_length {max_length}: there is nothing to "
                "learn. Give a larger max_length"
            )
        offsets, lost = np.cumsum([0, *map(len, arrays)]), len(split) - len(starts)
        return Encoded({"input_ids": np.concatenate(arrays)}, offsets, starts=np.asarray(starts, dtype=np.int64), lost=lost)

    return remembered(("texts", form.name, settings.loss, settings.date, max_length, tokenizer.name_or_path, key), make)


def _pieces(split: Any) -> Iterator[Any]:
    return (split[begin : begin + _PIECE] for begin in range(0, len(split), _PIECE))


_TOLD = 0.01
"""From this share on, unknown tokens and texts that are read as one are named."""


def describe_unknown(tokens: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Says which share of tokens the tokenizer does not know, if that is one in a hundred or more."""
    unknown, added = tokenizer.unk_token_id, (tokenizer.bos_token_id, tokenizer.eos_token_id)
    if unknown is None or unknown in added:  # OPT has one token for all three, and begins each text with it
        return
    ordinary = tokens[~np.isin(tokens, [*({*tokenizer.all_special_ids} - {unknown})])]
    share = float(np.mean(ordinary == unknown)) if len(ordinary) else 0.0
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

"""Answers of a language model: beam search in batches, and log-likelihoods of given responses.

    prompts ──sorted by length, padded on the left──> batches ──generate──> new tokens, back in the prompts' order

The attention mask tells padding from tokens, so that an answer does not depend on the rest of its batch: in float32 a batch
gives the same tokens as one prompt at a time. (The published LLM-Adapters code passes no mask.) A prompt is cut only if it is
longer than the model's positions: from the left, keeping its first special token.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache, GenerationConfig, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from craft.models.compute import base_of
from craft.processes import current
from craft.scoring.passes import can_choose, compute_by_length, eval_mode
from craft.settings import GenerationSettings
from craft.tasks.prompts import TaughtText


def encode_prompts(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], special: bool = True) -> list[list[int]]:
    """Tokenizes prompts, without an end-of-text token that a tokenizer may add."""
    end, tokens = tokenizer.eos_token_id, tokenizer(list(prompts), add_special_tokens=special)["input_ids"]
    return [ids[:-1] if special and ids and ids[-1] == end else list(ids) for ids in tokens]


def cut_left(tokens: list[int], room: int, first: int | None) -> list[int]:
    """Returns the last `room` tokens; the first token of the text stays if it is `first` (the token that begins a text)."""
    if len(tokens) <= room:
        return tokens
    return [tokens[0], *tokens[len(tokens) - room + 1 :]] if tokens[0] == first else tokens[-room:]


def generate(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[int]],
    settings: GenerationSettings,
    batch_size: int,
    name: str = "",
) -> list[list[int]]:
    """Writes tokens after each prompt, by beam search without sampling; returns them without the end of text."""
    base: Any = model
    own = base.generation_config.eos_token_id
    # Training ends a text by the tokenizer's token, which may be another one.
    stops = {*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id} - {None}
    # Every field that decides the search is given, so that a model's own generation settings (LLaMA2's sample) have no effect.
    config = GenerationConfig(
        do_sample=False,
        num_beams=settings.beams,
        num_return_sequences=1,
        max_new_tokens=settings.max_new_tokens,
        min_length=0,
        length_penalty=1.0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        early_stopping=False,
        use_cache=True,
        eos_token_id=sorted(stops),
        pad_token_id=tokenizer.pad_token_id,
    )
    outputs: list[list[int]] = [[] for _ in prompts]
    device = next(model.parameters()).device
    together = current().way == "shard"  # then every process makes as many steps as the one with the longest text

    def write(rows: list[int]) -> list[list[int]]:
        ids, mask = _left_padded([prompts[row] for row in rows], int(tokenizer.pad_token_id))
        inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
        out = base.generate(**inputs, generation_config=config, synced_gpus=together)
        texts: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return texts

    with eval_mode(model):
        batches = compute_by_length([len(prompt) for prompt in prompts], batch_size, write, name)
    for row, tokens in ((row, tokens) for rows, texts in batches for row, tokens in zip(rows, texts, strict=True)):
        end = next((at for at, token in enumerate(tokens) if token in stops), len(tokens))
        outputs[row] = tokens[:end]
    return outputs


def log_likelihoods(
    model: nn.Module,
    texts: Sequence[TaughtText],
    pad_token_id: int,
    batch_size: int,
    name: str = "",
) -> np.ndarray:
    """Computes log p(tokens from `start` on | those before) of each text, float64 (n,).

    A prompt that several texts begin with is read once, and its keys and values serve them all.
    """
    sums, device, chooses = np.zeros(len(texts)), next(model.parameters()).device, can_choose(model)

    def log_p(ids: torch.Tensor, mask: torch.Tensor, keep: torch.Tensor | int, **more: Any) -> tuple[torch.Tensor, Any]:
        places = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": places, "logits_to_keep": keep}
        on_device = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}
        out = model(**on_device, **more)
        return out.logits.float().log_softmax(dim=-1).cpu(), getattr(out, "past_key_values", None)

    def add(rows: list[int]) -> list[float]:
        ids, mask = _left_padded([texts[row].tokens for row in rows], pad_token_id)
        answers = [len(texts[row].tokens) - texts[row].start for row in rows]
        # Responses end where the batch ends, so only the last few positions need logits over the whole vocabulary.
        width = max(answers) + 1
        last = torch.arange(ids.shape[1] - width, ids.shape[1]).expand(len(rows), width)
        # A GPU would read the output matrix once for each text, if it were given their number.
        every, _ = log_p(ids, mask, last if chooses else width)
        chosen = every[:, -width:-1].gather(2, ids[:, ids.shape[1] - width + 1 :, None]).squeeze(2).double()
        return [float(chosen[at, chosen.shape[1] - length :].sum()) for at, length in enumerate(answers)]

    prompts = defaultdict[tuple[int, ...], list[int]](list)
    for row, text in enumerate(texts):
        prompts[tuple(text.tokens[: text.start])].append(row)
    groups = [*prompts.items()]

    def add_shared(numbers: list[int]) -> list[float]:
        answers = [texts[row].tokens[texts[row].start :] for number in numbers for row in groups[number][1]]
        owners = torch.tensor([at for at, number in enumerate(numbers) for _ in groups[number][1]])
        ids, mask = _left_padded([[*groups[number][0]] for number in numbers], pad_token_id)
        first, past = log_p(ids, mask, 1, use_cache=True)
        values = []
        for begin in range(0, len(answers), batch_size):
            part, owner = answers[begin : begin + batch_size], owners[begin : begin + batch_size]
            every, further = first[owner], max(map(len, part)) - 1
            if further > 0:
                inputs = torch.tensor([[*answer, *[pad_token_id] * further][:further] for answer in part])
                read = past if begin + batch_size >= len(answers) else copy.deepcopy(past)
                read.batch_select_indices(owner.to(device))
                rest, _ = log_p(inputs, torch.cat([mask[owner], torch.ones_like(inputs)], dim=1), 0, past_key_values=read)
                every = torch.cat([every, rest], dim=1)
            values += [float(every[at, range(len(answer)), answer].double().sum()) for at, answer in enumerate(part)]
        return values

    with eval_mode(model):
        if len(groups) < len(texts) and chooses and _shares_prompts(model):
            batches = compute_by_length([len(prompt) for prompt, _ in groups], batch_size, add_shared, name)
            batches = [([row for number in numbers for row in groups[number][1]], values) for numbers, values in batches]
        else:
            batches = compute_by_length([len(text.tokens) for text in texts], batch_size, add, name)
    for rows, values in batches:
        sums[rows] = values
    return sums


def _shares_prompts(model: nn.Module) -> bool:
    """Returns whether texts can continue from the keys and values of a prompt: each layer keeps them, and nothing else."""
    if any(getattr(config, "alora_invocation_tokens", None) for config in getattr(model, "peft_config", {}).values()):
        return False  # such an adapter looks for these tokens in each input
    if current().way == "shard":
        return False  # each process would read its own number of parts, and they read a base in parts together
    base = base_of(model)
    takes = "past_key_values" in inspect.signature(base.forward).parameters
    return takes and all(isinstance(layer, DynamicLayer) for layer in DynamicCache(config=base.config).layers)


def _left_padded(rows: Sequence[list[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([[pad_token_id] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask

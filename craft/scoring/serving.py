"""How fast a trained model reads, beside its base: tokens a second through the forward pass, with the adapter merged and not.

    a round     base | adapter beside the weights | adapter merged into them       each reads the same batch; rounds repeat
    speed       median over the rounds of (the base's work / the variant's work)   1: as fast as the base
    work        seconds of a GPU; on a CPU the process's seconds of processor, in which others do not count

The three are the same modules in the same process, read in turns, so that what else the machine does falls on all of them. With
fifteen other processes a core, ratios of plain seconds are off by up to 40 %, those of processor seconds by 5 %.
The batch holds `ROWS` texts of `LENGTH` random tokens without padding. A language model reads it as a prompt: it computes
logits at the last position if it can choose positions, and writes nothing. Values of weights and tokens do not matter to speed.

A method that trains the model's own weights has no adapter to serve: it is its base with other numbers, and its speed is 1.
"""

from __future__ import annotations

import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from craft.scoring.texts import Tick

ROWS, LENGTH = 8, 128
ROUNDS, MOST_ROUNDS, SECONDS = 5, 40, 1.0
"""Rounds are repeated until there are `ROUNDS` and `SECONDS` have gone by, at most `MOST_ROUNDS` times."""
SHORTEST = 0.01
"""Seconds a reading takes at least: a quicker one is repeated within the measure, whose clock would be too coarse else."""


@dataclass(frozen=True)
class Served:
    """The metrics of `measure_serving`, and notes on those that could not be measured."""

    metrics: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reading:
    """What it took to read the batch once: `seconds` by the wall clock, and `work` as the module's description has it."""

    seconds: float
    work: float


Variants = dict[str, Callable[[], AbstractContextManager[None]]]


def measure_serving(model: nn.Module, tick: Tick = lambda _what, _done, _total: None) -> Served:
    """`serving_tokens_per_second` and `serving_speed` of a trained model; with `_merged` those of the merged adapter,
    with `_base` the base's.

    The model is left as it was, but for rounding where a change is added to weights and subtracted again.

    Args:
        tick: called after every round.
    """
    batch = _batch(model)
    if not isinstance(model, PeftModel):
        speed = _tokens_a_second(batch, _readings(model, batch, {"": nullcontext}, tick)[""])
        names = ("serving_tokens_per_second", "serving_tokens_per_second_merged", "serving_tokens_per_second_base")
        return Served(dict.fromkeys(names, speed) | {"serving_speed": 1.0, "serving_speed_merged": 1.0})
    if not _wrapped(model):
        return Served(notes=["serving_speed is not measured: the method wraps no layer of the base that could be taken off"])
    variants: Variants = {"_base": partial(bare, model), "": nullcontext}
    why = cannot_merge(model)
    if why is None:
        variants["_merged"] = partial(merged_bare, model)
    readings = _readings(model, batch, variants, tick)
    metrics = {}
    for name, of_rounds in readings.items():
        metrics[f"serving_tokens_per_second{name}"] = _tokens_a_second(batch, of_rounds)
        if name != "_base":
            ratios = [base.work / own.work for base, own in zip(readings["_base"], of_rounds, strict=True)]
            metrics[f"serving_speed{name}"] = statistics.median(ratios)
    return Served(metrics, [] if why is None else [f"serving_speed_merged is not measured: {why}"])


@contextmanager
def bare(model: nn.Module) -> Iterator[None]:
    """Inside the block the layers of the base stand where adapters wrap them, so that the model computes as its base does."""
    taken = _wrapped(model)
    for parent, name, layer in taken:
        parent._modules[name] = layer.get_base_layer()
    try:
        yield
    finally:
        for parent, name, layer in taken:
            parent._modules[name] = layer


@contextmanager
def merged_bare(model: Any) -> Iterator[None]:
    """The same with the adapters' changes merged into the base's weights, and taken out of them at the end."""
    try:
        model.base_model.merge_adapter()
        with bare(model):
            yield
    finally:
        for layer in model.modules():
            if isinstance(layer, BaseTunerLayer) and layer.merged:  # where a merge failed halfway, some are and some are not
                layer.unmerge()


def cannot_merge(model: Any) -> str | None:
    """Why the adapters of a PEFT model cannot be merged into the base's weights, or None. It tries."""
    try:
        with merged_bare(model):
            return None
    except (NotImplementedError, AttributeError, ValueError, TypeError, KeyError) as error:
        return str(error) or type(error).__name__


def _wrapped(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """The layers that an adapter wraps, each with its parent and its name there; of layers inside each other the outer one."""
    found: list[tuple[nn.Module, str, Any]] = []
    inside: tuple[str, ...] = ()
    for path, layer in model.named_modules():
        if path.startswith(inside):
            continue
        if isinstance(layer, BaseTunerLayer) and hasattr(layer, "base_layer"):
            parent, _, name = path.rpartition(".")
            found.append((model.get_submodule(parent), name, layer))
            inside = (*inside, f"{path}.")
    return found


def _batch(model: nn.Module) -> dict[str, Any]:
    """Random tokens as the model's input, no padding, on its device."""
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    config = base.config.get_text_config()
    # Two positions may be kept for padding (RoBERTa).
    length = min(LENGTH, int(getattr(config, "max_position_embeddings", None) or LENGTH + 2) - 2)
    ids = torch.randint(int(config.vocab_size), (ROWS, length), generator=torch.Generator().manual_seed(0))
    device = next(model.parameters()).device
    batch: dict[str, Any] = {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids).to(device)}
    if "logits_to_keep" in inspect.signature(base.forward).parameters:
        batch["logits_to_keep"] = 1
    return batch


def _tokens_a_second(batch: dict[str, Any], readings: Sequence[Reading]) -> float:
    return int(batch["input_ids"].numel()) / statistics.median(one.seconds for one in readings)


def _readings(model: nn.Module, batch: dict[str, Any], variants: Variants, tick: Tick) -> dict[str, list[Reading]]:
    """What it takes each variant to read the batch once, one value a round."""
    readings: dict[str, list[Reading]] = {name: [] for name in variants}
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            repeats = max(1, round(SHORTEST / _warm(model, batch, variants)))
            began, done = time.perf_counter(), 0
            while done < ROUNDS or (done < MOST_ROUNDS and time.perf_counter() - began < SECONDS):
                # Every other round backwards, so that none comes always behind the same other one.
                for name in list(variants)[:: 1 if done % 2 else -1]:
                    with variants[name]():
                        readings[name].append(_reading(model, batch, repeats))
                done += 1
                tick("serving speed", done, MOST_ROUNDS)
    finally:
        model.train(training)
    return readings


def _warm(model: nn.Module, batch: dict[str, Any], variants: Variants) -> float:
    """Reads once with every variant, which makes what is made once; the shortest time of a second reading."""
    shortest = []
    for variant in variants.values():
        with variant():
            _reading(model, batch, 1)
            shortest.append(_reading(model, batch, 1).work)
    return max(min(shortest), 1e-6)


def _reading(model: nn.Module, batch: dict[str, Any], repeats: int) -> Reading:
    _wait(batch)
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        model(**batch)
    _wait(batch)
    seconds, work = time.perf_counter() - began, time.process_time() - worked
    # A clock that stands still would make a ratio of nothing.
    return Reading(seconds / repeats, (seconds if batch["input_ids"].is_cuda or work <= 0 else work) / repeats)


def _wait(batch: dict[str, Any]) -> None:
    if batch["input_ids"].is_cuda:
        torch.cuda.synchronize(batch["input_ids"].device)

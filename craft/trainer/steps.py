"""How many optimizer steps a run makes, after which of them it is scored, and its learning rate in each."""

from __future__ import annotations

import math

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from craft.settings import TrainingSettings


def total_steps(training: TrainingSettings, examples: int) -> int:
    """Optimizer steps of a run on `examples` training examples; `max_steps` overrides the epochs."""
    return training.max_steps or math.ceil(training.epochs * steps_per_epoch(training, examples))


def steps_per_epoch(training: TrainingSettings, examples: int) -> int:
    """Optimizer steps of one pass; the remaining examples at its end make a smaller step."""
    return math.ceil(math.ceil(examples / training.batch_size) / training.gradient_accumulation)


def evaluation_steps(training: TrainingSettings, examples: int) -> list[int]:
    """The steps after which the search split is scored: every `evaluate_every` epochs, and the last."""
    end = total_steps(training, examples)
    if training.evaluate_every == "end":
        return [end]
    interval = training.evaluate_every * steps_per_epoch(training, examples)
    marks = {max(1, round(index * interval)) for index in range(1, math.floor(end / interval) + 1)}
    return sorted({mark for mark in marks if mark < end} | {end})


def make_schedule(training: TrainingSettings, optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
    """The schedule of the settings."""
    warmup = math.ceil(training.warmup_ratio * steps)
    return LambdaLR(optimizer, lambda step: _factor(training.schedule, step, warmup, steps))


def _factor(schedule: str, step: int, warmup: int, steps: int) -> float:
    """Share of the peak learning rate after `step` of `steps`. A warm-up begins above 0, so that the first step trains too."""
    if step < warmup:
        return (step + 1) / warmup
    left = max(0.0, (steps - step) / max(1, steps - warmup))
    return {"linear": left, "cosine": 0.5 * (1.0 + math.cos(math.pi * (1.0 - left))), "constant": 1.0}[schedule]

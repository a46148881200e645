"""How many optimizer steps a run makes, after which of them it is scored, and its learning rate in each.

stages   one      ── warm-up ── decay ──
         several  ── warm-up ── decay ── warm-up ── decay ── ...     nested ranks that shrink: the largest, then the smaller
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, SequentialLR

from craft.methods.nested import SHRINKING_SHARE
from craft.settings import TrainingSettings


def total_steps(training: TrainingSettings, examples: int, stages: int = 1) -> int:
    """Optimizer steps of a run on `examples` training examples; `max_steps` overrides the epochs of its first stage."""
    return stage_ends(training, examples, stages)[-1]


def stage_ends(training: TrainingSettings, examples: int, stages: int = 1) -> list[int]:
    """The step that ends each stage: the first is as long as the settings say, all others together are half as long. The k-th
    of these is k times as long as the first of them, because the smaller a rank, the less a cut leaves of what was learnt."""
    first = training.max_steps or math.ceil(training.epochs * steps_per_epoch(training, examples))
    parts = stages * (stages - 1) / 2
    return list(accumulate([first, *(max(1, round(SHRINKING_SHARE * first * k / parts)) for k in range(1, stages))]))


def steps_per_epoch(training: TrainingSettings, examples: int) -> int:
    """Optimizer steps of one pass; the remaining examples at its end make a smaller step."""
    return math.ceil(math.ceil(examples / training.batch_size) / training.gradient_accumulation)


def evaluation_steps(training: TrainingSettings, examples: int, stages: int = 1) -> list[int]:
    """The steps after which the search split is scored: every `evaluate_every` epochs of the first stage, and the last of
    each stage."""
    ends, interval = stage_ends(training, examples, stages), training.evaluate_every * steps_per_epoch(training, examples)
    marks = {max(1, round(index * interval)) for index in range(1, math.floor(ends[0] / interval) + 1)}
    return sorted({mark for mark in marks if mark < ends[0]} | set(ends))


def make_schedule(training: TrainingSettings, optimizer: torch.optim.Optimizer, ends: list[int]) -> LRScheduler:
    """The schedule of the settings, once for each stage."""

    def one(steps: int) -> LRScheduler:
        warmup = math.ceil(training.warmup_ratio * steps)
        return LambdaLR(optimizer, lambda step: _factor(training.schedule, step, warmup, steps))

    if len(ends) == 1:
        return one(ends[0])
    return SequentialLR(optimizer, [one(end - begin) for begin, end in pairwise([0, *ends])], milestones=ends[:-1])


def _factor(schedule: str, step: int, warmup: int, steps: int) -> float:
    """Share of the peak learning rate after `step` of `steps`. A warm-up begins above 0, so that the first step trains too."""
    if step < warmup:
        return (step + 1) / warmup
    left = max(0.0, (steps - step) / max(1, steps - warmup))
    return {"linear": left, "cosine": 0.5 * (1.0 + math.cos(math.pi * (1.0 - left))), "constant": 1.0}[schedule]

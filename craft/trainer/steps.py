"""What the settings say of the optimizer's steps: how many there are, which examples and which learning rate each has; and the
optimizer: which weights it moves, at which peak rate, with how much weight decay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.trainer_pt_utils import get_parameter_names

from craft.methods.method import BuildContext
from craft.models.compute import adamw
from craft.models.heads import TASK_TYPES, head_names, is_head
from craft.processes import Group, is_part
from craft.settings import TrainingSettings
from craft.spec import RunSpec
from craft.tasks.task import Kind


def total_steps(training: TrainingSettings, examples: int) -> int:
    """Counts the optimizer steps of a run on `examples` training examples; `max_steps` overrides the epochs."""
    if training.max_steps is not None:
        return training.max_steps
    return math.ceil(training.epochs * steps_per_epoch(training, examples))


def steps_per_epoch(training: TrainingSettings, examples: int) -> int:
    """Counts the optimizer steps of one pass; the remaining examples at its end make a smaller step."""
    return math.ceil(math.ceil(examples / training.batch_size) / training.gradient_accumulation)


def evaluation_steps(training: TrainingSettings, examples: int) -> list[int]:
    """Returns the steps after which the search split is scored: every `evaluate_every` epochs, or every step, and the last."""
    end = total_steps(training, examples)
    if training.evaluate_every == "end":
        return [end]
    interval = max(1.0, training.evaluate_every * steps_per_epoch(training, examples))
    marks = {round(index * interval) for index in range(1, math.floor(end / interval) + 1)}
    return sorted({mark for mark in marks if mark < end} | {end})


def epochs_after(training: TrainingSettings, examples: int, step: int) -> float:
    """Returns the passes over the training examples that are done after `step`, to the micro-batch."""
    passes, batches = max(0, step - 1) // steps_per_epoch(training, examples), math.ceil(examples / training.batch_size)
    begun = step - passes * steps_per_epoch(training, examples)
    return passes + min(batches, begun * training.gradient_accumulation) / batches


def rate_factor(training: TrainingSettings, step: int, steps: int) -> float:
    """Returns the share of the peak learning rate after `step` of `steps`. A warm-up begins above 0: the first step trains."""
    warmup = math.ceil(training.warmup_ratio * steps)
    if step < warmup:
        return (step + 1) / warmup
    linear = max(0.0, (steps - step) / max(1, steps - warmup))
    return {"linear": linear, "cosine": 0.5 * (1.0 + math.cos(math.pi * (1.0 - linear))), "constant": 1.0}[training.schedule]


def order_examples(training: TrainingSettings, lengths: np.ndarray, seed: int, epoch: int) -> list[int]:
    """Returns the indices of an epoch in the order in which they train, drawn from seed and epoch."""
    draw = np.random.default_rng([seed, epoch])  # of both: the second epoch of a seed is no other seed's first
    if training.group_by_length:
        return _group_by_length(lengths, training.batch_size * training.gradient_accumulation, draw)
    return [int(row) for row in draw.permutation(len(lengths))]


def cut_share(group: Group, examples: list[int], size: int) -> tuple[list[list[int]], int]:
    """Cuts a process's share of a step's examples into micro-batches of `size`, and says how many of these count.

    All processes have equally many, because each one computes with the others. Those that lack examples repeat one.
    """
    share = group.share(examples)
    batches = [[*share[at : at + size]] for at in range(0, len(share), size)]
    most = math.ceil(math.ceil(len(examples) / group.count) / size)
    return [*batches, *([examples[:1]] * (most - len(batches)))], len(batches)


def _group_by_length(lengths: np.ndarray, size: int, draw: np.random.Generator) -> list[int]:
    """Orders examples so that each step of `size` has examples of about equal length.

    Windows of fifty steps are drawn at random and sorted by length, and their steps shuffled, the longest of all first: a step
    that is too large for memory fails at once.
    """
    order, window = draw.permutation(len(lengths)), 50 * size
    steps = []
    for begin in range(0, len(order), window):
        part = order[begin : begin + window]
        part = part[np.argsort(-lengths[part], kind="stable")]
        steps += [part[at : at + size] for at in range(0, len(part), size)]
    # A smaller last step stays last, so that the others keep their size.
    last = steps.pop() if len(steps[-1]) < size else None
    steps = [steps[at] for at in draw.permutation(len(steps))]
    if steps:
        longest = max(range(len(steps)), key=lambda at: lengths[steps[at]].max())
        steps[0], steps[longest] = steps[longest], steps[0]
    return [int(at) for step in [*steps, *([] if last is None else [last])] for at in step]


_WITHOUT_DECAY = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")


def make_optimizer(spec: RunSpec, model: nn.Module, kind: Kind, steps: int) -> torch.optim.Optimizer:
    """Makes AdamW or the method's own optimizer. The adapter's group comes first: a run reports the first learning rate."""
    method, groups = spec.row, _weight_groups(model, spec.training)
    if method.optimizer is None:
        return adamw(groups)
    context = BuildContext(TASK_TYPES[kind], seed=spec.seed, total_steps=steps)
    return method.optimizer(model, groups, spec.typed_parameters, context)


def read_optimizer(optimizer: torch.optim.Optimizer, group: Group) -> dict[str, Any]:
    """Returns the optimizer's state. Moments in parts are whole in it, in the first process."""
    state = optimizer.state_dict()
    moments = {
        number: {name: group.collect(value) if is_part(value) else value for name, value in of_weight.items()}
        for number, of_weight in state["state"].items()
    }
    return state | {"state": moments}


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any], group: Group) -> None:
    """Gives the optimizer what `read_optimizer` returned in the first process."""
    weights = [weight for each in optimizer.param_groups for weight in each["params"]]
    for number, of_weight in sorted(state["state"].items()):
        weight = weights[number]
        for name, value in of_weight.items() if is_part(weight) else ():
            if value.shape == weight.shape:
                of_weight[name] = torch.zeros_like(weight)
                group.put(of_weight[name], value)
    optimizer.load_state_dict(state)


def find_decaying(model: nn.Module) -> set[str]:
    """Returns the names of weights with weight decay: all but biases and norms, as in transformers' Trainer."""
    return set(get_parameter_names(model, [nn.LayerNorm], _WITHOUT_DECAY))


def _weight_groups(model: nn.Module, training: TrainingSettings) -> list[dict[str, Any]]:
    heads, decaying = head_names(model), find_decaying(model)
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            groups.setdefault((is_head(name, heads), name not in decaying), []).append(weight)
    rates = {False: training.learning_rate, True: training.head_learning_rate or training.learning_rate}
    return [
        {"params": groups[head, fixed], "lr": rates[head], "weight_decay": 0.0 if fixed else training.weight_decay}
        for head, fixed in sorted(groups)
    ]

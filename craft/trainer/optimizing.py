"""The optimizer of a run: which weights it moves, at which peak learning rate, with how much weight decay."""

from __future__ import annotations

from typing import Any

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

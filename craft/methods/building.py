"""Puts a tuner of PEFT on a model by its type alone, on a model without weights too.

Some tuners need numbers (BOFT reads its permutations, FROD and AdaMSS decompose the weights). Their parameters are counted on a
copy whose adapted modules hold random weights.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, cast

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from craft.methods.method import is_meta


def put_on(model: nn.Module, peft_type: str, config: Callable[[], Any]) -> nn.Module:
    """Puts the tuner of a type on the model, with a new configuration in each try."""
    if not is_meta(model):
        return _put(model, config(), peft_type)
    config()
    tries: list[Callable[[], nn.Module]] = [
        lambda: _put(deepcopy(model), config(), peft_type),
        lambda: _put_on_cpu(deepcopy(model), config(), peft_type),
        lambda: _put_on_cpu(_with_numbers(deepcopy(model), config()), config(), peft_type),
    ]
    for attempt in tries:
        try:
            return attempt()
        except RuntimeError as error:  # NotImplementedError, too: a tensor without numbers was asked for one
            last = error
    raise ValueError(f"PEFT cannot put {peft_type} on this model: {last}") from last


def _put(model: nn.Module, config: Any, peft_type: str) -> nn.Module:
    import peft

    put: Any = peft.get_peft_model
    try:
        return cast(nn.Module, put(model, config))
    except (TypeError, KeyError, AttributeError, AssertionError, IndexError, ImportError, ZeroDivisionError) as error:
        raise ValueError(f"PEFT cannot put {peft_type} on this model: {type(error).__name__}: {error}") from error


def _put_on_cpu(model: nn.Module, config: Any, peft_type: str) -> nn.Module:
    """Puts the tuner on, with its own tensors made on the CPU, whatever device a caller has chosen for new tensors."""
    with torch.device("cpu"):
        return _put(model, config, peft_type)


def _with_numbers(model: nn.Module, config: Any) -> nn.Module:
    """Gives the modules that `config` adapts random weights."""
    from peft.tuners.tuners_utils import check_target_module_exists

    targets: Any = getattr(config, "target_modules", None)
    draw = torch.Generator().manual_seed(0)
    for name, module in model.named_modules():
        linear = isinstance(module, nn.Linear | Conv1D)
        if linear and targets and (targets == "all-linear" or check_target_module_exists(config, name)):
            with torch.device("cpu"):
                module.to_empty(device="cpu")
                for weight in module.parameters():
                    nn.init.normal_(weight.data, generator=draw)
    return model

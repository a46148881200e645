"""The base of a model in parts, one for each process of a group (`craft.processes`, way `shard`), by FSDP2.

    adapters over a frozen base      the base is in parts, and what trains stays whole on each process
    full fine-tuning, GaLore         all weights are in parts, and their gradients and moments with them

accelerate's plugin leaves out modules and no single parameters, and tuners that share tensors between layers would break.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel
from torch import nn

from craft.processes import Group

_PAST_HOOKS = ("ADALORA", "ADAPTION_PROMPT")
"""PEFT's types whose tuner calls the base's `forward` and not the base, which leaves out the hooks that gather weights."""


def shard(model: Any, device: torch.device, group: Group) -> None:
    """Puts a model with a method on it into parts on `device`, layer by layer, so that no device ever holds all of it."""
    if group.way == "shard" and group.count > 1:
        put_in_parts(model, device, group.count)


def put_in_parts(model: Any, device: torch.device, count: int) -> None:
    """Puts a model into `count` parts, of which this process holds one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    # PEFT keeps the old head next to the one that trains, and copies it for a second adapter.
    named = [*base.named_parameters()]
    ignored = {weight for name, weight in named if weight.requires_grad or ".original_module." in name}
    if all(weight.requires_grad for _, weight in named):
        ignored.clear()
    mesh = init_device_mesh(device.type, (count,))  # PEFT reads the shapes of parts if the mesh has no name
    # By default the outermost weights stay whole after a forward pass. Scoring would leave them so, and they are read then.
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": True, "ignored_params": ignored}
    for module in [*_layers(base), base]:
        fully_shard(module, **options)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)  # a step's loss is divided by the items of all processes
        module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale in a sum
    if isinstance(model, PeftModel) and str(model.peft_type).removeprefix("PeftType.") in _PAST_HOOKS:
        object.__setattr__(model.base_model, "forward", base.__call__)  # an attribute, not a submodule


def _layers(base: nn.Module) -> list[nn.Module]:
    """Returns the layers of a transformer: the modules in its lists that are in no other list."""
    lists = [name for name, module in base.named_modules() if isinstance(module, nn.ModuleList)]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    return [layer for name in outer for layer in base.get_submodule(name).children()]

"""The frozen weights of a run's base model split over its team, so that a model too large for one GPU is trained by several.

Every block of the model becomes a unit of torch's FSDP2 (`torch.distributed.fsdp.fully_shard`): each member keeps 1/size of
the block's frozen weights, and the whole of a block exists only while it computes. The body of the model is their root. Trained
weights are not split: an adapter is small, so every member holds all of it, and its gradients are summed as in any team
(`craft.trainer.team`). Embeddings and the task head stand outside the blocks and stay whole.

A sharded model computes only if all members call it alike. So all members score, and rank 0 alone reports and saves.
"""

from __future__ import annotations

from collections.abc import Collection

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from craft.trainer.team import Team


def shard_base(model: nn.Module, base: Collection[nn.Parameter], team: Team) -> int:
    """Splits the frozen weights of `base` among the members; each member calls this with the same model.

    Args:
        model: with its method on, on the CPU or where it trains.
        base: the base model's parameters, listed before the method was put on.
        team: the process group's members, all of them.

    Returns:
        How many numbers this member no longer holds.

    Raises:
        ValueError: there is nothing to split: every weight trains, they are quantized, or the model has no blocks that
            transformers knows.
    """
    frozen = {weight for weight in base if not weight.requires_grad}
    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    inside = {weight for block in blocks for weight in block.parameters() if weight in frozen}
    if not blocks:
        raise ValueError(f"resources.fsdp: {type(model).__name__} has no blocks that could be split one by one")
    if not inside:
        raise ValueError("resources.fsdp: no weight of the model's blocks is frozen, so there is nothing to split")
    if any(hasattr(weight, "quant_state") or not weight.is_floating_point() for weight in inside):
        raise ValueError("resources.fsdp: a quantized base is not split; give resources.fsdp: false")
    mesh = team.mesh()
    before = sum(weight.numel() for weight in inside)
    for block in blocks:
        fully_shard(block, mesh=mesh, ignored_params={weight for weight in block.parameters() if weight not in frozen})
    # With a root above them the blocks share their streams, and the next block is gathered while one computes. The body of
    # the model is called in training and in generation alike; what PEFT puts around it is not.
    body = _body(model)
    fully_shard(body, mesh=mesh, ignored_params={weight for weight in body.parameters() if weight not in inside})
    dist.barrier()
    return before - sum(_held(weight) for block in blocks for weight in block.parameters() if not weight.requires_grad)


def _body(model: nn.Module) -> nn.Module:
    """The transformer without its head: the module that calls the blocks one after the other."""
    whole = next(module for module in model.modules() if isinstance(module, PreTrainedModel))
    return whole.base_model


def _held(weight: nn.Parameter) -> int:
    local = getattr(weight, "to_local", None)
    return (weight if local is None else local()).numel()

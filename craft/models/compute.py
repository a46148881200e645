"""Where a run computes, and in which number formats. The task head computes in float32 under every precision.

    precision      base weights    trained weights    products
    float32        float32         float32            float32
    bf16-mixed     float32         float32            bfloat16, by autocast
    bfloat16       bfloat16        float32            bfloat16

Where weights of the base itself train, they are float32 under `bfloat16` too, with products by autocast: a bfloat16 weight does
not change at all by a step of less than a 256th of it. Autocast belongs to the model, so training and scoring compute the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from craft.processes import Group

WEIGHTS = {
    "float32": torch.float32,
    "bf16-mixed": torch.float32,
    "bfloat16": torch.bfloat16,
}
"""Format of the frozen base weights under each precision."""

PRODUCTS = WEIGHTS | {"bf16-mixed": torch.bfloat16}
"""Format of the base's products under each precision."""


CASTS = "cast_input_dtype_enabled"
"""PEFT's switch of a layer: whether it casts its input to the dtype of the adapter's weights."""


def compute_device() -> torch.device:
    """Returns the device that runs of this process compute on: the current CUDA device if torch can use one, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def base_of(model: Any) -> Any:
    """Returns the transformers model that a PEFT model adapts, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def adamw(groups: list[dict[str, Any]]) -> torch.optim.AdamW:
    """Makes AdamW; on a GPU with one kernel for all weights. A CPU's numbers are those of its default form."""
    on_gpu = all(weight.is_cuda for group in groups for weight in group["params"])
    return torch.optim.AdamW(groups, fused=on_gpu or None)


def base_dtype(precision: str, master_weights: bool) -> torch.dtype:
    """Returns the format in which a base is read: float32 where its own weights train, so that none of them begins rounded."""
    return torch.float32 if master_weights and precision == "bfloat16" else WEIGHTS[precision]


def compute_in_bfloat16(model: nn.Module, heads: Iterable[str] = ()) -> None:
    """Makes every forward pass of `model` compute its products in bfloat16, except those of the modules in `heads`."""
    _switch(model, True)
    for name in heads:
        head = model.get_submodule(name)
        _switch(head, False)
        head.register_forward_pre_hook(inputs_in_float32)


def multiply_as_base(model: nn.Module) -> None:
    """Makes the adapters that PEFT puts on a bfloat16 base multiply in bfloat16, as the base does; their weights stay float32.

    PEFT itself casts the input to float32, keeps that copy for the backward pass, and multiplies in float32.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer  # imports this package's tuners, which import this module

    for module in model.modules():
        if isinstance(module, BaseTunerLayer) and type(module).__module__.startswith("peft."):
            setattr(module, CASTS, False)
            _switch(module, True)


def computes_in_bfloat16(model: nn.Module) -> bool:
    """Returns whether `model`, or a model inside it, was given to `compute_in_bfloat16`."""
    return any(vars(module).get("craft_autocast") for module in model.modules())


def compute_as_stored(model: nn.Module) -> None:
    """Takes back `compute_in_bfloat16`: products have the weights' own format."""
    modules: list[Any] = [module for module in model.modules() if "craft_autocast" in vars(module)]
    for module in modules:
        module.craft_autocast = None


def narrow_frozen(model: nn.Module) -> None:
    """Casts the frozen float32 matrices of a model whose other weights train to bfloat16; vectors cost no memory and stay."""
    for weight in model.parameters():
        if not weight.requires_grad and weight.dim() > 1:
            weight.data = weight.data.to(torch.bfloat16)


@contextmanager
def no_autocast(device: torch.device) -> Iterator[None]:
    """Switches autocast off inside the block, so that products of float32 tensors stay float32."""
    with torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext():
        yield


def inputs_in_float32(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Casts inputs to float32; a forward pre-hook."""
    return tuple(value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in inputs)


def _switch(module: Any, on: bool) -> None:
    """Switches autocast on or off while a module computes, by two hooks that can be copied and pickled with it."""
    module.craft_autocast, module.craft_contexts = on, []
    module.register_forward_pre_hook(_enter_autocast, prepend=True)
    # Also after an error, or autocast would stay on for whatever this process computes next.
    module.register_forward_hook(_leave_autocast, always_call=True)


def _enter_autocast(module: Any, _inputs: Any) -> None:
    if module.craft_autocast is not None:
        context = torch.autocast(next(module.parameters()).device.type, torch.bfloat16, enabled=module.craft_autocast)
        context.__enter__()
        module.craft_contexts.append(context)


def _leave_autocast(module: Any, _inputs: Any, _output: Any) -> None:
    if module.craft_contexts:
        module.craft_contexts.pop().__exit__(None, None, None)


def checkpoint_activations(model: Any) -> None:
    """Lets the model keep few activations of a forward pass, and compute the others again in the backward pass."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def shard(model: Any, device: torch.device, group: Group) -> None:
    """Puts a model with a method on it into parts on `device`, layer by layer, so that no device ever holds all of it."""
    if group.way == "shard" and group.count > 1:
        put_in_parts(model, device, group.count)


def put_in_parts(model: Any, device: torch.device, count: int) -> None:
    """Puts a model into `count` parts by FSDP2, of which this process holds one: a frozen base; all of it if all of it trains.

    torch's `fully_shard` is called directly, because accelerate's plugin leaves out modules and no single parameters: it would
    put the adapters of a layer into parts with the layer, and tuners that share tensors between layers would break.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    base = base_of(model)
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


def _layers(base: nn.Module) -> list[nn.Module]:
    """Returns the layers of a transformer: the modules in its lists that are in no other list."""
    lists = [name for name, module in base.named_modules() if isinstance(module, nn.ModuleList)]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    return [layer for name in outer for layer in base.get_submodule(name).children()]

"""Makes stacks from a configuration: which modules' weights belong together, and their factors (paper, Stages 1 and 2).

Weights are read in place, and quantized weights are dequantized. Factors come from the store, so that a projection of a
model is decomposed once for all adapters, trials and processes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from peft import NoMatchingPeftModuleError
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.quantization_utils import resolve_quantization_backend
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from craft.factors.hosvd import stack_factors
from craft.factors.store import hash_weights
from craft.models.projections import Located, Stacks, find_projections, find_targets
from craft.ranks import resolve_ranks
from craft.tuners.craft.config import CraftConfig
from craft.tuners.craft.stack import Stack
from craft.tuners.joint import name_linear_layers


def build_stacks(model: nn.Module, config: CraftConfig) -> list[Stack]:
    """Makes the stacks of one adapter, with factors unless the model is on the meta device."""
    modules = dict(model.named_modules())
    stacks = []
    for name, layers in locate(model, config).items():
        usual: list[int | str] = ["all", *(min(64, size) for size in layers[0].shape)]
        ranks = resolve_ranks(config.ranks or usual, (len(layers), *layers[0].shape), name=f"projection {name!r}")
        weights = [base_weight(modules[layer.module_name], layer) for layer in layers]
        stack = Stack(name, layers, ranks, config, weights[0].device)
        if not any(weight.is_meta for weight in weights):
            stack.weights_hash = hash_weights(weights)
            # An adapter that carries its factors gives them to the stack when PEFT loads its tensors, right after this.
            if not (config.save_factors and config.inference_mode):
                factors = stack_factors(weights, ranks, name=name, weights_hash=stack.weights_hash)
                stack.set_factors(factors.to(stack.device))
        stacks.append(stack)
    return stacks


def locate(model: nn.Module, config: CraftConfig) -> Stacks:
    """Finds the modules that a configuration chooses, as stacks."""
    if config.words:
        stacks = find_projections(model, config.words, config.projection_map)
    else:
        name_linear_layers(config, model)
        if config.target_modules is not None and not isinstance(config.target_modules, str):
            config.target_modules = sorted(config.target_modules)
        stacks = find_targets(model, lambda key: is_chosen(config, key, config.target_modules or ()))
    chosen = {
        name: [layer for layer in layers if is_chosen(config, layer.module_name, [layer.module_name])]
        for name, layers in stacks.items()
    }
    if not any(chosen.values()):
        raise NoMatchingPeftModuleError(
            f"exclude_modules {config.exclude_modules!r} and modules_to_save {config.modules_to_save!r} leave out every module "
            f"that was chosen: {', '.join(layer.module_name for layers in stacks.values() for layer in layers[:1])} ..."
        )
    return {name: layers for name, layers in chosen.items() if layers}


def is_chosen(config: CraftConfig, key: str, targets: Any) -> Any:
    """Asks PEFT whether it adapts the module `key`, with `targets` as the target modules of the configuration."""
    left_out = {"exclude_modules": config.exclude_modules, "modules_to_save": config.modules_to_save}
    return check_target_module_exists(SimpleNamespace(target_modules=targets, **left_out), key)


def base_weight(module: Any, layer: Located) -> Tensor:
    """Returns a layer's (d_out, d_in) weight, dequantized if it is quantized."""
    while hasattr(module, "base_layer"):
        module = module.base_layer
    weight = getattr(module, "weight", None)
    backend = resolve_quantization_backend(module, get_apply_tensor_subclass=lambda: None)
    if backend is not None:
        try:
            weight = backend.get_base_weight(module)
        except (TypeError, NotImplementedError) as error:
            raise ValueError(_unreadable(layer, str(error))) from error
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        raise ValueError(_unreadable(layer, f"its weight is {getattr(weight, 'dtype', 'not there')}"))
    weight = weight.detach()
    matrix = weight.T if isinstance(module, Conv1D) else weight
    return matrix[layer.start : layer.stop]


def _unreadable(layer: Located, reason: str) -> str:
    return (
        f"{layer.module_name} is quantized in a way that cannot be read back as numbers ({reason}), so CRAFT cannot decompose "
        "it. Use a bitsandbytes, HQQ or torchao base, or the model before quantization."
    )

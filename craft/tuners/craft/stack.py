"""`CraftAdapter`: one CRAFT adapter, its trainable J; `Stack`: one projection of all layers, its frozen factors.

    CraftModel.craft_J["default"]: CraftAdapter     parameters q_J1 q_J2 q_J3 v_J1 ...         in the state dict
      .stacks["q"]: Stack                           buffers core u1 u2 u3                      not in the state dict
        .prepare() -> .cores[l]                     M_l of every layer, once a forward pass    read by the layers

Neither is ever narrower than float32: only a model cast to float64 widens them.

`build_stacks` makes stacks from a configuration: which modules' weights belong together, and their factors (paper, Stages 1 and
2). Factors come from the store, so that a projection of a model is decomposed once for all adapters, trials and processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Self

import torch
from peft import NoMatchingPeftModuleError
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.quantization_utils import resolve_quantization_backend
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from craft.factors.hosvd import TuckerFactors, stack_factors
from craft.factors.store import hash_weights
from craft.models.compute import no_autocast
from craft.models.projections import Located, Stacks, find_projections, find_targets
from craft.ranks import Ranks, resolve_ranks
from craft.tuners.craft.config import CraftConfig
from craft.tuners.craft.equation import core_offsets, dropout_masks
from craft.tuners.joint import WideModule, is_current, is_stale, name_linear_layers, runs_again, versions

PARTS = ("core", "u1", "u2", "u3")
SEVERAL_PASSES = (
    "gradient checkpointing runs the layers of an earlier forward pass again, but a later pass has drawn other dropout masks "
    "of CRAFT's J. Call backward() after each forward pass before the next one, or train with dropout 0."
)


class Stack(nn.Module):
    """One projection of all layers.

    `cores` are M of each layer, in the dtype of the layers' products, and `masks` the dropout masks of J1, J2, J3 in them.
    `_open` is the number of passes since the first one whose masks a checkpoint may want again, with the versions of J.
    `squared_norm` is ‖W‖² of the stack; NaN where the factors came without their singular values.
    """

    core: Tensor | None
    u1: Tensor
    u2: Tensor
    u3: Tensor

    def __init__(self, name: str, layers: Sequence[Located], ranks: Ranks, config: CraftConfig, device: torch.device) -> None:
        super().__init__()
        self.name, self.layers, self.ranks = name, list(layers), ranks
        self.scaling, self.dropout = config.scaling, config.dropout
        self.weights_hash: str | None = None
        self.squared_norm = math.nan
        self._placed = device
        for part in PARTS:  # None on the meta device, and until they are loaded from an adapter that carries them
            self.register_buffer(part, None, persistent=False)
        self.drop()

    @property
    def shape(self) -> Ranks:
        return (len(self.layers), *self.layers[0].shape)

    @property
    def device(self) -> torch.device:
        return self._placed if self.core is None else self.core.device

    @property
    def factors(self) -> TuckerFactors | None:
        return None if self.core is None else TuckerFactors(self.core, self.u1, self.u2, self.u3)

    def set_factors(self, factors: TuckerFactors) -> None:
        for part in PARTS:
            setattr(self, part, getattr(factors, part).contiguous())
        self.squared_norm = factors.squared_norm
        self.drop()

    def drop(self) -> None:
        """Drops what is derived from J and factors; the next forward pass computes it again."""
        self.cores: tuple[Tensor, ...] | None = None
        self.masks: tuple[Tensor, ...] | None = None
        self._made_with: list[tuple[Tensor, int]] = []
        self._open: tuple[int, list[int]] = (0, [])
        self._casts: dict[Any, Tensor] = {}

    def ready(self) -> TuckerFactors:
        if (factors := self.factors) is None and self.weights_hash is not None:
            raise ValueError(
                f"CRAFT's factors of projection {self.name!r} are in the adapter's own file (save_factors), which was not "
                "loaded. Put the adapter on the base model by PeftModel.from_pretrained."
            )
        if factors is None:
            raise ValueError(
                f"CRAFT's factors of projection {self.name!r} are not there: the model was built on the meta device, where "
                "only shapes are known. Load the base model with its weights before putting the adapter on it."
            )
        return factors

    def cast(self, part: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns U3ᵀ (`u3t`), s U2ᵀ (`u2s`) or G as (r2, r1, r3) (`turned`) in the dtype of products, cast once."""
        if (part, dtype, device) not in self._casts:
            factors = self.ready()
            with torch.inference_mode(False), torch.no_grad():
                parts = {"u3t": factors.u3.T, "u2s": factors.u2.T * self.scaling, "turned": factors.core.transpose(0, 1)}
                self._casts[part, dtype, device] = parts[part].to(device, dtype).contiguous()
        return self._casts[part, dtype, device]

    def offsets(
        self,
        js: Sequence[Tensor],
        masks: Sequence[Tensor] | None = None,
        layer: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Computes M of all layers, or of one: (L or 1, r2, r3), differentiable in `js`.

        Of the narrow dtypes only bfloat16 is used for the products, because float16 lacks the range for D.
        """
        factors = self.ready()
        if masks is not None:
            js = [j * mask for j, mask in zip(js, masks, strict=True)]
        turned = self.cast("turned", dtype if dtype == torch.bfloat16 else factors.core.dtype, self.device)
        u1 = factors.u1 if layer is None else factors.u1[layer : layer + 1]
        with no_autocast(u1.device):
            return core_offsets(u1, turned, *js)

    def delta(self, js: Sequence[Tensor], layer: int) -> Tensor:
        """Computes s U2 M_l U3ᵀ, (d_out, d_in): the change of one layer's weight."""
        factors = self.ready()
        return (self.scaling * factors.u2) @ self.offsets(js, layer=layer)[0] @ factors.u3.T

    def prepare(self, js: Sequence[Tensor], dtype: torch.dtype, training: bool) -> None:
        """Computes the cores of all layers, with new dropout masks; a pass without gradients keeps them while J stays as it is.

        Those with a graph stay, too: a checkpoint of an earlier pass may still run its layers again.
        """
        drops, learns = training and self.dropout > 0, torch.is_grad_enabled() and any(j.requires_grad for j in js)
        compiles, first = torch.compiler.is_compiling(), self.cores[0] if self.cores else None
        if not (drops or learns or compiles) and self.masks is None and is_current(first, self._made_with, js):
            assert first is not None
            if first.dtype == dtype:
                return
        self.masks = dropout_masks(self.ranks, self.dropout, js[0]) if drops else None
        if learns or compiles:
            self.cores = self.offsets(js, self.masks, dtype=dtype).to(dtype).unbind()
        else:
            with torch.inference_mode(False), torch.no_grad():
                self.cores = self.offsets(js, self.masks, dtype=dtype).to(dtype).unbind()
        self._made_with = [] if compiles else versions(js)
        if not compiles:
            passes, present = self._open[0], [version for _, version in self._made_with]
            passes = passes if self._open[1] == present else 0  # no backward pass goes through an earlier J
            self._open = (passes + 1 if passes or (drops and learns) else 0, present)

    def core_of(self, index: int, js: Sequence[Tensor], dtype: torch.dtype, device: torch.device, training: bool) -> Tensor:
        """Returns M of one layer. A call that went past the hook of the whole model computes the cores here."""
        if runs_again():
            passes, self._open = self._open[0], (0, [])
            if passes > 1:
                raise RuntimeError(SEVERAL_PASSES)
        if is_stale(self.cores[0] if self.cores else None, self._made_with, js):
            self.prepare(js, dtype, training)
        assert self.cores is not None
        core = self.cores[index]
        return core if core.dtype == dtype and core.device == device else core.to(device, dtype)

    def train(self, mode: bool = True) -> Self:
        """Switches the mode, after which cores are computed again: a change of J through `.data` shows in no version."""
        self._made_with = []
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cores": None, "masks": None, "_made_with": [], "_open": (0, []), "_casts": {}}


class CraftAdapter(WideModule):
    """J1, J2, J3 of every stack of one adapter, with the stacks. J starts at I + epsilon N(0, 1), drawn on the CPU."""

    def __init__(self, stacks: Sequence[Stack], device: torch.device, epsilon: float = 1e-3, seed: int | None = None) -> None:
        super().__init__()
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for stack in stacks:
            self.add_module(f"{stack.name}_stack", stack)
            for mode, rank in enumerate(stack.ranks, start=1):
                if device.type == "meta":
                    start = torch.empty(rank, rank, dtype=torch.float32, device=device)
                else:
                    noise = torch.randn(rank, rank, dtype=torch.float32, device="cpu", generator=generator)
                    start = (torch.eye(rank) + epsilon * noise).to(device)
                self.register_parameter(f"{stack.name}_J{mode}", nn.Parameter(start))

    @property
    def stacks(self) -> dict[str, Stack]:
        return {stack.name: stack for stack in self.children() if isinstance(stack, Stack)}

    def js(self, stack: Stack) -> list[Tensor]:
        return [self._parameters[f"{stack.name}_J{mode}"] for mode in (1, 2, 3)]  # type: ignore[misc]

    def drop(self) -> None:
        for stack in self.stacks.values():
            stack.drop()


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
    if weight.is_meta and hasattr(module, "_hf_hook"):
        raise ValueError(
            f"the weight of {layer.module_name} is offloaded (device_map) to the CPU's memory or the disk, so CRAFT cannot "
            "decompose it. Load the base model with all layers on GPUs, if need be quantized, or all on the CPU."
        )
    weight = weight.detach()
    matrix = weight.T if isinstance(module, Conv1D) else weight
    return matrix[layer.start : layer.stop]


def _unreadable(layer: Located, reason: str) -> str:
    return (
        f"{layer.module_name} is quantized in a way that cannot be read back as numbers ({reason}), so CRAFT cannot decompose "
        "it. Use a bitsandbytes, HQQ or torchao base, or the model before quantization."
    )

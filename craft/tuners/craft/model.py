"""`CraftModel`: CRAFT as a PEFT tuner (paper, Algorithm 1). It holds J under `craft_J.<adapter>`, which belong to all layers.

inject_adapter     projections -> stacks -> factors (store) -> CraftAdapter -> CraftLinear around every module
forward            pre-hook on the base model: M of all layers of every active stack, one contraction each
                   every CraftLinear: y + s U2 M_l U3ᵀ x
save / load        J and what identifies the factors (`craft.tuners.craft.fingerprint`)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from peft.utils.integrations import init_empty_weights
from torch import Tensor, nn

from craft.models.compute import adamw
from craft.models.projections import Located
from craft.tuners.craft import fingerprint
from craft.tuners.craft.config import CraftConfig, FoundModules
from craft.tuners.craft.layer import CraftLinear, Slice
from craft.tuners.craft.lora import to_lora
from craft.tuners.craft.stack import CraftAdapter, Stack, build_stacks, is_chosen
from craft.tuners.joint import JointTuner, product_dtype


class CraftModel(JointTuner):
    """Puts CRAFT adapters on a model; `get_peft_model(model, CraftConfig(...))` makes one."""

    prefix = "craft_"
    parts_name = "J"
    mixes = ", or export each with to_lora() and mix the LoRA adapters"
    tuner_layer_cls = CraftLinear  # type: ignore[assignment]  # layers of its own, with what PEFT asks of a layer

    def _new_adapter(self, model: nn.Module, config: CraftConfig, low_cpu_mem_usage: bool) -> CraftAdapter:
        if any(isinstance(module, CraftLinear) and module.merged for module in model.modules()):
            raise ValueError(
                "an adapter is merged into the base weights: decomposing them now would make it part of the new adapter's "
                "factors. Call unmerge_adapter() first."
            )
        stacks = build_stacks(model, config)
        with init_empty_weights() if low_cpu_mem_usage else nullcontext():
            return CraftAdapter(stacks, stacks[0].device, config.init_epsilon, config.init_seed)

    def inject_adapter(self, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any) -> None:
        config = self.peft_config[adapter_name]
        assert isinstance(config, CraftConfig)
        if config.words:
            config.target_modules = None  # what was found for another adapter or on another model
        super().inject_adapter(model, adapter_name, *args, **kwargs)
        if config.words:
            config.target_modules = FoundModules(layer.module_name for layer, _, _ in self._places(adapter_name))

    def craft_adapter(self, adapter_name: str) -> CraftAdapter:
        if adapter_name not in self.parts:
            raise ValueError(f"there is no CRAFT adapter {adapter_name!r}; there are {', '.join(map(repr, self.parts))}")
        return cast(CraftAdapter, self.parts[adapter_name])

    def adapts(self, config: CraftConfig, path: str) -> Any:
        names = [name for name, other in self.peft_config.items() if other is config and name in self.parts]
        if any(path == layer.module_name for name in names for layer, _, _ in self._places(name)):
            return True
        # PEFT warns of exclude_modules that it has not seen at work.
        return is_chosen(config, path, ())

    def _places(self, adapter_name: str) -> Iterator[tuple[Located, Stack, int]]:
        for stack in self.craft_adapter(adapter_name).stacks.values():
            for index, layer in enumerate(stack.layers):
                yield layer, stack, index

    def put_layer(self, adapter_name: str, target: nn.Module, path: str) -> nn.Module:
        adapter, places = self.craft_adapter(adapter_name), self._places(adapter_name)
        slices = [Slice(adapter, stack, index, place) for place, stack, index in places if place.module_name == path]
        layer = target if isinstance(target, CraftLinear) else CraftLinear(target)
        layer.update_layer(adapter_name, slices)
        return layer

    def prepare(self, *_: Any) -> None:
        """Computes the cores of the active adapters before any layer, or any checkpointed block, needs them."""
        first = next(self._layers(), None)
        if first is None or first.disable_adapters or first.merged:
            return
        for adapter in (self.craft_adapter(name) for name in self.active_adapters if name in self.parts):
            for stack in adapter.stacks.values():
                stack.ready()
                # The dtype of the large products around a stack's layers: autocast's, or the base weight's.
                dtype = product_dtype(self.model.get_submodule(stack.layers[0].module_name))
                if torch.is_autocast_enabled(stack.device.type):
                    dtype = torch.get_autocast_dtype(stack.device.type)
                elif dtype is None or not dtype.is_floating_point or dtype.itemsize == 1:
                    dtype = torch.float32
                stack.prepare(adapter.js(stack), dtype, self.model.training)

    def _layers(self) -> Iterator[CraftLinear]:
        return (module for module in self.model.modules() if isinstance(module, CraftLinear))

    def cast_adapter(self, adapter_name: str, autocast_adapter_dtype: bool) -> None:
        """Moves the J of a new or loaded adapter to the base weights' device, never narrower than float32."""
        adapter = self.craft_adapter(adapter_name)
        weights = (layer.weight for layer in self._layers() if adapter_name in layer.craft_J)
        if not autocast_adapter_dtype and any(w.is_floating_point() and w.itemsize < torch.float32.itemsize for w in weights):
            warnings.warn(
                "autocast_adapter_dtype=False is not followed: CRAFT keeps J in float32 under narrower base weights. J stays "
                "near I, and near 1 a bfloat16 number moves in steps of 0.008. The products run in the base weights' dtype.",
                stacklevel=2,
            )
        device = next(iter(adapter.stacks.values())).device
        if device.type != "meta":
            adapter._apply(lambda tensor: tensor if tensor.is_meta else tensor.to(device))

    def add_weighted_adapter(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuses: no J give the sum of several adapters' changes."""
        raise ValueError(
            "CRAFT's change of the weights is no linear function of J, so no weighted sum of J gives the sum of the changes. "
            "Make several adapters active at once with base_model.set_adapter([...]), which adds their changes; or export each "
            "with to_lora() and weight the LoRA adapters."
        )

    def to_lora(self, directory: str | Path, adapter_name: str | None = None, *, equal_ranks: bool = False) -> Path:
        return to_lora(self, directory, adapter_name, equal_ranks=equal_ranks)

    @classmethod
    def record(cls, model: nn.Module, config: CraftConfig, adapter_name: str) -> dict[str, Tensor]:
        path, tuner = _tuner_of(model)
        record = fingerprint.record(tuner.craft_adapter(adapter_name).stacks, config.save_factors)
        return {path + key: value for key, value in record.items()}

    @classmethod
    def take_record(cls, model: nn.Module, adapter_name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        path, tuner = _tuner_of(model)
        ours = (path + fingerprint.FINGERPRINT, path + fingerprint.FACTORS)
        record = {key.removeprefix(path): tensors[key] for key in tensors if key.startswith(ours)}
        fingerprint.verify(tuner.craft_adapter(adapter_name).stacks, record)
        return {key: value for key, value in tensors.items() if not key.startswith(ours)}


def _tuner_of(model: nn.Module) -> tuple[str, CraftModel]:
    name, tuner = next((name, module) for name, module in model.named_modules() if isinstance(module, CraftModel))
    # Torch's FSDP leaves its own part of a path out of the names in a state dict.
    return (f"{name}." if name else "").replace("_fsdp_wrapped_module.", ""), tuner


def scale_by_rank(groups: list[dict[str, Any]], model: nn.Module, reference: float) -> list[dict[str, Any]]:
    """Divides an optimizer's groups so that J2 and J3 learn at `reference` / their rank times the rate of their group.

    AdamW moves every entry of an r x r matrix by about the rate, so the matrix by up to r times that: the best rate falls like
    1 / r. J1 learns at the rate itself, because its rank is nearly always the number of layers.
    """
    adapters = cast(Iterator[CraftAdapter], _tuner_of(model)[1].parts.children())
    factors = {j: reference / len(j) for each in adapters for stack in each.stacks.values() for j in each.js(stack)[1:]}
    by_rate: list[dict[str, Any]] = []
    for group in groups:
        rates: dict[float, list[nn.Parameter]] = {}
        for weight in group["params"]:
            rates.setdefault(factors.get(weight, 1.0), []).append(weight)
        # J1 comes first, so that the logged rate is the requested one.
        ordered = sorted(rates.items(), key=lambda item: item[0] != 1.0)
        by_rate += [group | {"params": weights, "lr": group["lr"] * rate} for rate, weights in ordered]
    return by_rate


def rank_scaled_adamw(
    model: nn.Module,
    learning_rate: float = 3e-3,
    head_learning_rate: float = 1e-3,
    weight_decay: float = 0.0,
) -> torch.optim.AdamW:
    """Makes AdamW for a program that trains CRAFT adapters itself, so that one rate serves all ranks.

    `learning_rate` is that of J1, and of J2 and J3 at rank 64. All else that trains, such as a task head, has
    `head_learning_rate` and `weight_decay`; J is never pulled to 0, where it would erase the weights.
    """
    parts = {*_tuner_of(model)[1].parts.parameters()}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    js, head = ([weight for weight in weights if (weight in parts) == ours] for ours in (True, False))
    groups: list[dict[str, Any]] = [{"params": js, "lr": learning_rate, "weight_decay": 0.0}]
    groups += [{"params": head, "lr": head_learning_rate, "weight_decay": weight_decay}] if head else []
    return adamw(scale_by_rank(groups, model, 64))

"""The base of our own tuners: one module holds all that an adapter trains, and every adapted layer asks it for its change.

    JointTuner ── parts: adapter name -> JointAdapter     every trained tensor of the adapter, shared or a layer's own
      └─ JointLayer around every target                   y = base(x);  y + parts[adapter].change(path, x, y)

Trained tensors are float32 under any base that is no wider; products have the format of the base layer's output. CRAFT has
layers and adapters of its own (`craft.tuners.craft.model`) under the same `JointTuner`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Self, cast

import torch
from peft.config import PeftConfig
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.tuners.tuners_utils import (
    BaseTuner,
    BaseTunerLayer,
    _maybe_include_all_linear_layers,
    check_target_module_exists,
)
from peft.utils.integrations import init_empty_weights
from peft.utils.other import ModulesToSaveWrapper
from peft.utils.peft_types import PeftType, register_peft_method
from torch import Tensor, nn

from craft import TUNERS
from craft.models.compute import no_autocast
from craft.models.projections import find_targets

Shape = tuple[int, int]


@dataclass
class JointConfig(PeftConfig):
    """The fields that every configuration here has, under PEFT's names. A subclass names its type (`KIND`)."""

    KIND: ClassVar[str]
    target_modules: list[str] | str | None = field(default=None, metadata={"help": "ends of module paths, or a pattern"})
    exclude_modules: list[str] | str | None = field(default=None, metadata={"help": "modules left as they are"})
    modules_to_save: list[str] | None = field(default=None, metadata={"help": "modules trained and saved whole"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType(self.KIND)


class WideModule(nn.Module):
    """Holds tensors that no cast of the model makes narrower than float32."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def wide(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrow = moved.is_floating_point() and torch.finfo(moved.dtype).bits < 32
            return tensor.to(moved.device, torch.float32) if narrow else moved

        super()._apply(wide, recurse)
        self.drop()
        return self

    def drop(self) -> None:
        """Drops what was computed from the tensors."""


class JointAdapter(WideModule, ABC):
    """All that one adapter trains. A method implements `__init__`, `reset`, `change`, and `prepare` if layers share work.

    `shapes`: module path -> (d_out, d_in) of every adapted module, in the order of the stacks.
    """

    def __init__(self, config: Any, stacks: dict[str, dict[str, Shape]]) -> None:
        """Makes the parameters of `stacks`: stack name -> module path -> (d_out, d_in), modules in the model's order."""
        super().__init__()
        self.shapes = {path: shape for layers in stacks.values() for path, shape in layers.items()}

    @abstractmethod
    def reset(self) -> None:
        """Gives every parameter its first values, from torch's global generator."""

    def prepare(self) -> None:
        """Computes what layers share, before every forward pass of the model and outside any checkpointed block."""

    @abstractmethod
    def change(self, path: str, x: Tensor, y: Tensor) -> Tensor:
        """Computes what is added to the output y (..., d_out) of the module at `path`, whose input is x (..., d_in)."""


class JointLayer(nn.Module, BaseTunerLayer):
    """A module under one of our own methods."""

    parts: nn.ModuleDict
    adapter_layer_names = ("parts",)

    def __init__(self, base_layer: nn.Module, path: str) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.path = path
        # Adapter -> the tuner's module of it; not a submodule, so that it is not saved again with every layer.
        object.__setattr__(self, "parts", nn.ModuleDict())
        self.merged_adapters: list[str] = []
        self._disable_adapters = False

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        raise ValueError("this method's adapters are not merged into the base weights; use the model with the adapter in it")

    def unmerge(self) -> None:
        warnings.warn("Already unmerged. Nothing to do.", stacklevel=2)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        y: Tensor = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters:
            return y
        result = y
        for part in (cast(JointAdapter, self.parts[name]) for name in self.active_adapters if name in self.parts):
            narrow, weight = y.dtype == torch.bfloat16, next(part.parameters())
            # Where the base is divided among GPUs, what layers share is on one of them.
            inputs = (each.to(weight.device, each.dtype if narrow else weight.dtype) for each in (x, y))
            with torch.autocast(weight.device.type, torch.bfloat16, enabled=narrow):
                change = part.change(self.path, *inputs)
            result = result + change.to(y.device, y.dtype)
        return result


class JointTuner(BaseTuner):
    """Puts `JointLayer`s around the targets and keeps what the adapters train.

    A method's subclass sets `prefix` (of its tensors' names) and `adapter_cls`. PEFT's private names are in this module alone;
    `tests/craft/tuners/test_private_names.py` names each.
    """

    uses_shared_state = True
    tuner_layer_cls = JointLayer
    adapter_cls: ClassVar[type[JointAdapter]]
    parts_name: ClassVar[str] = "parts"
    mixes: ClassVar[str] = ""
    """The other way to give each row of a batch an adapter of its own, in words."""

    @property
    def parts(self) -> nn.ModuleDict:
        """Adapter name -> `JointAdapter`; registered as the method's prefix and `parts_name`, which stand in saved names."""
        return cast(nn.ModuleDict, self._modules[f"{self.prefix}{self.parts_name}"])

    def prepare(self, *_: Any) -> None:
        """Prepares the active adapters, before every forward pass of the base model and outside any checkpointed block."""
        layer = next((module for module in self.model.modules() if isinstance(module, JointLayer)), None)
        if layer is None or layer.disable_adapters:
            return
        for part in (cast(JointAdapter, self.parts[name]) for name in self.active_adapters if name in self.parts):
            with no_autocast(next(part.parameters()).device):
                part.prepare()

    def _pre_injection_hook(self, model: nn.Module, config: PeftConfig, adapter_name: str) -> None:
        self.add_module(f"{self.prefix}{self.parts_name}", nn.ModuleDict())
        self._prepare_hook = model.register_forward_pre_hook(self.prepare)

    def inject_adapter(
        self,
        model: nn.Module,
        adapter_name: str,
        autocast_adapter_dtype: bool = True,
        low_cpu_mem_usage: bool = False,
        state_dict: dict[str, Tensor] | None = None,
    ) -> None:
        """Makes what the adapter trains, and puts a layer around each module that it targets."""
        # PEFT sets every adapter's requires_grad by the new one's inference mode.
        flags = [(parameter, parameter.requires_grad) for parameter in self.parts.parameters()]
        try:
            self.parts[adapter_name] = self._new_adapter(model, self.peft_config[adapter_name], low_cpu_mem_usage)
            self._check_names()
            super().inject_adapter(model, adapter_name, autocast_adapter_dtype, low_cpu_mem_usage, state_dict)
        except BaseException:
            if adapter_name in self.parts:
                del self.parts[adapter_name]
            if not self.targeted_module_names:  # the tuner's first adapter: PEFT gives the tuner up
                self._prepare_hook.remove()
            raise
        for parameter, flag in flags:
            parameter.requires_grad_(flag)

    def _check_names(self) -> None:
        """Refuses names of adapters by which PEFT would leave weights of another adapter out when it saves that."""
        weights = {part for adapter in self.parts.values() for key, _ in adapter.named_parameters() for part in key.split(".")}
        if len(self.parts) > 1 and (wrong := sorted(weights & self.parts.keys())):
            raise ValueError(
                f"of several adapters none may be called {wrong[0]!r}: weights have this name too, and PEFT would not save "
                "them. Give another name"
            )

    def _new_adapter(self, model: nn.Module, config: Any, low_cpu_mem_usage: bool) -> nn.Module:
        if not config.target_modules:
            raise ValueError(f"{type(config).__name__} needs target_modules: the modules to adapt")
        name_linear_layers(config, model)
        stacks = {
            name: {layer.module_name: layer.shape for layer in layers}
            for name, layers in find_targets(model, lambda path: check_target_module_exists(config, path)).items()
        }
        first = model.get_submodule(next(iter(next(iter(stacks.values())))))
        device = next(first.parameters()).device
        with init_empty_weights() if low_cpu_mem_usage or device.type == "meta" else nullcontext():
            adapter = self.adapter_cls(config, stacks)
        if any(weight.is_meta for weight in adapter.parameters()):  # PEFT, too, may have said so, around all this
            return adapter
        adapter.reset()
        return adapter.to(device)

    def _prepare_adapter_config(self, peft_config: PeftConfig, model_config: dict) -> PeftConfig:
        return peft_config

    def _create_and_replace(self, *args: Any, current_key: str, **_more: Any) -> None:  # type: ignore[override]
        _, adapter_name, target, target_name, parent = args
        layer = self.put_layer(adapter_name, target, current_key)
        if layer is not target:
            self._replace_module(parent, target_name, layer, target)

    def put_layer(self, adapter_name: str, target: nn.Module, path: str) -> nn.Module:
        """Returns the layer around the module at `path`, with one more adapter."""
        layer = target if isinstance(target, JointLayer) else JointLayer(target, path)
        layer.parts[adapter_name] = self.parts[adapter_name]
        layer.set_adapter(self.active_adapters, inference_mode=self.peft_config[adapter_name].inference_mode)
        return layer

    def _check_target_module_exists(self, peft_config: PeftConfig, key: str) -> Any:  # type: ignore[override]
        return self.adapts(peft_config, key)

    def adapts(self, config: Any, path: str) -> Any:
        """Returns whether a configuration adapts the module at `path`, by PEFT's rule."""
        return check_target_module_exists(config, path)

    def _cast_adapter_dtype(self, adapter_name: str, autocast_adapter_dtype: bool = True) -> None:
        self.cast_adapter(adapter_name, autocast_adapter_dtype)

    def cast_adapter(self, adapter_name: str, autocast_adapter_dtype: bool) -> None:
        super()._cast_adapter_dtype(adapter_name, autocast_adapter_dtype)

    @contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Refuses PEFT's `adapter_names=[...]` of a forward or generate call, which PEFT would ignore."""
        if kwargs.get("adapter_names") is not None:
            raise ValueError(
                "adapter_names gives each row of a batch an adapter of its own, which these layers do not do. Make one adapter "
                f"active at a time with set_adapter{self.mixes}."
            )
        yield

    @classmethod
    def _get_adapter_state_dict(
        cls, model: nn.Module, config: PeftConfig, adapter_name: str, state_dict: dict, unwanted_adapter_names: list[str]
    ) -> dict[str, Tensor]:
        tensors = super()._get_adapter_state_dict(model, config, adapter_name, state_dict, unwanted_adapter_names)
        return {**tensors, **cls.record(model, config, adapter_name)}

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        # PEFT looks for the name at the last two places of a key; ours follows the method's prefix and `parts_name`.
        place = f"{cls.prefix}{cls.parts_name}."
        return key.replace(f"{place}{adapter_name}.", place, 1)

    @classmethod
    def record(cls, model: nn.Module, config: Any, adapter_name: str) -> dict[str, Tensor]:
        """Returns what is saved with an adapter in addition to what it trains."""
        return {}

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: PeftConfig, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        tensors = cls.take_record(model, adapter_name, state_dict)
        return super()._remap_adapter_state_dict_for_load(model, config, adapter_name, tensors)

    @classmethod
    def take_record(cls, model: nn.Module, adapter_name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Checks what `record` saved, and returns the other tensors."""
        return tensors

    def delete_adapter(self, adapter_name: str) -> None:
        super().delete_adapter(adapter_name)
        if adapter_name in self.parts:
            del self.parts[adapter_name]

    def _unload_and_optionally_merge(self, *args: Any, **kwargs: Any) -> Any:
        wrappers = unwrap_heads(self.model)
        try:
            model = super()._unload_and_optionally_merge(*args, **kwargs)
        except BaseException:  # such as a refused merge, after which the adapter can still be saved
            for name, wrapper in wrappers.items():
                self.model.set_submodule(name, wrapper)
            raise
        self._prepare_hook.remove()
        return model


def product_dtype(layer: Any) -> torch.dtype | None:
    """Returns the dtype in which PEFT says that a layer's base multiplies."""
    _, dtype = layer._get_base_layer_device_and_dtype(layer.get_base_layer())
    return cast("torch.dtype | None", dtype)


def name_linear_layers(config: Any, model: nn.Module) -> None:
    """Replaces `target_modules: all-linear` by the names of the model's linear modules."""
    _maybe_include_all_linear_layers(config, model)


def unwrap_heads(model: nn.Module) -> dict[str, Any]:
    """Puts the trained head, and any other module of `modules_to_save`, in the place of PEFT's wrapper. Returns the wrappers.

    PEFT's unloading does so too. But its tuners other than LoRA then ask the head for a `weight` of its own, which a head of
    two layers (RoBERTa, MPNet, ELECTRA) does not have.
    """
    wrappers = {name: module for name, module in model.named_modules() if isinstance(module, ModulesToSaveWrapper)}
    for name, wrapper in wrappers.items():
        head = wrapper.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
        model.set_submodule(name, head)
    return wrappers


def versions(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    """Lists tensors with their versions, by which `is_current` knows a later change."""
    return [(tensor, 0 if tensor.is_inference() else tensor._version) for tensor in tensors]


def is_current(made: Tensor | None, made_with: list[tuple[Tensor, int]], tensors: Iterable[Tensor]) -> bool:
    """Returns whether `made`, made with these `versions`, is that of the present `tensors`, with a graph if one is wanted."""
    if made is None or not made_with:
        return False
    present = versions(tensors)
    lacks_graph = torch.is_grad_enabled() and any(each.requires_grad for each, _ in present) and not made.requires_grad
    return not lacks_graph and all(a is b and m == n for (a, m), (b, n) in zip(made_with, present, strict=True))


def is_stale(made: Tensor | None, made_with: list[tuple[Tensor, int]], tensors: Iterable[Tensor]) -> bool:
    """Returns whether a layer, in a call that went past the hook of the whole model, has to make `made` again.

    Where a checkpoint runs a layer again, it meets what it had.
    """
    return not torch.compiler.is_compiling() and not runs_again() and not is_current(made, made_with, tensors)


def runs_again() -> bool:
    """Returns whether a checkpoint runs a layer again, in a backward pass."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def parameter(*shape: int) -> nn.Parameter:
    """Makes a float32 parameter whose values `reset` gives."""
    return nn.Parameter(torch.empty(*shape, dtype=torch.float32))


def key_of(path: str) -> str:
    """Makes a module's path a name that torch accepts in a dictionary of modules."""
    return path.replace(".", "-")


def register() -> None:
    """Adds every row of TUNERS to PEFT; a second call does nothing."""
    for name, (place, config, tuner) in TUNERS.items():
        _add_peft_type(name)
        module = import_module(place)
        if PeftType(name) not in PEFT_TYPE_TO_CONFIG_MAPPING:
            model = getattr(module, tuner)
            register_peft_method(name=name.lower(), config_cls=getattr(module, config), model_cls=model, prefix=model.prefix)


def _add_peft_type(name: str) -> None:
    """Makes `name` a member of `PeftType`, PEFT's closed enum of methods, if it is not one yet.

    PEFT offers no way to add a member. These are the steps that the `enum` module takes for members in a class body.
    """
    if name in PeftType.__members__:
        return
    member = str.__new__(PeftType, name)
    member._name_ = name
    member._value_ = name
    member.__objclass__ = PeftType  # type: ignore[attr-defined]
    member._sort_order_ = len(PeftType.__members__)  # type: ignore[attr-defined]
    PeftType._member_names_.append(name)
    PeftType._member_map_[name] = member
    PeftType._value2member_map_[name] = member
    type.__setattr__(PeftType, name, member)

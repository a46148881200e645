"""`peft`: any tuner of the installed PEFT, by PEFT's own names; what that PEFT has, and which of it can train here.

    {method: peft, peft_type: LILY, config: {r: 8, num_B: 3}, projections: [q, k, v, o]}

A run's identity has `config` as it is written: PEFT's defaults would give the same run another key under another PEFT. PEFT is
imported on the first question, because it loads torch.
"""

from __future__ import annotations

import typing
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import MISSING, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from craft import TUNERS
from craft.methods.method import BuildContext, Layers, Method, is_meta, layers_field, make_peft_model, refuse_olora
from craft.settings import Projections, Settings
from craft.words import nearest

if TYPE_CHECKING:
    from torch import nn


OWN_TARGETS = ("ADAPTION_PROMPT", "LN_TUNING", "SHADOW", "TRAINABLE_TOKENS")
"""Types that adapt no projections, but attentions, norms, blocks or the embedding; PEFT or `target_modules` names them."""
WHOLE = ("SHADOW",)
"""Types that cannot train over a base in parts."""

_PROMPT = (
    "it puts trained vectors before the text, so a model's outputs no longer stand at the places of the text's tokens, "
    "where losses and answers are read here"
)
_TASK_IDS = "it wants the number of a task with every example, and a run here has one task"

CANNOT: dict[str, str] = {
    "ADALORA": "its ranks are allocated by calls between steps, which `method: adalora` makes; take that",
    "CARTRIDGE": _PROMPT,
    "CPT": _PROMPT,
    "MULTITASK_PROMPT_TUNING": _TASK_IDS,
    "POLY": _TASK_IDS,
    "PREFIX_TUNING": _PROMPT,
    "PROMPT_TUNING": _PROMPT,
    "P_TUNING": _PROMPT,
    "XLORA": "it mixes LoRA adapters that were trained before",
}
"""The types of the installed PEFT that no run can use, with the reason. A test holds that all others train."""

_FROM_DATA = "it is computed from data before training, which no run here does"

REFUSED_SETTINGS: dict[tuple[str, str], tuple[tuple[Any, ...], str]] = {
    ("ADAMSS", "use_asa"): ((True,), "its subspaces are chosen by calls between steps, which no run makes"),
    ("LORA", "init_lora_weights"): (("corda", "eva", "loftq", "lora_ga"), _FROM_DATA),
}
"""(type, key) -> its values that no run can use, with the reason."""

_SET_ELSEWHERE = {
    "peft_type": "is written next to config",
    "task_type": "follows from the task",
    "inference_mode": "is set by the run",
    "base_model_name_or_path": "is the sweep's model",
    "revision": "is the sweep's revision",
    "auto_mapping": "is written by PEFT",
    "peft_version": "is written by PEFT",
}


def find_type(name: str) -> str:
    """Returns PEFT's spelling of the type `name`, in capitals or not."""
    peft_type = name.upper()
    if peft_type in CANNOT:
        raise ValueError(f"{peft_type} cannot train here: {CANNOT[peft_type]}")
    if peft_type not in config_classes():
        import peft

        able = config_classes().keys() - CANNOT
        raise ValueError(
            f"PEFT {peft.__version__}, which is installed, has no type {name!r}.{nearest(name, able)} Types that train here: "
            f"{', '.join(sorted(able))}"
        )
    return peft_type


@cache
def config_model(peft_type: str) -> type[Settings]:
    """Makes a model of the keys that `config` may have for a type; each value is checked against the type PEFT declares.

    A value stays as it is written. PEFT itself checks that values go together: `whole_config`.
    """
    from craft.models.adapters import declared_types

    theirs = config_classes()[peft_type]
    hints = declared_types(theirs)
    keys: dict[str, Any] = {}
    for item in fields(theirs):
        if item.init and item.name not in _SET_ELSEWHERE:
            default = None if item.default is MISSING else item.default
            check = partial(_check, peft_type, item.name, hints.get(item.name, Any), default)
            about = str(item.metadata.get("help") or "")
            keys[item.name] = (Annotated[Any, AfterValidator(check)], Field(None, description=about))
    return create_model(theirs.__name__, __base__=Settings, **keys)


def whole_config(peft_type: str, config: Mapping[str, Any], **more: Any) -> Any:
    theirs = config_classes()[peft_type]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same advice at every check of a file, and at every point of a plan
            return theirs(**config, **more)
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"PEFT's {theirs.__name__} refuses it: {error}") from error


def guilty_key(peft_type: str, config: Mapping[str, Any]) -> str | None:
    """Finds the key without which PEFT would take `config`; None if no single key is at fault."""
    for key in config:
        try:
            whole_config(peft_type, {name: value for name, value in config.items() if name != key})
        except ValueError:
            continue
        return key
    return None


def unknown_key(peft_type: str, key: Any) -> str:
    """Explains a key of `config` that `config_model` does not have."""
    if key in _SET_ELSEWHERE:
        return f"{key} is not given here: it {_SET_ELSEWHERE[key]}"
    keys = list(config_model(peft_type).model_fields)
    name = config_classes()[peft_type].__name__
    return f"unknown key {str(key)[:60]!r} of PEFT's {name}.{nearest(key, keys)} Its keys: {', '.join(keys)}"


def _check(peft_type: str, key: str, hint: Any, default: Any, value: Any) -> Any:
    from craft.models.adapters import wrong_type

    refused, reason = REFUSED_SETTINGS.get((peft_type, key), ((), ""))
    if value in refused:
        raise ValueError(f"{key} {value!r} cannot be used here: {reason}")
    if not (value is None and default is None) and wrong_type(key, hint, value):
        raise ValueError(f"got {value!r}; PEFT's {config_classes()[peft_type].__name__} takes {_shown(hint)}")
    return value


def _shown(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return text.replace("typing.", "").replace("NoneType", "None")


@cache
def config_classes() -> dict[str, Any]:
    """Returns PEFT's configuration class of each type of the installed PEFT, without our own types."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    classes = {peft_type.value: config for peft_type, config in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    return {name: classes[name] for name in sorted(classes) if name not in TUNERS}


NAME = "peft"


class PeftParameters(Settings):
    """`projections` stays empty if PEFT's class has no `target_modules`."""

    peft_type: str = Field(description="PEFT's name of the type; required.")
    config: dict[str, Any] = Field({}, description="Parameters of PEFT's configuration, each a value, values or a range.")
    projections: Projections | None = Field(
        None,
        description="Adapted projections; else q and v, or `target_modules` in `config`.",
    )
    layers: Layers | None = layers_field()

    @field_validator("peft_type")
    @classmethod
    def _is_installed(cls, name: str) -> str:
        return find_type(name)

    @field_validator("config")
    @classmethod
    def _is_pefts(cls, config: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        peft_type = info.data.get("peft_type")
        if peft_type is None:
            return config
        try:
            config_model(peft_type).model_validate(config)
        except ValidationError as error:
            raise ValueError("; ".join(_sentence(mistake, peft_type) for mistake in error.errors())) from None
        whole_config(peft_type, config)
        return config

    @model_validator(mode="after")
    def _one_way_to_name_modules(self) -> PeftParameters:
        named, keys = "target_modules" in self.config, {item.name for item in fields(config_classes()[self.peft_type])}
        able = self.peft_type not in OWN_TARGETS and "target_modules" in keys  # which may be linear maps
        if self.projections and (named or not able):
            why = "config.target_modules names the modules too; keep one" if named else f"{self.peft_type} adapts none"
            raise ValueError(f"projections {list(self.projections)} are given, and {why}")
        if self.projections is None:
            object.__setattr__(self, "projections", ("q", "v") if able and not named else ())
        if self.layers is not None and not self.projections:
            why = "config.target_modules names the modules; name them there" if named else f"{self.peft_type} adapts none"
            raise ValueError(f"layers {self.layers} are given, and {why}")
        return self


def build(model: nn.Module, parameters: PeftParameters, context: BuildContext) -> nn.Module:
    from craft.models.loading import head_names, trained_weights
    from craft.models.projections import target_modules

    settings, keys, heads = dict(parameters.config), config_model(parameters.peft_type).model_fields, head_names(model)
    if heads and settings.get("bias") == "all":
        instead = f"{parameters.peft_type.lower()}_only"
        raise ValueError(f"bias: all trains and saves PEFT's unused copy of the task head, too; take bias: {instead}")
    if str(settings.get("init_lora_weights")).lower() == "olora":
        refuse_olora(model)
    if parameters.projections:
        settings["target_modules"] = target_modules(model, parameters.projections, parameters.layers)
    if "progressbar" in keys:
        settings.setdefault("progressbar", False)
    if heads and "modules_to_save" in keys:
        settings["modules_to_save"] = [*heads, *(settings.get("modules_to_save") or ())]
    made = partial(whole_config, parameters.peft_type, settings, task_type=context.task_type)
    built = put_on(model, parameters.peft_type, made)
    trained = trained_weights(built)
    if heads and not any(head for *_, head in trained):
        raise ValueError(
            f"PEFT's {parameters.peft_type} trains no task head; it is for tasks that a language model answers in words"
        )
    # A loaded adapter has such weights in the base's format again, and other outputs.
    if narrow := [name.removeprefix("base_model.model.") for name, weight, _ in trained if weight.itemsize < 4]:
        raise ValueError(
            f"PEFT's {parameters.peft_type} trains {narrow[0]} in bfloat16, the format of the base, and training needs "
            "float32: take precision: bf16-mixed or float32"
        )
    return built


def put_on(model: nn.Module, peft_type: str, config: Callable[[], Any]) -> nn.Module:
    """Puts the tuner of a type on the model, with a new configuration in each try.

    Some tuners need numbers (BOFT reads its permutations, FROD and AdaMSS decompose the weights). Their parameters are counted
    on a copy whose adapted modules hold random weights.
    """
    import torch

    if not is_meta(model):
        return _put(model, config(), peft_type)
    for place, has_numbers in ((None, False), ("cpu", False), ("cpu", True)):
        try:
            with torch.device(place) if place else nullcontext():
                copy = deepcopy(model)
                if has_numbers:
                    _draw_weights(copy, config())
                return _put(copy, config(), peft_type)
        except RuntimeError as error:  # NotImplementedError, too: a tensor without numbers was asked for one
            last = error
    raise ValueError(f"PEFT cannot put {peft_type} on this model: {last}") from last


def _put(model: nn.Module, config: Any, peft_type: str) -> nn.Module:
    try:
        return make_peft_model(model, config)
    except (TypeError, KeyError, AttributeError, AssertionError, IndexError, ImportError, ZeroDivisionError) as error:
        raise ValueError(f"PEFT cannot put {peft_type} on this model: {type(error).__name__}: {error}") from error


def _draw_weights(model: nn.Module, config: Any) -> None:
    """Gives the modules that `config` adapts random weights on the CPU."""
    import torch
    from peft.tuners.tuners_utils import check_target_module_exists
    from transformers.pytorch_utils import Conv1D

    targets: Any = getattr(config, "target_modules", None)
    draw = torch.Generator().manual_seed(0)
    for name, module in model.named_modules():
        linear = isinstance(module, torch.nn.Linear | Conv1D)
        if linear and targets and (targets == "all-linear" or check_target_module_exists(config, name)):
            module.to_empty(device="cpu")
            for weight in module.parameters():
                torch.nn.init.normal_(weight.data, generator=draw)


def label(parameters: Any) -> str:
    chosen = [f"{name} {_text(value)}" for name, value in parameters.config.items()]
    return ", ".join([" ".join([parameters.peft_type, *chosen]), *filter(None, [" ".join(parameters.projections or ())])])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    if isinstance(value, dict):
        return ",".join(f"{name}={_text(item)}" for name, item in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sentence(error: Any, peft_type: str) -> str:
    name = error["loc"][0]
    if error["type"] == "extra_forbidden":
        return unknown_key(peft_type, name)
    return f"{name}: {error['msg'].removeprefix('Value error, ')}"


METHOD: Method = Method(
    name=NAME,
    title="PEFT",
    reference="any tuner of huggingface/peft",
    parameters=PeftParameters,
    build=build,
    label=label,
    decays_to_start=True,
)

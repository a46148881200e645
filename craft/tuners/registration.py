"""Registration of TUNERS with PEFT: after `register()`, `get_peft_model` and `PeftModel.from_pretrained` know every row."""

from __future__ import annotations

from importlib import import_module

from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.utils.peft_types import PeftType, register_peft_method

from craft.tuner_types import TUNERS


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

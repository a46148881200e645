"""Makes CRAFT one of PEFT's methods: after `register()`, `get_peft_model` and `PeftModel.from_pretrained` know it.

PEFT keeps its methods in a closed enum, `PeftType`, and offers no way to add one; the member is made here, by the same
steps that the `enum` module takes for members written in a class body. The baselines that PEFT has not
(`craft.tuners`) are added the same way, at the same moment.
"""

from __future__ import annotations

from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.utils.peft_types import PeftType, register_peft_method

from craft.tuners import register_tuners

NAME = "CRAFT"


def register() -> None:
    """Adds the method, and the baselines', to PEFT; a second call does nothing."""
    add_peft_type(NAME)
    from craft.config import CraftConfig
    from craft.model import CraftModel

    # Asked last: those imports may have registered it themselves.
    if PeftType(NAME) not in PEFT_TYPE_TO_CONFIG_MAPPING:
        register_peft_method(name="craft", config_cls=CraftConfig, model_cls=CraftModel, prefix=CraftModel.prefix)
    register_tuners()


def add_peft_type(name: str) -> None:
    """Makes `name` a member of PEFT's enum of methods, if it is none yet."""
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

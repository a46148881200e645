"""Makes CRAFT one of PEFT's methods: after `register()`, `get_peft_model` and `PeftModel.from_pretrained` know it.

PEFT keeps its methods in a closed enum, `PeftType`, and offers no way to add one; the member is made here, by the same
steps that the `enum` module takes for members written in a class body.
"""

from __future__ import annotations

from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.utils.peft_types import PeftType, register_peft_method

NAME = "CRAFT"


def register() -> None:
    """Adds the method to PEFT; a second call does nothing."""
    if NAME not in PeftType.__members__:
        member = str.__new__(PeftType, NAME)
        member._name_ = NAME
        member._value_ = NAME
        member.__objclass__ = PeftType  # type: ignore[attr-defined]
        member._sort_order_ = len(PeftType.__members__)  # type: ignore[attr-defined]
        PeftType._member_names_.append(NAME)
        PeftType._member_map_[NAME] = member
        PeftType._value2member_map_[NAME] = member
        type.__setattr__(PeftType, NAME, member)
    from craft.config import CraftConfig
    from craft.model import CraftModel

    # Asked last: those imports may have registered it themselves.
    if PeftType(NAME) not in PEFT_TYPE_TO_CONFIG_MAPPING:
        register_peft_method(name="craft", config_cls=CraftConfig, model_cls=CraftModel, prefix=CraftModel.prefix)

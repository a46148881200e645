"""Adds a name to PEFT's closed enum of methods, `PeftType`, which offers no way to add one.

The member is made by the same steps that the `enum` module takes for members written in a class body.
"""

from __future__ import annotations

from peft.utils.peft_types import PeftType


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

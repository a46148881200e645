"""TUNERS: the methods this project adds to PEFT, one row each, and their registration.

After `register()`, `get_peft_model` and `PeftModel.from_pretrained` know every row. The baselines are written from their
papers, one file each; `craft.tuners.joint` holds what they share.
"""

from __future__ import annotations

from importlib import import_module

from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.utils.peft_types import PeftType, register_peft_method

from craft.tuners.peft_types import add_peft_type

TUNERS: dict[str, tuple[str, str, str]] = {
    "CRAFT": ("craft.tuners.craft.model", "CraftConfig", "CraftModel"),
    "MILORA": ("craft.tuners.milora", "MiloraConfig", "MiloraModel"),
    "LOTR": ("craft.tuners.lotr", "LotrConfig", "LotrModel"),
    "SUPERLORA": ("craft.tuners.superlora", "SuperLoraConfig", "SuperLoraModel"),
    "LORETTA": ("craft.tuners.loretta", "LorettaConfig", "LorettaModel"),
    "BOTTLENECK": ("craft.tuners.bottleneck", "BottleneckConfig", "BottleneckModel"),
}
"""Rows: PEFT type -> module, configuration class, tuner class."""


def register() -> None:
    """Adds every row of TUNERS to PEFT; a second call does nothing."""
    for name, (place, config, tuner) in TUNERS.items():
        add_peft_type(name)
        module = import_module(place)
        if PeftType(name) not in PEFT_TYPE_TO_CONFIG_MAPPING:
            model = getattr(module, tuner)
            register_peft_method(name=name.lower(), config_cls=getattr(module, config), model_cls=model, prefix=model.prefix)

"""Methods that PEFT has not, as PEFT tuners of our own: one file each, written from the paper.

`TUNERS` is the table; `register_tuners` makes PEFT know them, so that `PeftModel.from_pretrained` loads what they saved.
`craft.tuners.joint` holds what they share. Importing this module loads nothing heavy.
"""

from __future__ import annotations

from importlib import import_module

TUNERS: dict[str, tuple[str, str, str]] = {
    "MILORA": ("milora", "MiloraConfig", "MiloraModel"),
    "LOTR": ("lotr", "LotrConfig", "LotrModel"),
    "SUPERLORA": ("superlora", "SuperLoraConfig", "SuperLoraModel"),
    "LORETTA": ("loretta", "LorettaConfig", "LorettaModel"),
    "BOTTLENECK": ("bottleneck", "BottleneckConfig", "BottleneckModel"),
}
"""Rows: PEFT type -> module here, configuration class, tuner class."""


def register_tuners() -> None:
    """Adds every row of TUNERS to PEFT; a second call does nothing."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
    from peft.utils.peft_types import PeftType, register_peft_method

    from craft.registration import add_peft_type

    for name in TUNERS:
        add_peft_type(name)
    for name, (file, config, tuner) in TUNERS.items():
        module = import_module(f"craft.tuners.{file}")
        # A module whose own import brought us here has no classes yet; it is registered once it is imported.
        if hasattr(module, tuner) and PeftType(name) not in PEFT_TYPE_TO_CONFIG_MAPPING:
            model_cls = getattr(module, tuner)
            register_peft_method(
                name=name.lower(), config_cls=getattr(module, config), model_cls=model_cls, prefix=model_cls.prefix
            )

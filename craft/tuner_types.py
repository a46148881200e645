"""TUNERS: the methods this project adds to PEFT, one row each. Nothing is imported here.

A new tuner is a module of `craft/tuners/` and a row here; the row of METHODS that uses it names the PEFT type.
"""

from __future__ import annotations

TUNERS: dict[str, tuple[str, str, str]] = {
    "CRAFT": ("craft.tuners.craft.model", "CraftConfig", "CraftModel"),
    "MILORA": ("craft.tuners.low_rank", "MiloraConfig", "MiloraModel"),
    "LOTR": ("craft.tuners.low_rank", "LotrConfig", "LotrModel"),
    "SUPERLORA": ("craft.tuners.low_rank", "SuperLoraConfig", "SuperLoraModel"),
    "LORETTA": ("craft.tuners.bottleneck", "LorettaConfig", "LorettaModel"),
    "BOTTLENECK": ("craft.tuners.bottleneck", "BottleneckConfig", "BottleneckModel"),
}
"""Rows: PEFT type -> module, configuration class, tuner class."""

"""METHODS: every parameter-efficient method a run may use, one row each.

A file of this folder, or of `from_peft` where PEFT has the tuner, holds the parameters of a method or of a few similar ones, as
pydantic models (without torch, so that a sweep file is checked without loading anything heavy), and a `build` that turns a
transformers model into the model that trains. To add a method, add such a file and its row below; the contract tests run over
every row. `method` defines what a row is, `projected` what methods that adapt projections share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from craft.methods import across_layers, bottleneck, craft_tucker, whole
from craft.methods.cutting import Cutting
from craft.methods.from_peft import adalora, any_type, few_numbers, lora
from craft.methods.method import Method
from craft.words import nearest

METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        *craft_tucker.METHODS,
        *whole.METHODS,
        *lora.METHODS,
        adalora.METHOD,
        few_numbers.LORA_XS,
        few_numbers.VERA,
        *across_layers.METHODS,
        *bottleneck.METHODS,
        few_numbers.IA3,
        any_type.METHOD,
    )
}


def find_method(name: str) -> Method:
    """Returns the row called `name`. Raises ValueError with the nearest names if there is none."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}.{nearest(name, METHODS)} Known methods: {', '.join(METHODS)}")
    return METHODS[name]


def find_cutting(name: str) -> Cutting:
    """Returns how adapters of the method called `name` are cut. Raises ValueError if they cannot be."""
    cutting = find_method(name).cutting
    if cutting is None:
        able = ", ".join(row.name for row in METHODS.values() if row.cutting is not None)
        raise ValueError(
            f"adapters of {name} cannot be cut: no SVD makes what they learn smaller. Those of {able} can; "
            "`craft-sweeps audit` cuts others to a LoRA"
        )
    return cutting


def shown_method(name: str, parameters: Mapping[str, Any]) -> str:
    """Returns the name under which results are grouped: the row's, for `peft` with the type (`peft LILY`)."""
    return f"{name} {parameters['peft_type']}" if name == any_type.NAME else name

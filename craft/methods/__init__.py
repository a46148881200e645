"""METHODS: every parameter-efficient method a run may use, one row each.

A file of this folder holds the parameters of a method or of a few similar ones, as pydantic models (without torch, so that a
sweep file is checked without loading anything heavy), and a `build` that turns a transformers model into the model that trains.
To add a method, add such a file and its row below; the contract tests run over every row. `method` defines what a row is, and
what rows share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from craft.methods import bottleneck, by_peft_name, craft_tucker, low_rank, whole
from craft.methods.cutting import Cutting
from craft.methods.method import Method
from craft.words import nearest

METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        *craft_tucker.METHODS,
        *whole.METHODS,
        *low_rank.METHODS,
        *bottleneck.METHODS,
        low_rank.IA3,
        by_peft_name.METHOD,
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
    return f"{name} {parameters['peft_type']}" if name == by_peft_name.NAME else name

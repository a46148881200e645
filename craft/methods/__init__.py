"""METHODS: every parameter-efficient method a run may use, one row each.

A row is a file in this folder: its parameters as a pydantic model (torch-free, so that a sweep file is checked without
loading anything heavy) and a `build` that turns a transformers model into the model that trains. Adding a method is adding
such a file and its row below; the contract tests run over every row.
"""

from __future__ import annotations

from craft.methods import (
    adalora,
    bottleneck,
    craft_tucker,
    fourierft,
    galore,
    ia3,
    lokr,
    lora,
    lora_xs,
    lotr,
    qlora,
    superlora,
    vblora,
    vera,
    whole,
)
from craft.methods.method import Method
from craft.words import nearest

METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        *craft_tucker.METHODS,
        *whole.METHODS,
        galore.METHOD,
        *lora.METHODS,
        qlora.METHOD,
        adalora.METHOD,
        lora_xs.METHOD,
        vera.METHOD,
        vblora.METHOD,
        lotr.METHOD,
        superlora.METHOD,
        *bottleneck.METHODS,
        lokr.METHOD,
        ia3.METHOD,
        fourierft.METHOD,
    )
}


def find_method(name: str) -> Method:
    """The row called `name`; a ValueError with the nearest names otherwise."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}.{nearest(name, METHODS)} Known methods: {', '.join(METHODS)}")
    return METHODS[name]

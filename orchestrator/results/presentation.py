"""The colours of methods and the words for phases: the same in the terminal, the picture and the page."""

from __future__ import annotations

import zlib
from collections.abc import Collection

# Okabe and Ito's colours without yellow and black, which vanish on a light and on a dark ground; the blue is a little lighter
# than theirs so that it holds on the dark one.
BLUE = "#1B80C4"
OKABE_ITO = ("#D55E00", BLUE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
MORE_COLOURS = ("#8E5FB5", "#8C6D00", "#17A3A3", "#B0414E", "#6F9A1F", "#5C6BC0", "#9C6B4E")
PALETTE = (*OKABE_ITO, *MORE_COLOURS)
FIXED_METHODS = (
    *("craft", "lora", "dora", "pissa", "vera", "lora_xs", "full"),
    *("head", "bitfit", "ia3", "rslora", "adalora", "craft_star", "houlsby"),
)
"""Methods that have PALETTE's colours, in its order, whichever others are drawn."""

PHASES = {
    "start": "starting",
    "load": "loading",
    "data": "data",
    "head": "fitting the head",
    "decompose": "decomposing",
    "train": "training",
    "score": "scoring",
    "cut": "cutting",
    "store": "storing",
}
"""Phases of a run (`craft.trainer.meter`), as they are shown."""


def colours(methods: Collection[str]) -> dict[str, str]:
    """Returns a colour for each method by its name. A method without a fixed one has the first that is free from a place on
    that its name decides, and shares it where there are more methods than colours."""
    chosen: dict[str, str] = {name: PALETTE[FIXED_METHODS.index(name)] for name in sorted(methods) if name in FIXED_METHODS}
    for name in sorted({*methods} - chosen.keys()):
        first = zlib.crc32(name.encode()) % len(PALETTE)
        places = (*PALETTE[first:], *PALETTE[:first])
        chosen[name] = next((colour for colour in places if colour not in chosen.values()), places[0])
    return chosen

"""The colours of methods and the words for phases: the same in the terminal, the picture and the page."""

from __future__ import annotations

from collections.abc import Iterable

# Okabe and Ito's colours without yellow and black, which vanish on a light and on a dark ground; the blue is a little lighter
# than theirs so that it holds on the dark one.
BLUE = "#1B80C4"
OKABE_ITO = ("#D55E00", BLUE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
MORE_COLOURS = ("#8E5FB5", "#8C6D00", "#17A3A3", "#B0414E", "#6F9A1F", "#5C6BC0", "#9C6B4E")
FIXED_METHODS = ("craft", "lora", "dora", "pissa", "vera", "lora_xs", "full")
"""Methods that always have the same colour."""

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


def colours(methods: Iterable[str]) -> dict[str, str]:
    """Returns a colour for each method: methods without a fixed one get the remaining colours in alphabetical order."""
    names = sorted(set(methods))
    fixed = {name: OKABE_ITO[FIXED_METHODS.index(name)] for name in names if name in FIXED_METHODS}
    free = [colour for colour in (*OKABE_ITO, *MORE_COLOURS) if colour not in fixed.values()]
    rest = [name for name in names if name not in fixed]
    return fixed | {name: free[number % len(free)] for number, name in enumerate(rest)}

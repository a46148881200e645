"""`sizes` of a block: the numbers of parameters to which each finished adapter is cut. Each is a configuration of its own.

sizes: [2000, 8000, 32000]      those that are smaller than the adapter
sizes: 4                        so many with the uncut one, evenly in the logarithm from an eighth of it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from craft.methods import find_cutting
from orchestrator.sweepfile.mistakes import Mistake, shown
from orchestrator.sweepfile.plain_yaml import YamlPath

SIZES = "sizes"
SPAN = 8
"""A number of sizes begins at an eighth of the adapter. Further down a small training of its own is often better."""
MOST = 100
SIZES_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 2, "maximum": MOST},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "maxItems": MOST, "uniqueItems": True},
    ]
}


def check_sizes(sizes: Any, method: str, path: YamlPath) -> list[Mistake]:
    if sizes is None:
        return []
    numbers = sizes if isinstance(sizes, list) else [sizes]
    positive = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in numbers)
    if isinstance(sizes, list):
        if not positive or not sizes or len(sizes) > MOST or len({*sizes}) < len(sizes):
            return [Mistake(path, f"got {shown(sizes)}; numbers of parameters, each once, as in [2000, 8000, 32000]")]
    elif not positive or not 2 <= sizes <= MOST:
        message = f"got {shown(sizes)}; how many sizes, with the uncut one (2 to {MOST}), or a list of them"
        return [Mistake(path, message)]
    try:
        find_cutting(method)
    except ValueError as error:
        return [Mistake(path, str(error))]
    return []


def sizes_within(sizes: list[int] | int | None, total: int) -> list[int]:
    """Returns the sizes that a block's `sizes` mean for an adapter of `total` parameters: those below it, ascending."""
    if isinstance(sizes, list):
        return sorted(size for size in sizes if size < total)
    evenly = {round(total * SPAN ** (at / (sizes - 1) - 1)) for at in range(sizes - 1)} if sizes else set()
    return sorted(size for size in evenly if 0 < size < total)


def size_labels(sizes: Sequence[int], total: int) -> list[str]:
    """Returns the labels of cuts: shares of the adapter, `1/8` or `35 %`, and the number itself where two shares are equal.

    What a cut leaves is at most its size and differs by seed, so a label with a number would contradict the parameters next to
    it in every table.
    """
    shares = []
    for size in sizes:
        parts = total / size
        shares.append(f"1/{parts:.0f}" if parts > 1.5 and abs(parts - round(parts)) < 0.02 * parts else f"{100 / parts:.3g} %")
    return [share if shares.count(share) == 1 else f"{size:,}" for share, size in zip(shares, sizes, strict=True)]

"""`sizes` of a block: the numbers of parameters to which each finished adapter is cut. Each is a configuration of its own.

sizes: [2000, 8000, 32000]      these, as far as they are smaller than the whole adapter
sizes: 4                        so many with the whole one, evenly in the logarithm from an eighth of it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from craft.methods import find_cutting
from craft.plain_yaml import YamlPath
from orchestrator.sweepfile.mistakes import Mistake, shown

SIZES = "sizes"
SPAN = 8
"""Where a number of sizes begins: an eighth of the whole. Further down a small training of its own is often better."""
MOST = 100


def check_sizes(given: Any, method: str, path: YamlPath) -> list[Mistake]:
    """Mistakes in the `sizes` of a block with this method."""
    numbers = given if isinstance(given, list) else [given]
    whole = all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in numbers)
    if isinstance(given, list):
        if not whole or not given or len(given) > MOST or len({*given}) < len(given):
            return [Mistake(path, f"got {shown(given)}; numbers of parameters, each once, as in [2000, 8000, 32000]")]
    elif not whole or not 2 <= given <= MOST:
        return [Mistake(path, f"got {shown(given)}; how many sizes with the whole one (2 to {MOST}), or a list of them")]
    try:
        find_cutting(method)
    except ValueError as error:
        return [Mistake(path, str(error))]
    return []


def sizes_within(sizes: list[int] | int | None, whole: int) -> list[int]:
    """The sizes below `whole` that a block's `sizes` mean for an adapter of so many parameters, ascending."""
    if isinstance(sizes, list):
        return sorted(size for size in sizes if size < whole)
    evenly = {round(whole * SPAN ** (at / (sizes - 1) - 1)) for at in range(sizes - 1)} if sizes else set()
    return sorted(size for size in evenly if 0 < size < whole)


def size_labels(sizes: Sequence[int], whole: int) -> list[str]:
    """The labels of cuts: shares of the whole adapter, `1/8` or `35 %`, and the number itself where two shares are equal.

    What a cut leaves is at most its size and differs by seed, so a label with a number would contradict the parameters next to
    it in every table.
    """
    shares = []
    for size in sizes:
        parts = whole / size
        shares.append(f"1/{parts:.0f}" if parts > 1.5 and abs(parts - round(parts)) < 0.02 * parts else f"{100 / parts:.3g} %")
    return [share if shares.count(share) == 1 else f"{size:,}" for share, size in zip(shares, sizes, strict=True)]

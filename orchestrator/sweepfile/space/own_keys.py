"""OWN_KEYS: the keys of a method block that are no dimensions, one row each; and `sizes`.

sizes: [2000, 8000, 32000]      the parameters to which each finished adapter is cut: those below the adapter's own
sizes: 4                        so many with the uncut one, evenly in the logarithm from an eighth of it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from craft.methods import find_cutting
from craft.settings import TrainingSettings
from orchestrator.sweepfile.mistakes import Mistake, find_mistakes, shown
from orchestrator.sweepfile.plain_yaml import YamlPath
from orchestrator.sweepfile.resources import Resources

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


REF = "#/$defs/"
TRAINING_BY_TASK = {
    "type": "object",
    "propertyNames": {"$ref": f"{REF}TaskOrSuite"},
    "additionalProperties": {"$ref": f"{REF}TrainingSettings"},
}


@dataclass(frozen=True)
class OwnKey:
    """A row of OWN_KEYS.

    Attributes:
        schema: the JSON Schema of its value.
        check: returns the mistakes in a value, from the value, the block's method and the value's path.
    """

    meaning: str
    schema: dict[str, Any]
    check: Callable[[Any, str, YamlPath], list[Mistake]]


def check_task_training(by_task: Any, method: str, path: YamlPath) -> list[Mistake]:
    if not isinstance(by_task, dict) or not all(isinstance(settings, dict) for settings in by_task.values()):
        return [Mistake(path, f"got {shown(by_task)}; settings by task, as in {{glue/rte: {{epochs: 80}}}}")]
    return [
        mistake for task, settings in by_task.items() for mistake in find_mistakes(TrainingSettings, settings, (*path, task))
    ]


def check_resources(amounts: Any, method: str, path: YamlPath) -> list[Mistake]:
    """Returns the mistakes in the amounts alone; `tasks.check_prerequisites` checks them with the file's `resources`."""
    if not isinstance(amounts, dict):
        return [Mistake(path, f"got {shown(amounts)}; amounts by name, as in {{gpu: 1, memory: 24 GiB}}")]
    return find_mistakes(Resources, amounts, path)


def check_flag(value: Any, method: str, path: YamlPath) -> list[Mistake]:
    return [] if isinstance(value, bool) else [Mistake(path, f"got {shown(value)}; must be true or false")]


FLAG = {"type": "boolean", "default": True}
OWN_KEYS = {
    "task_training": OwnKey(
        "Training settings of single tasks or suites for this block alone; they win over the file's.",
        TRAINING_BY_TASK,
        check_task_training,
    ),
    "warm_start": OwnKey(
        "`false`: the block's trials start from the model itself, whatever the file's `warm_start` says.", FLAG, check_flag
    ),
    "resources": OwnKey(
        "Amounts that the block's trials get in place of the file's `resources`.", {"$ref": f"{REF}Resources"}, check_resources
    ),
    SIZES: OwnKey(
        "Numbers of parameters to which each finished adapter is cut by SVD, or how many of them: each a result of its own.",
        SIZES_SCHEMA,
        check_sizes,
    ),
    "tuned": OwnKey(
        "`false` under `compare: fair`: the block's settings (a paper's) stay as they are, marked as not tuned.",
        FLAG,
        check_flag,
    ),
}

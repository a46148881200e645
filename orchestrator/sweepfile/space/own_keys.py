"""OWN_KEYS: the keys of a method block that are no dimensions, one row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from craft.settings import TrainingSettings
from orchestrator.sweepfile.mistakes import Mistake, find_mistakes, shown
from orchestrator.sweepfile.plain_yaml import YamlPath
from orchestrator.sweepfile.resources import Resources
from orchestrator.sweepfile.space.sizes import SIZES, SIZES_SCHEMA, check_sizes

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

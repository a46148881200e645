"""Reads the method blocks of a sweep file's `space`.

    learning_rate: 1e-3                                                      a fixed value
    learning_rate: {values: [1e-3, 1e-2]}                                    a choice
    learning_rate: {min: 1e-4, max: 1e-2, distribution: log_uniform}         a range

The keys of a block are its method's parameters, any training setting, and OWN_KEYS.
"""

from __future__ import annotations

from typing import Any

from craft.methods import METHODS
from craft.methods.method import Method
from craft.plain_yaml import YamlPath
from craft.settings import TrainingSettings, by_field, shown_names, spellings
from craft.words import nearest
from orchestrator.sweepfile.mistakes import Mistake, shown, unknown
from orchestrator.sweepfile.space.dimensions import Block, Dimension
from orchestrator.sweepfile.space.own_keys import OWN_KEYS
from orchestrator.sweepfile.space.reading import CONFIG, DimensionReader, check_together, parse_config


def parse_block(block: Any, index: int) -> tuple[Block | None, list[Mistake]]:
    """Returns the method block at `index` of the file's `space`, None if it is wrong; and its mistakes."""
    path: YamlPath = ("space", index)
    if not isinstance(block, dict):
        example = "{method: craft, ranks: [all, 8, 8]}"
        return None, [Mistake(path, f"got {shown(block)}; a method block is a mapping, as in {example}")]
    name = block.get("method")
    if name is None:
        return None, [Mistake(path, f"a method block names its method; methods: {', '.join(METHODS)}")]
    if not isinstance(name, str) or name not in METHODS:
        return None, [Mistake((*path, "method"), unknown("method", name, list(METHODS)))]
    block_keys = {key: block[key] for key in OWN_KEYS if key in block}
    mistakes = [mistake for key in block_keys for mistake in OWN_KEYS[key].check(block_keys[key], name, (*path, key))]
    dimensions = _parse_dimensions(block, METHODS[name], path, mistakes)
    mistakes = mistakes or check_together(dimensions, METHODS[name], path)
    if not mistakes and "task_training" in block_keys:
        by_task = {task: by_field(TrainingSettings, settings) for task, settings in block_keys["task_training"].items()}
        block_keys["task_training"] = by_task
        message = "given by the block for all tasks too, and this value would win; keep one"
        twice = [(task, key) for task, settings in by_task.items() for key in settings if key in dimensions]
        mistakes = [Mistake((*path, "task_training", *keys), message) for keys in twice]
    return (None if mistakes else Block(index, name, dimensions, **block_keys)), mistakes


def _parse_dimensions(block: dict[str, Any], method: Method, path: YamlPath, mistakes: list[Mistake]) -> dict[str, Dimension]:
    """Returns the block's dimensions by their canonical names, and adds to `mistakes`."""
    names = parameter_names(method)
    dimensions: dict[str, Dimension] = {}
    spelling: dict[str, str] = {}
    for key, value in block.items():
        if key in ("method", *OWN_KEYS):
            continue
        name = names.get(key)
        if name is None:
            message = (
                f"unknown key {shown(key)} for method {method.name}.{nearest(key, names)} "
                f"Its parameters: {', '.join(shown_names(method.parameters))}. "
                f"Training settings: {', '.join(shown_names(TrainingSettings))}. Also: {', '.join(OWN_KEYS)}"
            )
            mistakes.append(Mistake((*path, key), message))
        elif name == CONFIG:
            dimensions |= parse_config(value, block.get("peft_type"), (*path, key), mistakes)
        elif name in spelling:
            mistakes.append(Mistake((*path, key), f"is another name of {spelling[name]}, which this block has too; keep one"))
        else:
            spelling[name] = key
            model = method.parameters if name in method.parameters.model_fields else TrainingSettings
            if dimension := DimensionReader(key, name, model, mistakes).read(value, (*path, key)):
                dimensions[name] = dimension
    return dimensions


def parameter_names(method: Method) -> dict[str, str]:
    """Returns the canonical name of every key that a dimension may have. A parameter wins over a training setting."""
    return spellings(TrainingSettings) | spellings(method.parameters)

"""Reads the method blocks of a sweep file's `space`.

    learning_rate: 1e-3                                                      a fixed value
    learning_rate: {values: [1e-3, 1e-2]}                                    a choice
    learning_rate: {min: 1e-4, max: 1e-2, distribution: log_uniform}         a range

The keys of a block are its method's parameters, any training setting, and OWN_KEYS. `reading` reads the value of one key,
`inside` the `config` of a PEFT type.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from craft.methods import METHODS
from craft.methods.method import Method
from craft.plain_yaml import YamlPath
from craft.settings import TrainingSettings, by_field, shown_names, spellings
from craft.words import nearest
from orchestrator.sweepfile.mistakes import Mistake, from_pydantic, shown, unknown
from orchestrator.sweepfile.resources import Resources
from orchestrator.sweepfile.space.dimensions import Block, Dimension
from orchestrator.sweepfile.space.inside import CONFIG, check_together, parse_config
from orchestrator.sweepfile.space.reading import parse_dimension
from orchestrator.sweepfile.space.sizes import SIZES, check_sizes

OWN_KEYS = {
    "task_training": "Training settings of single tasks or suites for this block alone; they win over the file's.",
    "warm_start": "`false` makes the block's trials start afresh, whatever the file's `warm_start` says.",
    "resources": "Amounts that the block's trials get in place of the file's `resources`.",
    SIZES: "Numbers of parameters to which each finished adapter is cut by SVD, or how many of them: each a result of its own.",
    "tuned": "`false` under `compare: fair`: the block's settings (a paper's) stay as they are, marked as not tuned.",
}
"""Keys of a block that are no dimensions, and their meanings."""


def parse_block(content: Any, index: int) -> tuple[Block | None, list[Mistake]]:
    """The method block at `index` of the file's `space`, None if it is wrong; and its mistakes."""
    path: YamlPath = ("space", index)
    if not isinstance(content, dict):
        return None, [
            Mistake(path, f"got {shown(content)}; a method block is a mapping, as in {{method: craft, ranks: [all, 8, 8]}}")
        ]
    name = content.get("method")
    if name is None:
        return None, [Mistake(path, f"a method block names its method; methods: {', '.join(METHODS)}")]
    if not isinstance(name, str) or name not in METHODS:
        return None, [Mistake((*path, "method"), unknown("method", name, list(METHODS)))]
    method = METHODS[name]
    names = parameter_names(method)
    mistakes: list[Mistake] = []
    dimensions: dict[str, Dimension] = {}
    own, wrong = _parse_own(content, path)
    mistakes += wrong
    for key, value in content.items():
        if key in ("method", *OWN_KEYS):
            continue
        canonical = names.get(key)
        if canonical is None:
            message = (
                f"unknown key {shown(key)} for method {name}.{nearest(key, names)} "
                f"Its parameters: {', '.join(shown_names(method.parameters))}. "
                f"Training settings: {', '.join(shown_names(TrainingSettings))}. Also: {', '.join(OWN_KEYS)}"
            )
            mistakes.append(Mistake((*path, key), message))
        elif canonical == CONFIG:
            inside, wrong = parse_config(value, content.get("peft_type"), (*path, key))
            mistakes += wrong
            dimensions |= inside
        elif canonical in dimensions:
            mistakes.append(Mistake((*path, key), f"the same parameter as {canonical}, which this block gives too; keep one"))
        else:
            model = method.parameters if canonical in method.parameters.model_fields else TrainingSettings
            dimension, wrong = parse_dimension(value, (*path, key), key, canonical, model)
            mistakes += wrong
            if dimension is not None:
                dimensions[canonical] = dimension
    mistakes += [] if mistakes else check_together(dimensions, method, path)
    for task, settings in (own.get("task_training") or {}).items() if not mistakes else ():
        mistakes += [
            Mistake(
                (*path, "task_training", task, key),
                "given by the block for all tasks too, and this value would win; keep one",
            )
            for key in settings
            if key in dimensions
        ]
    return (None if mistakes else Block(index, name, dimensions, **own)), mistakes


def _parse_own(content: dict[str, Any], path: YamlPath) -> tuple[dict[str, Any], list[Mistake]]:
    """The values of the block's OWN_KEYS, and their mistakes. `checks.tasks` checks that the named tasks exist."""
    own = {key: content[key] for key in OWN_KEYS if key in content}
    mistakes: list[Mistake] = []
    if not isinstance(own.get("warm_start", True), bool):
        mistakes.append(Mistake((*path, "warm_start"), f"got {shown(own['warm_start'])}; false where its runs start afresh"))
    if not isinstance(own.get("tuned", True), bool):
        mistakes.append(Mistake((*path, "tuned"), f"got {shown(own['tuned'])}; false where its settings stay as they are"))
    mistakes += _check_resources(own.get("resources", {}), (*path, "resources"))
    if own.get(SIZES) is not None:
        mistakes += check_sizes(own[SIZES], content["method"], (*path, SIZES))
    by_task = own.get("task_training", {})
    if not isinstance(by_task, dict) or not all(isinstance(one, dict) for one in by_task.values()):
        message = f"got {shown(by_task)}; settings by task, as in {{glue/rte: {{epochs: 80}}}}"
        return own, [*mistakes, Mistake((*path, "task_training"), message)]
    for task, settings in by_task.items():
        try:
            TrainingSettings.model_validate(settings)
        except ValidationError as error:
            mistakes += from_pydantic(error, TrainingSettings, (*path, "task_training", task))
    if by_task:
        own["task_training"] = {task: by_field(TrainingSettings, settings) for task, settings in by_task.items()}
    return own, mistakes


def _check_resources(given: Any, path: YamlPath) -> list[Mistake]:
    """Mistakes in a block's resources alone; `checks.tasks` checks them together with the file's `resources`."""
    if not isinstance(given, dict):
        return [Mistake(path, f"got {shown(given)}; amounts by name, as in {{gpu: 1, memory: 24 GiB}}")]
    try:
        Resources.model_validate(given)
    except ValidationError as error:
        return from_pydantic(error, Resources, path)
    return []


def parameter_names(method: Method) -> dict[str, str]:
    """Every key that a dimension of `method` may have -> its canonical name. A parameter wins over a training setting."""
    return spellings(TrainingSettings) | spellings(method.parameters)

"""Reads the method blocks of a sweep file's `space`.

    learning_rate: 1e-3                                                      a fixed value
    learning_rate: {values: [1e-3, 1e-2]}                                    a choice
    learning_rate: {min: 1e-4, max: 1e-2, distribution: log_uniform}         a range
    ranks: {nested: [[all, 16, 16], [all, 32, 32]]}                          a fixed value: see orchestrator.sweepfile.nested

The keys of a block are its method's parameters, any training setting, and OWN_KEYS. The model that receives a value checks it
here, each value alone; the plan checks combinations of values.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from craft.methods import METHODS
from craft.methods.method import Method
from craft.plain_yaml import YamlPath
from craft.settings import Settings, TrainingSettings, by_field, shown_names, spellings
from craft.words import nearest
from orchestrator.sweepfile.mistakes import Mistake, from_pydantic, shown, unknown
from orchestrator.sweepfile.nested import EXAMPLE, KEY, check_nested, is_nested
from orchestrator.sweepfile.resources import Resources
from orchestrator.sweepfile.space import Block, Choice, Dimension, Range

DISTRIBUTIONS: dict[str, str] = {
    "uniform": "any number from min to max",
    "log_uniform": "a number whose logarithm is uniform, for learning rates",
    "int_uniform": "any whole number from min to max",
    "int_log_uniform": "a whole number, small ones more often, for ranks",
}
_RANGE_KEYS = ("values", "min", "max", "distribution")
MAX_VALUES = 1000
OWN_KEYS = {
    "task_training": "Training settings of single tasks or suites for this block alone; they win over the file's.",
    "warm_start": "`false` makes the block's trials start afresh, whatever the file's `warm_start` says.",
    "resources": "Amounts that the block's trials get in place of the file's `resources`.",
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
        if key == KEY and KEY in method.parameters.model_fields:
            message = f"is no key of a block; nested ranks are a value of ranks, as in {EXAMPLE}"
            mistakes.append(Mistake((*path, key), message))
        elif canonical is None:
            message = (
                f"unknown key {shown(key)} for method {name}.{nearest(key, names)} "
                f"Its parameters: {', '.join(name for name in method.parameters.model_fields if name != KEY)}. "
                f"Training settings: {', '.join(shown_names(TrainingSettings))}. Also: {', '.join(OWN_KEYS)}"
            )
            mistakes.append(Mistake((*path, key), message))
        elif canonical in dimensions:
            mistakes.append(Mistake((*path, key), f"the same parameter as {canonical}, which this block gives too; keep one"))
        else:
            model = method.parameters if canonical in method.parameters.model_fields else TrainingSettings
            dimension, wrong = _parse_dimension(value, (*path, key), key, canonical, model)
            mistakes += wrong
            if dimension is not None:
                dimensions[canonical] = dimension
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
    """The values of the block's OWN_KEYS, and their mistakes. `task_checks` checks that the named tasks exist."""
    own = {key: content[key] for key in OWN_KEYS if key in content}
    mistakes: list[Mistake] = []
    if not isinstance(own.get("warm_start", True), bool):
        mistakes.append(Mistake((*path, "warm_start"), f"got {shown(own['warm_start'])}; false where its runs start afresh"))
    mistakes += _check_resources(own.get("resources", {}), (*path, "resources"))
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
    """Mistakes in a block's resources alone; `task_checks` checks them together with the file's `resources`."""
    if not isinstance(given, dict):
        return [Mistake(path, f"got {shown(given)}; amounts by name, as in {{gpu: 1, memory: 24 GiB}}")]
    try:
        Resources.model_validate(given)
    except ValidationError as error:
        return from_pydantic(error, Resources, path)
    return []


def parameter_names(method: Method) -> dict[str, str]:
    """Every key that a dimension of `method` may have -> its canonical name. A parameter wins over a training setting.
    Nested ranks are a value of `ranks`."""
    found = spellings(TrainingSettings) | spellings(method.parameters)
    return {key: name for key, name in found.items() if name != KEY}


def _parse_dimension(
    value: Any, path: YamlPath, key: str, canonical: str, model: type[Settings]
) -> tuple[Dimension | None, list[Mistake]]:
    if not isinstance(value, dict) or is_nested(value):
        checked, mistakes = _check(value, path, key, canonical, model)
        return Choice((checked,)), mistakes
    if not any(word in value for word in _RANGE_KEYS):
        checked, mistakes = _check(value, path, key, canonical, model)  # a fixed value that is a mapping
        if mistakes:
            hints = [f"{shown(word)}:{nearest(word, _RANGE_KEYS)}" for word in value if nearest(word, _RANGE_KEYS)]
            hint = f" {'; '.join(hints)}" if hints else ""
            mistakes = [
                Mistake(path, f"got the mapping {shown(value)}; a searched dimension has values, or min and max.{hint}")
            ]
        return Choice((checked,)), mistakes
    strange = [word for word in value if word not in _RANGE_KEYS]
    if strange:
        return None, [
            Mistake(
                (*path, word), f"unknown key {shown(word)}.{nearest(word, _RANGE_KEYS)} Allowed here: {', '.join(_RANGE_KEYS)}"
            )
            for word in strange
        ]
    if "values" in value:
        return _parse_choice(value, path, key, canonical, model)
    return _parse_range(value, path, key, canonical, model)


def _parse_choice(
    value: dict[str, Any], path: YamlPath, key: str, canonical: str, model: type[Settings]
) -> tuple[Dimension | None, list[Mistake]]:
    values = value["values"]
    if len(value) > 1:
        return None, [Mistake(path, f"give either values or a range; got {', '.join(value)}")]
    if not isinstance(values, list):
        return None, [Mistake((*path, "values"), f"got {shown(values)}; values is a list of at least one value")]
    if not values:
        return None, [Mistake((*path, "values"), "is empty, so the space is empty; give at least one value, or drop the key")]
    if len(values) > MAX_VALUES:
        return None, [Mistake((*path, "values"), f"{len(values)} values; at most {MAX_VALUES} are allowed")]
    checked, mistakes = [], []
    for index, one in enumerate(values):
        good, wrong = _check(one, (*path, "values", index), key, canonical, model)
        checked.append(good)
        mistakes += wrong
    return Choice(tuple(checked)), mistakes


def _parse_range(
    value: dict[str, Any], path: YamlPath, key: str, canonical: str, model: type[Settings]
) -> tuple[Dimension | None, list[Mistake]]:
    for end in ("min", "max"):
        if end not in value:
            return None, [Mistake(path, f"{end} is missing; a range has min and max")]
        if isinstance(value[end], bool) or not isinstance(value[end], int | float):
            return None, [Mistake((*path, end), f"got {shown(value[end])}; must be a number (other values: give values)")]
    low, high = value["min"], value["max"]
    whole = isinstance(low, int) and isinstance(high, int)
    distribution = value.get("distribution", "int_uniform" if whole else "uniform")
    if not isinstance(distribution, str) or distribution not in DISTRIBUTIONS:
        return None, [Mistake((*path, "distribution"), unknown("distribution", distribution, list(DISTRIBUTIONS)))]
    mistakes = []
    if low > high:
        mistakes.append(Mistake((*path, "min"), f"min {low:g} is larger than max {high:g}"))
    if "log" in distribution and low <= 0:
        mistakes.append(Mistake((*path, "min"), f"got {low:g}; {distribution} needs min above 0"))
    if distribution.startswith("int_") and not whole:
        mistakes.append(Mistake(path, f"{distribution} needs whole numbers; got {low:g} to {high:g}"))
    for end in ("min", "max"):
        mistakes += _check(value[end], (*path, end), key, canonical, model)[1]
    if not mistakes and not distribution.startswith("int_"):
        # A setting that takes only whole numbers would refuse most numbers of the range.
        between = low + (high - low) * 0.123456789
        if between not in (low, high) and _check(between, path, key, canonical, model)[1]:
            mistakes.append(
                Mistake(path, f"{canonical} takes whole numbers; use int_uniform or int_log_uniform, or give values")
            )
    return Range(float(low), float(high), distribution), mistakes


def _check(value: Any, path: YamlPath, key: str, canonical: str, model: type[Settings]) -> tuple[Any, list[Mistake]]:
    """`value` as `model` converts it for the field `canonical`, which the file calls `key`; and its mistakes."""
    if is_nested(value):
        return check_nested(value, path, canonical, model)
    try:
        whole = model.model_validate({key: value})
    except ValidationError as error:
        mistakes = from_pydantic(error, model)
        names = {key, canonical}
        own = [Mistake((*path, *one.path[1:]), one.message) for one in mistakes if one.path and one.path[0] in names]
        return value, own
    return whole.model_dump(mode="json")[canonical], []

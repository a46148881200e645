"""Reads one dimension of a method block: a fixed value, a choice or a range.

The model that receives the values checks each of them alone; the plan checks combinations of values.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from craft.plain_yaml import YamlPath
from craft.settings import Settings
from craft.words import nearest
from orchestrator.sweepfile.mistakes import Mistake, from_pydantic, shown, unknown
from orchestrator.sweepfile.space.dimensions import Choice, Dimension, Range

DISTRIBUTIONS: dict[str, str] = {
    "uniform": "any number from min to max",
    "log_uniform": "a number whose logarithm is uniform, for learning rates",
    "int_uniform": "any whole number from min to max",
    "int_log_uniform": "a whole number, small ones more often, for ranks",
}
_RANGE_KEYS = ("values", "min", "max", "distribution")
MAX_VALUES = 1000


def parse_dimension(
    value: Any, path: YamlPath, key: str, canonical: str, model: type[Settings]
) -> tuple[Dimension | None, list[Mistake]]:
    """The dimension that `value`, at `path` of the file, describes, None if it is wrong; and its mistakes.

    Args:
        key: the dimension's name in the file.
        canonical: its name in `model`.
        model: takes its values.
    """
    if not isinstance(value, dict):
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
    try:
        whole = model.model_validate({key: value})
    except ValidationError as error:
        mistakes = from_pydantic(error, model)
        names = {key, canonical}
        own = [Mistake((*path, *one.path[1:]), one.message) for one in mistakes if one.path and one.path[0] in names]
        return value, own
    return whole.model_dump(mode="json")[canonical], []

"""The search space: a list of method blocks, each a box of dimensions of its own, enumerated or sampled.

A dimension is what W&B would call one: `{values: [...]}` for a choice, `{min: ..., max: ..., distribution: ...}` for a range;
everything else is a fixed value, a choice of one. A block's keys are its method's parameters and any training setting. Each
value is checked alone against the model that will receive it, when the file is read; combinations are checked by the plan.
A *point* is one value for every dimension of one block.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import AliasChoices, ValidationError

from craft.methods import METHODS
from craft.methods.method import Method
from craft.plain_yaml import YamlPath
from craft.settings import Settings, TrainingSettings
from craft.words import nearest
from orchestrator.sweepfile.mistakes import Mistake, from_pydantic, shown, unknown
from orchestrator.sweepfile.resources import Resources

DISTRIBUTIONS: dict[str, str] = {
    "uniform": "any number between min and max",
    "log_uniform": "its logarithm is uniform: for learning rates",
    "int_uniform": "any whole number from min to max, both included",
    "int_log_uniform": "whole numbers, small ones more often: for ranks",
}
_RANGE_KEYS = ("values", "min", "max", "distribution")
MAX_VALUES = 1000
OWN_KEYS = {
    "task_training": "Training settings of single tasks or suites for this block alone; they win over the file's.",
    "warm_start": "`false` makes the block's trials start afresh, whatever the file's `warm_start` says.",
    "resources": "Amounts that the block's trials get in place of the file's `resources`.",
}
"""Keys of a block that are no dimensions, and their meanings."""


@dataclass(frozen=True)
class Choice:
    """One of `values`; a fixed value is a choice of one."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`, both included."""

    low: float
    high: float
    distribution: str

    @property
    def ends(self) -> tuple[float | int, float | int]:
        whole = self.distribution.startswith("int_")
        return (int(self.low), int(self.high)) if whole else (self.low, self.high)

    def draw(self, generator: random.Random) -> float | int:
        low, high = self.low, self.high
        if self.distribution == "uniform":
            return generator.uniform(low, high)
        if self.distribution == "log_uniform":
            return min(max(math.exp(generator.uniform(math.log(low), math.log(high))), low), high)
        if self.distribution == "int_uniform":
            return generator.randint(int(low), int(high))
        # Half a step of room on both sides gives the two ends the weight of their neighbours.
        drawn = math.exp(generator.uniform(math.log(low - 0.5), math.log(high + 0.5)))
        return min(max(round(drawn), int(low)), int(high))


Dimension = Choice | Range


@dataclass(frozen=True)
class Block:
    """One method block: `dimensions` by the canonical names of the method's parameters and of training settings.

    `task_training` are settings of single tasks for this method alone, as published runs have them; `warm_start` is False
    where its runs start afresh whatever the sweep's `warm_start` says; `resources` are amounts its trials get in place of the
    sweep's.
    """

    index: int
    method: str
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    task_training: dict[str, dict[str, Any]] = field(default_factory=dict)
    warm_start: bool = True
    resources: dict[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> dict[str, Any]:
        """What it says of its runs beside its dimensions, as far as it says something. What they run on is no part of them."""
        own: dict[str, Any] = {"task_training": self.task_training} if self.task_training else {}
        return own if self.warm_start else own | {"warm_start": False}

    @property
    def path(self) -> YamlPath:
        return ("space", self.index)

    @property
    def ranges(self) -> list[str]:
        return [name for name, dimension in self.dimensions.items() if isinstance(dimension, Range)]

    @property
    def size(self) -> int:
        """How many points the block's choices span, its ranges left aside."""
        return math.prod(len(one.values) for one in self.dimensions.values() if isinstance(one, Choice))


@dataclass(frozen=True)
class Point:
    """One value for every dimension of the block with index `block`: `parameters` of the method, `training` settings."""

    block: int
    method: str
    parameters: dict[str, Any]
    training: dict[str, Any]


def grid(blocks: tuple[Block, ...]) -> Iterator[Point]:
    """Every combination of every block, in the order of the file, the last dimension fastest.

    Raises:
        ValueError: a block has a range, which a grid cannot enumerate.
    """
    for block in blocks:
        if block.ranges:
            raise ValueError(f"space.{block.index}: {', '.join(block.ranges)} cannot be enumerated; give values")
        names = list(block.dimensions)
        for values in itertools.product(*(one.values for one in block.dimensions.values() if isinstance(one, Choice))):
            yield point(block, dict(zip(names, values, strict=True)))


def sample(blocks: tuple[Block, ...], seed: int) -> Iterator[Point]:
    """Points drawn without end: a block first, each as likely as the next, then each of its dimensions.

    The first n points are the same however many are asked for, so that a sweep can be extended.
    """
    generator = random.Random(seed)
    while True:
        block = generator.choice(blocks)
        yield point(
            block,
            {
                name: generator.choice(one.values) if isinstance(one, Choice) else one.draw(generator)
                for name, one in block.dimensions.items()
            },
        )


def neighbours(blocks: tuple[Block, ...], near: Point, seed: int) -> Iterator[Point]:
    """Points of the same block that differ from `near` in one dimension: every other value, a few draws of a range."""
    generator = random.Random(seed)
    block = next(one for one in blocks if one.index == near.block)
    values = {**near.parameters, **near.training}
    for name, one in block.dimensions.items():
        others = one.values if isinstance(one, Choice) else [one.draw(generator) for _ in range(3)]
        yield from (point(block, {**values, name: other}) for other in others if other != values[name])


def covering(blocks: tuple[Block, ...]) -> Iterator[Point]:
    """A few points in which every value of every choice and both ends of every range occur: what can be checked beforehand of
    a space that is searched later."""
    for block in blocks:
        columns = {name: one.values if isinstance(one, Choice) else one.ends for name, one in block.dimensions.items()}
        for row in range(max((len(column) for column in columns.values()), default=1)):
            yield point(block, {name: column[row % len(column)] for name, column in columns.items()})


def point(block: Block, values: dict[str, Any]) -> Point:
    """The point of `block` with `values`, told apart into the method's parameters and training settings."""
    own = METHODS[block.method].parameters.model_fields
    return Point(
        block.index,
        block.method,
        {name: value for name, value in values.items() if name in own},
        {name: value for name, value in values.items() if name not in own},
    )


def parse_block(content: Any, index: int) -> tuple[Block | None, list[Mistake]]:
    """A method block of the file's `space`, and what is wrong with it."""
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
                f"Its parameters: {', '.join(method.parameters.model_fields)}. "
                f"Training settings: {', '.join(TrainingSettings.model_fields)}. Also: {', '.join(OWN_KEYS)}"
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
                (*path, "task_training", task, key), "is given by the block for all tasks too, and this would win; keep one"
            )
            for key in settings
            if key in dimensions
        ]
    return (None if mistakes else Block(index, name, dimensions, **own)), mistakes


def _parse_own(content: dict[str, Any], path: YamlPath) -> tuple[dict[str, Any], list[Mistake]]:
    """What a block says beside its dimensions. Whether the tasks exist is for the whole file to say."""
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
    return own, mistakes


def _check_resources(given: Any, path: YamlPath) -> list[Mistake]:
    """What is wrong with a block's resources by themselves; together with the sweep's they are checked with the whole file."""
    if not isinstance(given, dict):
        return [Mistake(path, f"got {shown(given)}; amounts by name, as in {{gpu: 1, memory: 24 GiB}}")]
    try:
        Resources.model_validate(given)
    except ValidationError as error:
        return from_pydantic(error, Resources, path)
    return []


def parameter_names(method: Method) -> dict[str, str]:
    """Every key a block of `method` may have -> its canonical name. The method's own parameter wins over a training setting."""
    names = {field_name: field_name for field_name in TrainingSettings.model_fields}
    for field_name, info in method.parameters.model_fields.items():
        names[field_name] = field_name
        alias = info.validation_alias
        if isinstance(alias, AliasChoices):
            names |= {str(one): field_name for one in alias.choices}
        elif isinstance(alias, str):
            names[alias] = field_name
    return names


def _parse_dimension(
    value: Any, path: YamlPath, key: str, canonical: str, model: type[Settings]
) -> tuple[Dimension | None, list[Mistake]]:
    if not isinstance(value, dict):
        checked, mistakes = _check(value, path, key, canonical, model)
        return Choice((checked,)), mistakes
    if not any(word in value for word in _RANGE_KEYS):
        checked, mistakes = _check(value, path, key, canonical, model)  # a parameter that is a mapping, fixed
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
        # A setting that takes whole numbers only would refuse most of what the range gives.
        between = low + (high - low) * 0.123456789
        if between not in (low, high) and _check(between, path, key, canonical, model)[1]:
            mistakes.append(
                Mistake(path, f"{canonical} takes whole numbers; use int_uniform or int_log_uniform, or give values")
            )
    return Range(float(low), float(high), distribution), mistakes


def _check(value: Any, path: YamlPath, key: str, canonical: str, model: type[Settings]) -> tuple[Any, list[Mistake]]:
    """`value` as `model` understands it for the field `canonical` (written `key`), and what is wrong with it."""
    try:
        whole = model.model_validate({key: value})
    except ValidationError as error:
        mistakes = from_pydantic(error, model)
        names = {key, canonical}
        own = [Mistake((*path, *one.path[1:]), one.message) for one in mistakes if one.path and one.path[0] in names]
        return value, own
    return whole.model_dump(mode="json")[canonical], []

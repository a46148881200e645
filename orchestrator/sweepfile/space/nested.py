"""Nested ranks in a sweep file: one value of the dimension `ranks`, of which each triple becomes a configuration of its own.

    ranks: {nested: [[all, 16, 16], [all, 32, 32]]}                       one training, two configurations
    ranks: {values: [[all, 8, 8], {nested: [[all, 16, 16], [all, 32, 32]]}]}   beside ranks that are trained alone

A block keeps the value as it is written. The plan makes a point for each triple of it: `slices_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from craft.methods import METHODS
from craft.methods.nested import checked_chain
from craft.plain_yaml import YamlPath
from orchestrator.sweepfile.mistakes import Mistake, from_pydantic, shown
from orchestrator.sweepfile.space.dimensions import Block, Choice, Point

KEY, RANKS, WAY = "nested", "ranks", "nested_training"
EXAMPLE = "ranks: {nested: [[all, 16, 16], [all, 32, 32]]}"


def is_nested(value: Any) -> bool:
    """Whether a value of a dimension is written as nested ranks."""
    return isinstance(value, dict) and KEY in value


def check_nested(value: dict[str, Any], path: YamlPath, name: str, model: type[BaseModel]) -> tuple[Any, list[Mistake]]:
    """Nested ranks with their triples in ascending order; and their mistakes.

    Args:
        name: the dimension that has the value.
        model: takes the dimension.
    """
    if name != RANKS or KEY not in model.model_fields:
        able = [method for method, row in METHODS.items() if KEY in row.parameters.model_fields]
        message = f"ranks nest, and {name} does not; methods with such ranks: {', '.join(able)}, as in {EXAMPLE}"
        return value, [Mistake((*path, KEY), message)]
    strange = [word for word in value if word != KEY]
    if strange:
        message = f"unknown key {shown(strange[0])} beside nested, which stands alone; {WAY} is a key of the block"
        return value, [Mistake((*path, strange[0]), message)]
    triples = value[KEY]
    if not isinstance(triples, list) or not triples:
        return value, [Mistake((*path, KEY), f"got {shown(triples)}; must be a list of one or more triples, as in {EXAMPLE}")]
    mistakes: list[Mistake] = []
    read = []
    for index, triple in enumerate(triples):
        if not isinstance(triple, list) or len(triple) != 3:
            mistakes.append(Mistake((*path, KEY, index), f"got {shown(triple)}; must be three ranks, as in [all, 16, 16]"))
            continue
        try:
            read.append(model.model_validate({RANKS: triple}).model_dump()[RANKS])
        except ValidationError as error:
            mistakes += [
                Mistake((*path, KEY, index, *one.path[1:]), one.message)
                for one in from_pydantic(error, model)
                if one.path and one.path[0] == RANKS
            ]
    if mistakes:
        return value, mistakes
    try:
        chain = checked_chain(read)
    except ValueError as error:
        return value, [Mistake((*path, KEY), str(error))]
    return {KEY: [list(triple) for triple in chain]}, []


def nested_place(blocks: Sequence[Block]) -> YamlPath | None:
    """Where the first block with nested ranks has them; None if none has."""
    return next(((*block.path, RANKS) for block in blocks if has_nested(block)), None)


def has_nested(block: Block) -> bool:
    """Whether nested ranks are among the values of the block."""
    ranks = block.dimensions.get(RANKS)
    return isinstance(ranks, Choice) and any(map(is_nested, ranks.values))


def triples_of(point: Point) -> list[list[int | str]] | None:
    """The nested ranks of a point, ascending; None if its ranks are trained alone."""
    ranks = point.parameters.get(RANKS)
    return list(ranks[KEY]) if isinstance(ranks, dict) and is_nested(ranks) else None


def slices_of(point: Point, triples: Sequence[Sequence[int | str]]) -> list[Point]:
    """A point for each of the triples, ascending, all to be trained together by the last one."""
    chain = [list(triple) for triple in triples]
    return [replace(point, parameters={**point.parameters, RANKS: one, KEY: chain}) for one in chain]


def alone(point: Point) -> Point:
    """A point of ranks that are trained alone, beside nested ones in its block: the way to train those says nothing to it."""
    return replace(point, parameters={name: value for name, value in point.parameters.items() if name != WAY})

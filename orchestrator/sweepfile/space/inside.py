"""The `config` of a PEFT type in a method block: each of its keys is a dimension, by PEFT's own name.

    - method: peft
      peft_type: LILY
      config: {r: {values: [4, 8]}, num_B: 3, scaling: {min: 0.5, max: 2.0}}
                                                              dimensions config.r, config.num_B, config.scaling

PEFT is imported here, for such a block alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from craft.methods.method import Method
from craft.plain_yaml import YamlPath
from orchestrator.sweepfile.mistakes import Mistake, shown
from orchestrator.sweepfile.space.dimensions import CONFIG, Block, Choice, Dimension, covering
from orchestrator.sweepfile.space.reading import parse_dimension

TYPE = "peft_type"


def parse_config(content: Any, peft_type: Any, path: YamlPath) -> tuple[dict[str, Dimension], list[Mistake]]:
    """The dimensions inside `config`, as `config.KEY`, and their mistakes; none if the type is wrong, which is told there."""
    if not isinstance(content, dict):
        return {}, [Mistake(path, f"got {shown(content)}; PEFT's parameters by name, as in {{r: 8}}")]
    from craft.methods.from_peft.installed import config_model, find_type, unknown_key

    try:
        kind = find_type(peft_type)
    except (ValueError, AttributeError):
        return {}, []
    model = config_model(kind)
    dimensions: dict[str, Dimension] = {}
    mistakes: list[Mistake] = []
    for key, value in content.items():
        if key not in model.model_fields:
            mistakes.append(Mistake((*path, key), unknown_key(kind, key)))
            continue
        dimension, wrong = parse_dimension(value, (*path, key), key, key, model)
        mistakes += wrong
        if dimension is not None:
            dimensions[f"{CONFIG}.{key}"] = dimension
    return dimensions, mistakes


def check_together(dimensions: Mapping[str, Dimension], method: Method, path: YamlPath) -> list[Mistake]:
    """What PEFT says against the values of a block, at the key that PEFT would take the others without.

    A few combinations hold every value; the plan tries the others.
    """
    if TYPE not in method.parameters.model_fields:
        return []
    kind = dimensions.get(TYPE)
    if not isinstance(kind, Choice) or len(kind.values) != 1:
        return [
            Mistake((*path, TYPE), "a block names one type of PEFT, as in peft_type: LILY, because each has keys of its own")
        ]
    from craft.methods.from_peft.installed import guilty_key, whole_config

    for point in covering((Block(int(path[1]), method.name, dict(dimensions)),)):
        config = point.parameters.get(CONFIG, {})
        try:
            whole_config(kind.values[0], config)
        except ValueError as error:
            key = guilty_key(kind.values[0], config)
            place = (*path, CONFIG) if key is None else (*path, CONFIG, key)
            return [Mistake(place, str(error))]
    return []

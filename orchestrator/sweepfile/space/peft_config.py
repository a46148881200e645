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
from orchestrator.sweepfile.space.reading import DimensionReader

TYPE = "peft_type"


def parse_config(config: Any, peft_type: Any, path: YamlPath, mistakes: list[Mistake]) -> dict[str, Dimension]:
    """Returns the dimensions inside `config`, as `config.KEY`, and adds to `mistakes`.

    There are none if the type is wrong, which is a mistake of the type's own key.
    """
    if not isinstance(config, dict):
        mistakes.append(Mistake(path, f"got {shown(config)}; PEFT's parameters by name, as in {{r: 8}}"))
        return {}
    from craft.methods.from_peft.installed import config_model, find_type, unknown_key

    try:
        kind = find_type(peft_type)
    except (ValueError, AttributeError):
        return {}
    model = config_model(kind)
    dimensions: dict[str, Dimension] = {}
    for key, value in config.items():
        if key not in model.model_fields:
            mistakes.append(Mistake((*path, key), unknown_key(kind, key)))
        elif dimension := DimensionReader(key, key, model, mistakes).read(value, (*path, key)):
            dimensions[f"{CONFIG}.{key}"] = dimension
    return dimensions


def check_together(dimensions: Mapping[str, Dimension], method: Method, path: YamlPath) -> list[Mistake]:
    """Returns what PEFT says against the values of a block, at the key without which PEFT would take the other values.

    A few combinations hold every value; the plan tries the rest.
    """
    if TYPE not in method.parameters.model_fields:
        return []
    kind = dimensions.get(TYPE)
    if not isinstance(kind, Choice) or len(kind.values) != 1:
        message = "a block names one type of PEFT, as in peft_type: LILY, because each has keys of its own"
        return [Mistake((*path, TYPE), message)]
    from craft.methods.from_peft.installed import guilty_key, whole_config

    for point in covering((Block(int(path[1]), method.name, dict(dimensions)),)):
        config = point.parameters.get(CONFIG, {})
        try:
            whole_config(kind.values[0], config)
        except ValueError as error:
            key = guilty_key(kind.values[0], config)
            return [Mistake((*path, CONFIG) if key is None else (*path, CONFIG, key), str(error))]
    return []

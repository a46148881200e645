"""Reads the method blocks of a sweep file's `space`.

    learning_rate: 1e-3                                                      a fixed value
    learning_rate: {values: [1e-3, 1e-2]}                                    a choice
    learning_rate: {min: 1e-4, max: 1e-2, distribution: log_uniform}         a range

The keys of a block are its method's parameters, any training setting, and OWN_KEYS. The model that receives the values checks
each of them alone; the plan checks combinations of values. Each key of the `config` of a PEFT type is a dimension, by PEFT's
own name; PEFT is imported for such a block alone:

    - method: peft
      peft_type: LILY
      config: {r: {values: [4, 8]}, num_B: 3, scaling: {min: 0.5, max: 2.0}}
                                                              dimensions config.r, config.num_B, config.scaling

`OwnKeys` are the keys of a block that are no dimensions, `sizes` among them:

    sizes: [2000, 8000, 32000]      the parameters to which each finished adapter is cut: those below the adapter's own
    sizes: 4                        so many with the uncut one, evenly in the logarithm from an eighth of it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, StrictBool, ValidationError, field_validator

from craft.methods import METHODS, find_cutting
from craft.methods.method import Method
from craft.settings import Settings, TrainingSettings
from craft.words import nearest
from orchestrator.sweepfile.mistakes import (
    Mistake,
    YamlPath,
    by_field,
    find_mistakes,
    from_pydantic,
    is_number,
    shown,
    shown_names,
    spellings,
    unknown,
)
from orchestrator.sweepfile.resources import Resources
from orchestrator.sweepfile.space.dimensions import CONFIG, Block, Choice, Dimension, Range, covering

SIZES = "sizes"

SPAN = 8
"""A number of sizes begins at an eighth of the adapter. Further down a small training of its own is often better."""

MOST = 100


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


class OwnKeys(Settings):
    """The keys of a method block that are no dimensions."""

    task_training: dict[str, TrainingSettings] = Field(
        {},
        description="`training` settings of single tasks, for this block.",
    )
    warm_start: StrictBool = Field(True, description="`false`: no warm start for the block.")
    resources: Resources = Field(default_factory=Resources, description="Resources of the block's trials.")
    sizes: Any = Field(
        None,
        description="Sizes to which each adapter is cut ([taking-it-home.md](taking-it-home.md)).",
        json_schema_extra={
            "anyOf": [
                {"type": "integer", "minimum": 2, "maximum": MOST},
                {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 1},
                    "minItems": 1,
                    "maxItems": MOST,
                    "uniqueItems": True,
                },
            ]
        },
    )
    tuned: StrictBool = Field(
        True,
        description="`false` under `compare: fair`: the block's settings are not tuned.",
    )

    @field_validator("sizes")
    @classmethod
    def _check_sizes(cls, sizes: Any) -> Any:
        numbers = sizes if isinstance(sizes, list) else [sizes]
        positive = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in numbers)
        if isinstance(sizes, list):
            if not positive or not sizes or len(sizes) > MOST or len({*sizes}) < len(sizes):
                raise ValueError(f"got {shown(sizes)}; numbers of parameters, each once, as in [2000, 8000, 32000]")
        elif sizes is not None and (not positive or not 2 <= sizes <= MOST):
            raise ValueError(f"got {shown(sizes)}; how many sizes, with the uncut one (2 to {MOST}), or a list of them")
        return sizes


OWN_KEYS = OwnKeys.model_fields


DISTRIBUTIONS: dict[str, str] = {
    "uniform": "any number from min to max",
    "log_uniform": "a number whose logarithm is uniform, for learning rates",
    "int_uniform": "any whole number from min to max",
    "int_log_uniform": "a whole number, small ones more often, for ranks",
}
KEYS = ("values", "min", "max", "distribution")
MAX_VALUES = 1000


@dataclass(frozen=True)
class DimensionReader:
    """Reads the dimension that the file calls `key`. `model`, which takes its values, calls it `name`."""

    key: str
    name: str
    model: type[Settings]
    mistakes: list[Mistake]

    def read(self, value: Any, path: YamlPath) -> Dimension | None:
        """Returns the dimension that `value` describes, or None and adds to `mistakes`."""
        if isinstance(value, list) and value and self._is_wrong(value) and not any(map(self._is_wrong, value)):
            return self._refuse(path, f"got {shown(value)}; several values are written as {{values: {shown(value)}}}")
        if not isinstance(value, dict):
            return self._choice([value], [path])
        if not any(key in value for key in KEYS):
            return self._mapping(value, path)
        strange = [key for key in value if key not in KEYS]
        for key in strange:
            self._refuse((*path, key), f"unknown key {shown(key)}.{nearest(key, KEYS)} Allowed here: {', '.join(KEYS)}")
        if strange:
            return None
        if "values" not in value:
            return self._range(value, path)
        values = value["values"]
        if len(value) > 1:
            return self._refuse(path, f"give either values or a range; got {', '.join(value)}")
        path = (*path, "values")
        if not isinstance(values, list):
            return self._refuse(path, f"got {shown(values)}; values is a list of at least one value")
        if not values:
            return self._refuse(path, "is empty, so the space is empty; give at least one value, or drop the key")
        if len(values) > MAX_VALUES:
            return self._refuse(path, f"{len(values)} values; at most {MAX_VALUES} are allowed")
        return self._choice(values, [(*path, index) for index in range(len(values))])

    def _refuse(self, path: YamlPath, message: str) -> Any:
        self.mistakes.append(Mistake(path, message))
        return None

    def _choice(self, values: list[Any], paths: list[YamlPath]) -> Choice:
        checked = [self._check(value, path) for value, path in zip(values, paths, strict=True)]
        self.mistakes.extend(mistake for _, wrong in checked for mistake in wrong)
        return Choice(tuple(value for value, _ in checked))

    def _mapping(self, value: dict[str, Any], path: YamlPath) -> Choice | None:
        checked, mistakes = self._check(value, path)
        if not mistakes:
            return Choice((checked,))
        hints = "".join(f" {shown(key)}:{nearest(key, KEYS)}" for key in value if nearest(key, KEYS))
        return self._refuse(path, f"got the mapping {shown(value)}; a searched dimension has values, or min and max.{hints}")

    def _range(self, value: dict[str, Any], path: YamlPath) -> Range | None:
        for end in ("min", "max"):
            if end not in value:
                return self._refuse(path, f"{end} is missing; a range has min and max")
            if not is_number(value[end]):
                return self._refuse((*path, end), f"got {shown(value[end])}; must be a number (other values: give values)")
        low, high = value["min"], value["max"]
        are_integers = isinstance(low, int) and isinstance(high, int)
        takes_fractions = low != high and not self._check(low + (high - low) * 0.123456789, path)[1]
        distribution = value.get("distribution", "int_uniform" if are_integers and not takes_fractions else "uniform")
        if not isinstance(distribution, str) or distribution not in DISTRIBUTIONS:
            return self._refuse((*path, "distribution"), unknown("distribution", distribution, list(DISTRIBUTIONS)))
        if low > high:
            return self._refuse((*path, "min"), f"min {low:g} is larger than max {high:g}")
        if "log" in distribution and low <= 0:
            return self._refuse((*path, "min"), f"got {low:g}; {distribution} needs min above 0")
        if distribution.startswith("int_") and not are_integers:
            return self._refuse(path, f"{distribution} needs whole numbers; got {low:g} to {high:g}")
        mistakes = [mistake for end in ("min", "max") for mistake in self._check(value[end], (*path, end))[1]]
        if low != high and not takes_fractions and not distribution.startswith("int_") and not mistakes:
            message = f"{self.name} takes whole numbers; use int_uniform or int_log_uniform, or give values"
            mistakes = [Mistake(path, message)]
        self.mistakes.extend(mistakes)
        return Range(float(low), float(high), distribution)

    def _is_wrong(self, value: Any) -> bool:
        return bool(self._check(value, ())[1])

    def _check(self, value: Any, path: YamlPath) -> tuple[Any, list[Mistake]]:
        try:
            return self.model.model_validate({self.key: value}).model_dump(mode="json").get(self.name), []
        except ValidationError as error:
            mistakes = [wrong for wrong in from_pydantic(error, self.model) if wrong.path[:1] in ((self.key,), (self.name,))]
        return value, [Mistake((*path, *wrong.path[1:]), wrong.message) for wrong in mistakes]


TYPE = "peft_type"


def parse_config(config: Any, peft_type: Any, path: YamlPath, mistakes: list[Mistake]) -> dict[str, Dimension]:
    """Returns the dimensions inside `config`, as `config.KEY`, and adds to `mistakes`.

    There are none if the type is wrong, which is a mistake of the type's own key.
    """
    if not isinstance(config, dict):
        mistakes.append(Mistake(path, f"got {shown(config)}; PEFT's parameters by name, as in {{r: 8}}"))
        return {}
    from craft.methods.by_peft_name import config_model, find_type, unknown_key

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
    from craft.methods.by_peft_name import config_classes, guilty_key, whole_config

    module = config_classes()[kind.values[0]].__module__
    if module.partition(".")[0] != "peft":
        message = (
            f"{kind.values[0]} is registered with PEFT by {module}, which the processes of a sweep do not import, so it would "
            "fail in each of them. Add the method to a checkout (CONTRIBUTING.md), or train it by your own program and "
            "compare its scores: craft-sweeps judge"
        )
        return [Mistake((*path, TYPE), message)]
    for point in covering((Block(int(path[1]), method.name, dict(dimensions)),)):
        config = point.parameters.get(CONFIG, {})
        try:
            whole_config(kind.values[0], config)
        except ValueError as error:
            key = guilty_key(kind.values[0], config)
            return [Mistake((*path, CONFIG) if key is None else (*path, CONFIG, key), str(error))]
    return []


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
    mistakes = find_mistakes(OwnKeys, block_keys, path)
    if block_keys.get(SIZES) is not None and not mistakes:
        try:
            find_cutting(name)
        except ValueError as error:
            mistakes = [Mistake((*path, SIZES), str(error))]
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

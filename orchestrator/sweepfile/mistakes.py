"""Mistakes in a sweep file, as messages for the person who wrote it.

A message says where the mistake is (file and line, or the `--set`), the path in the file, what was given, what is allowed and
the nearest valid name. `SweepError` holds all messages in the order of the file. Pydantic finds most mistakes and describes
them for programmers; `from_pydantic` rewrites its messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic_core import ErrorDetails

from craft.settings import SPLIT_TAG
from craft.words import nearest
from orchestrator.tools.secrets import redact

YamlPath = tuple[str | int, ...]
MOST_LINES = 20
"""The most mistakes that one message names."""


@dataclass(frozen=True)
class Mistake:
    """One mistake at a path of the sweep file."""

    path: YamlPath
    message: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.message}"


class SweepError(ValueError):
    """A sweep file or a `--set` is wrong; one line for each mistake."""

    def __init__(self, lines: Sequence[str]) -> None:
        more = [f"and {len(lines) - MOST_LINES:,} more"] if len(lines) > MOST_LINES else []
        self.lines = [*lines[:MOST_LINES], *more]
        super().__init__("\n".join(self.lines))


class NothingMeets(ValueError):
    """The call is right, but the sweep has no such configuration or trial (yet)."""


def spellings(model: type[BaseModel]) -> dict[str, str]:
    """Maps every name that a file may use for a field of `model` to the field's own name. The name to show comes first."""
    names: dict[str, str] = {}
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [name]
        names |= {str(choice): name for choice in choices}
    return names


def shown_names(model: type[BaseModel]) -> list[str]:
    """Lists the name to show of every field of `model`."""
    first = {name: spelling for spelling, name in reversed(spellings(model).items())}
    return [first[name] for name in model.model_fields]


def by_field(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces names by the fields' own names; names that `model` does not know stay."""
    names = spellings(model)
    return {names.get(key, key): value for key, value in values.items()}


def dotted(path: Iterable[str | int]) -> str:
    return ".".join(map(str, path))


def shown(value: Any) -> str:
    """Returns `value` as a person would write it, cut to a readable length, with passwords in addresses masked."""
    text = repr(redact(value)) if isinstance(value, str) else "nothing (null)" if value is None else redact(flow(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def flow(value: Any) -> str:
    """Returns `value` as YAML on one line: a plain word as it is; other text, and what begins with a digit, in quotes."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {flow(item)}' for key, item in value.items())}}}"
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
    if re.fullmatch(r"(?!\.?\d)[\w./][\w ./()-]*(?<! )", value) and yaml.safe_load(value) == value:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else f"\\U{ord(letter):08x}" for letter in quoted)


def is_number(value: Any) -> bool:
    """Returns whether `value` is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def unknown(kind: str, name: Any, names: Sequence[str]) -> str:
    """Returns `unknown KIND NAME. Did you mean ...? Known: ...`."""
    return f"unknown {kind} {shown(name)}.{nearest(name, names)} Known: {', '.join(names)}"


def find_mistakes(model: type[BaseModel], section: Any, at: YamlPath = ()) -> list[Mistake]:
    """Returns what `model` finds wrong in the content at the path `at`."""
    try:
        model.model_validate(section)
    except ValidationError as error:
        return from_pydantic(error, model, at)
    return []


def from_pydantic(error: ValidationError, model: type[BaseModel], at: YamlPath = ()) -> list[Mistake]:
    """Returns the mistakes in a `ValidationError` of `model` for the content at the path `at`, one for each path."""
    details: dict[YamlPath, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        details.setdefault(_data_path(detail["loc"], detail), []).append(detail)
    mistakes = []
    for path, (first, *others) in details.items():
        choices = [word for detail in others if detail["type"] == "literal_error" for word in _expected(detail)]
        sentence = _sentence(first, model, path, at)
        mistakes.append(Mistake((*at, *path), f"{sentence}, or {', '.join(choices)}" if choices else sentence))
    return mistakes


def _data_path(loc: tuple[str | int, ...], detail: ErrorDetails) -> YamlPath:
    """Returns pydantic's location without the names of union members and dictionary keys that pydantic adds."""
    if loc and loc[-1] == "[key]":
        return loc[:-1]
    if detail["type"] != "extra_forbidden":
        while loc and re.match(r"(int|float|str|bool)$|literal\[|tuple\[|constrained-", str(loc[-1])):
            loc = loc[:-1]
    return tuple(part for part in loc if part != SPLIT_TAG)


def _expected(detail: ErrorDetails) -> list[str]:
    return re.findall(r"'([^']*)'", detail.get("ctx", {}).get("expected", ""))


PLAIN = {
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid number, unable to parse string as a number": "a number",
    "a valid integer, got a number with a fractional part": "a whole number",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "Input should be ": "",
    "Value error, ": "",
}
"""Pydantic's words, the longer before the shorter ones, and those of messages here."""


def _sentence(detail: ErrorDetails, model: type[BaseModel], loc: YamlPath, at: YamlPath) -> str:
    kind, value, context = detail["type"], shown(detail["input"]), detail.get("ctx", {})
    if kind == "extra_forbidden":
        keys = shown_names(_model_at(model, loc[:-1]) or model)
        return f"unknown key {shown(loc[-1])}.{nearest(loc[-1], keys)} Allowed here: {', '.join(keys)}"
    if kind == "missing":
        if isinstance(loc[-1], int):
            return f"missing; the list has at least {loc[-1] + 1} values"
        return "missing; this section needs it" if at or len(loc) > 1 else "missing; every sweep file needs it"
    if kind == "literal_error":
        near = nearest(detail["input"], _expected(detail))
        return f"got {value}; allowed: {', '.join(_expected(detail))}{'.' if near else ''}{near}"
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        part = _model_at(model, loc)
        keys_inside = f" with the keys {', '.join(shown_names(part))}" if part else ""
        return f"got {value}; must be a mapping{keys_inside}"
    if kind in ("tuple_type", "list_type"):
        return f"got {value}; must be a list, as in [{value.strip(chr(39))}]"
    if kind in ("too_short", "string_too_short"):
        return f"is empty; at least {context.get('min_length', 1)} needed"
    if kind in ("too_long", "string_too_long"):
        return f"is too long; at most {context['max_length']} {'characters' if kind.startswith('string') else 'values'}"
    message = detail["msg"]
    for said, plain in PLAIN.items():
        message = message.replace(said, plain)
    return f"got {value}; must be {message}"


def _model_at(model: type[BaseModel], loc: YamlPath) -> type[BaseModel] | None:
    """Returns the model of the content at `loc`, also inside optionals, tuples and dictionaries."""
    part: Any = model
    for key in loc:
        if isinstance(part, type) and issubclass(part, BaseModel):
            field = part.model_fields.get(str(key))
            part = field.annotation if field else None
        else:
            part = _first_with_model(part)
        while isinstance(part, UnionType) or get_origin(part) in (Annotated, Union):
            part = _first_with_model(part)
    return part if isinstance(part, type) and issubclass(part, BaseModel) else None


def _first_with_model(annotation: Any) -> Any:
    return next((argument for argument in get_args(annotation) if _mentions_model(argument)), None)


def _mentions_model(annotation: Any) -> bool:
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, BaseModel)
    return any(map(_mentions_model, get_args(annotation)))

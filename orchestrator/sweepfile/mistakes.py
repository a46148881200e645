"""Mistakes in a sweep file, as messages for the person who wrote it.

A message says where the mistake is (file and line, or the `--set`), the path in the file, what was given, what is allowed and
the nearest valid name. `SweepError` holds all messages in the order of the file. Pydantic finds most mistakes and describes
them for programmers; `from_pydantic` rewrites its messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from craft.plain_yaml import YamlPath
from craft.settings import shown_names
from craft.words import nearest, redact


@dataclass(frozen=True)
class Mistake:
    """One mistake at a path of the sweep file."""

    path: YamlPath
    message: str


class SweepError(ValueError):
    """A sweep file or a `--set` is wrong; one line for each mistake."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = list(lines)


class NothingMeets(ValueError):
    """The call is right, but the sweep has no such configuration or trial (yet)."""


def dotted(path: Iterable[str | int]) -> str:
    return ".".join(map(str, path))


def shown(value: Any) -> str:
    """`value` as a person would write it in the file, cut to a readable length; users and passwords in addresses are masked."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif value is None:
        text = "nothing (null)"
    elif isinstance(value, str):
        text = repr(redact(value))
    else:
        text = str(value).replace("'", "")
    return text if len(text) <= 60 else f"{text[:57]}..."


def section_of(content: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping under `key` of a file's content; empty if the file has none there."""
    found = content.get(key)
    return found if isinstance(found, dict) else {}


def unknown(kind: str, name: Any, known: Sequence[str]) -> str:
    """`unknown KIND NAME. Did you mean ...? Known: ...`."""
    return f"unknown {kind} {shown(name)}.{nearest(name, known)} Known: {', '.join(known)}"


def from_pydantic(error: ValidationError, model: type[BaseModel], at: YamlPath = ()) -> list[Mistake]:
    """The mistakes in a `ValidationError` of `model` for the content at the path `at`, one for each path."""
    mistakes: dict[YamlPath, Mistake] = {}
    for detail in error.errors(include_url=False):
        loc = _data_path(detail["loc"], detail)
        path = (*at, *loc)
        mistakes.setdefault(path, Mistake(path, _sentence(detail, model, loc)))
    return list(mistakes.values())


def _data_path(loc: tuple[str | int, ...], detail: ErrorDetails) -> YamlPath:
    """Pydantic's location without the names of union members and dictionary keys that pydantic adds."""
    if loc and loc[-1] == "[key]":
        return loc[:-1]
    if detail["type"] != "extra_forbidden":
        while (
            loc
            and isinstance(loc[-1], str)
            and (loc[-1] in ("int", "float", "str", "bool") or loc[-1].startswith(("literal[", "tuple[")))
        ):
            loc = loc[:-1]
    return loc


def _sentence(detail: ErrorDetails, model: type[BaseModel], loc: YamlPath) -> str:
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        keys = allowed_keys(_model_at(model, loc[:-1]) or model)
        return f"unknown key {shown(loc[-1])}.{nearest(loc[-1], keys)} Allowed here: {', '.join(keys)}"
    if kind == "missing":
        return "missing; every sweep file needs it"
    if kind == "literal_error":
        expected = re.findall(r"'([^']*)'", context.get("expected", ""))
        return f"got {shown(given)}; allowed: {', '.join(expected)}.{nearest(given, expected)}"
    if kind == "value_error":
        return str(context.get("error", detail["msg"]))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        part = _model_at(model, loc)
        inside = f" with the keys {', '.join(allowed_keys(part))}" if part else ""
        return f"got {shown(given)}; must be a mapping{inside}"
    if kind in ("tuple_type", "list_type"):
        return f"got {shown(given)}; must be a list, as in [{shown(given).strip(chr(39))}]"
    if kind == "too_short":
        return f"is empty; at least {context.get('min_length', 1)} needed"
    message = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    message = message.replace("a valid integer, unable to parse string as an integer", "a whole number")
    message = message.replace("a valid number, unable to parse string as a number", "a number")
    message = message.replace("a valid integer, got a number with a fractional part", "a whole number")
    message = message.replace("a valid integer", "a whole number").replace("a valid number", "a number")
    message = message.replace("a valid string", "text").replace("a valid boolean", "true or false")
    return f"got {shown(given)}; must be {message}"


def allowed_keys(model: type[BaseModel]) -> list[str]:
    return shown_names(model)


def _model_at(model: type[BaseModel], loc: YamlPath) -> type[BaseModel] | None:
    """The model of the content at `loc`, also inside optionals, tuples and dictionaries."""
    here: Any = model
    for part in loc:
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = here.model_fields.get(str(part))
            here = field.annotation if field else None
        else:
            inner = [one for one in get_args(here) if _mentions_model(one)]
            here = inner[0] if inner else None
        if isinstance(here, UnionType):
            models = [one for one in get_args(here) if _mentions_model(one)]
            here = models[0] if models else None
    return here if isinstance(here, type) and issubclass(here, BaseModel) else None


def _mentions_model(annotation: Any) -> bool:
    if isinstance(annotation, type) and not get_args(annotation):
        return issubclass(annotation, BaseModel)
    return any(_mentions_model(one) for one in get_args(annotation))

"""YAML from a stranger, read within limits into plain data. Sweep files and every `--set` are read by these rules.

PyYAML's safe loader still builds dates, sexagesimal numbers and merged mappings, reads `yes` as true and `1e-4` as text, lets a
later key win over an equal earlier one, and expands aliases without end. This reader turns the nodes into words, numbers,
true/false, null, lists and mappings with words as keys; it refuses everything else and says where it is.

`Source` remembers for every path (`space.0.ranks`) the line, or the `--set`, that gave it, so that a later check can say where
a mistake is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.sweepfile.mistakes import SweepError, YamlPath, dotted, shown

MAX_DEPTH = 24
MAX_NODES = 20_000  # counted after aliases are expanded: nine levels of nine aliases are 387 million
MAX_DIGITS = 18

_INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, Any] = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_WORDS |= dict.fromkeys(("", "~", "null", "Null", "NULL"))
_PLAIN_TAGS = {None, "!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map"))}


class _Reader(yaml.SafeLoader):
    """Composes nodes with a depth limit, turns them into plain data, and notes in `origins` where each path is."""

    def __init__(self, text: str, at: Callable[[int], str]) -> None:
        self.at = at
        self.depth = self.nodes = 0
        self.origins: dict[YamlPath, str] = {}
        super().__init__(text)

    def where(self, part: Any) -> str:
        """Returns the place of a node or an event."""
        return self.at(part.start_mark.line + 1)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.depth >= MAX_DEPTH:
            raise _wrong(self.where(self.peek_event()), f"more than {MAX_DEPTH} levels deep")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def convert(self, node: yaml.Node, path: YamlPath, where: str) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _wrong(where, f"more than {MAX_NODES} values once its aliases are written out")
        if len(path) > MAX_DEPTH:  # an alias to a mapping around itself never ends
            raise _wrong(where, f"more than {MAX_DEPTH} levels deep once its aliases are written out")
        self.origins[path] = where
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, where)
        _check_tag(node, where)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        return [self.convert(item, (*path, index), self.where(item)) for index, item in enumerate(node.value)]

    def mapping(self, node: yaml.MappingNode, path: YamlPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            where = self.where(key_node)
            key = _scalar(key_node, where) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise _wrong(where, f"keys are words; got {shown(getattr(key_node, 'value', key))}")
            if key in values:
                raise _wrong(where, f"{dotted((*path, key))}: given twice, first at {self.origins[(*path, key)]}")
            values[key] = self.convert(value_node, (*path, key), where)
        return values


def _scalar(node: yaml.ScalarNode, where: str) -> Any:
    text = node.value
    if node.style is not None or node.tag.startswith("!") or "python" in node.tag:
        _check_tag(node, where)
    if node.style is not None:  # quoted or a block: text, whatever it looks like
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise _wrong(where, f"a number of {len(text)} digits; {MAX_DIGITS} are allowed")
        return int(text)
    is_float = len(text) <= 64 and _FLOAT.fullmatch(text) is not None
    if _NOT_FINITE.fullmatch(text) or (is_float and not math.isfinite(float(text))):
        raise _wrong(where, f"{text} is not a finite number")
    return float(text) if is_float else text


def _check_tag(node: yaml.Node, where: str) -> None:
    if node.tag not in _PLAIN_TAGS:
        tag_name = node.tag.replace("tag:yaml.org,2002:", "!!")
        raise _wrong(where, f"the tag {tag_name} is refused; only plain values are allowed")


def _wrong(where: str, message: str) -> SweepError:
    """Returns the error for one thing wrong with a text; `where` is `file:line`, or the `--set` it came in."""
    return SweepError([f"{where}: {message}"])


def _read(text: str, at: Callable[[int], str]) -> tuple[Any, dict[YamlPath, str]]:
    """Reads the content of a YAML text, and the place of every path in it; `at` returns the place of a line.

    Raises:
        SweepError: it is not YAML, or YAML that plain settings have no use for.
    """
    try:
        reader = _Reader(text, at)
        node = reader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1 if isinstance(error.position, int) else 1
        raise _wrong(at(line), "holds a control character; YAML is printable text") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = ", ".join(part for part in (error.context, error.problem) if part)
        raise _wrong(at(mark.line + 1 if mark else 1), f"not YAML: {message}") from None
    except SweepError:
        raise
    except (OverflowError, ValueError):
        raise _wrong(at(reader.line + 1), "holds an escape whose number is no character's; the last is \\U0010FFFF") from None
    if node is None:
        return None, {(): at(1)}
    return reader.convert(node, (), reader.where(node)), reader.origins


MAX_BYTES = 256 * 1024


class Source:
    """A YAML text as plain data (`content`), with the origin of every path."""

    def __init__(self, document: Any, origins: dict[YamlPath, str], name: str) -> None:
        self.content = document
        self.written = json.loads(json.dumps(document, default=str, skipkeys=True))
        """What the text says, without any `--set`."""
        self.name = name
        self._origins = origins

    def where(self, path: Sequence[str | int]) -> str:
        """Returns `file:line` (or the `--set`) of `path`, or of the nearest thing around it that was written."""
        path = tuple(path)
        for length in range(len(path), -1, -1):
            if path[:length] in self._origins:
                return self._origins[path[:length]]
        return self.name

    def line(self, path: Sequence[str | int]) -> int:
        """Returns the line of `path`, to sort mistakes by; those of `--set` come last."""
        _, _, number = self.where(path).rpartition(":")
        return int(number) if number.isdecimal() else 10**9

    def override(self, assignment: str) -> None:
        """Applies `key.path=value` (`space.0.rank=8`): the value is YAML, mappings on the way are made, lists are not grown.

        `max_steps` and `epochs` say the same in two ways, so one of them takes the place of the other.
        """
        where = f"--set {assignment}" if len(assignment) <= 80 else f"--set {assignment[:77]}..."
        keys, equals, text = assignment.partition("=")
        parts = [part.strip() for part in keys.split(".")]
        if not equals or not all(parts):
            raise _wrong(where, "not of the form key.path=value, as in training.epochs=1 or space.0.rank=8")
        if len(text) > MAX_BYTES:
            raise _wrong(where, f"the value is longer than {MAX_BYTES} bytes")
        value, _ = _read(text, lambda line: where)
        path: YamlPath = ()
        here = self.content
        for number, part in enumerate(parts, start=1):
            key: str | int = part
            place = dotted(path) or "the file"
            if isinstance(here, list):
                if not part.isdecimal() or int(part) >= len(here):
                    allowed = f"0 to {len(here) - 1}" if here else "none: the list is empty"
                    raise _wrong(where, f"{place} is a list of {len(here)}; {part!r} is not one of its indices ({allowed})")
                key = int(part)
            elif not isinstance(here, dict):
                raise _wrong(where, f"{place} is {shown(here)}, which has nothing inside that {part!r} could name")
            path = (*path, key)
            if number == len(parts):
                if isinstance(here, dict) and value is not None:
                    here.pop({"max_steps": "epochs", "epochs": "max_steps"}.get(part), None)
                here[key] = value
            else:
                if isinstance(here, dict) and here.get(part) is None:
                    here[part] = {}
                    self._origins[path] = where
                here = here[key]
        remaining = {other: origin for other, origin in self._origins.items() if other[: len(path)] != path}
        self._origins = remaining | {path: where}


def read_yaml(path: Path) -> Source:
    """Reads the YAML file at `path`; raises SweepError."""
    name = str(path)
    try:
        if not path.is_file():
            kind = "is a folder, not a file" if path.is_dir() else "not a file" if path.exists() else "there is no such file"
            raise _wrong(name, kind)
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _wrong(name, f"cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise _wrong(name, f"larger than {MAX_BYTES // 1024} KiB; no sweep file is")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _wrong(f"{name}:{line}", "not UTF-8 text") from None
    return Source(*_read(text, lambda line: f"{name}:{line}"), name)

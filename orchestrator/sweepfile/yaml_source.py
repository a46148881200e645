"""The text of a sweep file as plain data, with the place every value came from.

`Source` remembers for every path (`space.0.ranks`) the line, or the `--set`, that gave it, so that a later check can say where
a mistake is. `plain_yaml` reads the text of a file and that of a `--set`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.sweepfile.plain_yaml import YamlPath, YamlProblem, brief, read_plain

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

        Raises:
            YamlProblem: no `=`, an empty part, a list index that is not there, or a value that is not YAML.
        """
        where = f"--set {assignment}" if len(assignment) <= 80 else f"--set {assignment[:77]}..."
        dotted, equals, text = assignment.partition("=")
        parts = [part.strip() for part in dotted.split(".")]
        if not equals or not all(parts):
            raise YamlProblem(where, "not of the form key.path=value, as in training.epochs=1 or space.0.rank=8")
        if len(text) > MAX_BYTES:
            raise YamlProblem(where, f"the value is longer than {MAX_BYTES} bytes")
        value, origins = read_plain(text, where, lines=False)

        path: YamlPath = ()
        here = self.content
        for number, part in enumerate(parts, start=1):
            key: str | int = part
            place = ".".join(map(str, path)) or "the file"
            if isinstance(here, list):
                if not part.isdecimal() or int(part) >= len(here):
                    allowed = f"0 to {len(here) - 1}" if here else "none: the list is empty"
                    raise YamlProblem(
                        where, f"{place} is a list of {len(here)}; {part!r} is not one of its indices ({allowed})"
                    )
                key = int(part)
            elif not isinstance(here, dict):
                raise YamlProblem(where, f"{place} is {brief(here)}, which has nothing inside that {part!r} could name")
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
        self._origins = remaining | {(*path, *inner): origin for inner, origin in origins.items()}


def read_yaml(path: Path) -> Source:
    """Reads the YAML file at `path`; raises YamlProblem."""
    name = str(path)
    try:
        if not path.is_file():
            kind = "is a folder, not a file" if path.is_dir() else "not a file" if path.exists() else "there is no such file"
            raise YamlProblem(name, kind)
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise YamlProblem(name, f"cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_BYTES:
        raise YamlProblem(name, f"larger than {MAX_BYTES // 1024} KiB; no sweep file is")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise YamlProblem(f"{name}:{line}", "not UTF-8 text") from None
    document, origins = read_plain(text, name, lines=True)
    return Source(document, origins, name)

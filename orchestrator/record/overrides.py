"""What earlier sessions of a sweep changed by flags. It stays with the sweep until the sweep file or a flag says otherwise.

    --set 'seeds=[0,1,2]' --resume      session 1      overrides.json: seeds=[0,1,2], where the file has [0]
    --resume                            session 2      seeds [0, 1, 2] again, and a line says so
    the file says seeds: [0, 1]         session 3      the file has changed there, so the file holds

A key inside a list (`space.1.rank`) is compared by the whole item of the list, since items may move.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from craft.disk import replacing
from orchestrator.record.folder import SweepFolder
from orchestrator.sweepfile.mistakes import SweepError
from orchestrator.sweepfile.plain_yaml import YamlProblem
from orchestrator.sweepfile.yaml_source import read_yaml

OF_THE_FOLDER = ("name", "storage")
"""Keys that decide in which folder a sweep is, so its folder cannot keep them."""


@dataclass(frozen=True)
class Override:
    """One assignment of `--set`.

    Attributes:
        assignment: `key.path=value`.
        written: what the sweep file had there.
        since: the day on which it was given.
    """

    assignment: str
    written: Any
    since: str

    @property
    def parts(self) -> list[str]:
        """The parts of the key."""
        return [part.strip() for part in self.assignment.partition("=")[0].split(".")]


def make_overrides(file: Path, assignments: Iterable[str]) -> list[Override]:
    """Returns the assignments with what the sweep file has in their places; those that choose the folder are left out."""
    settings, today = _read(file), date.today().isoformat()
    dated = (Override(assignment, None, today) for assignment in assignments)
    return [
        replace(override, written=_find(settings, override.parts))
        for override in dated
        if override.parts[0] not in OF_THE_FOLDER
    ]


def recall(folder: Path, file: Path, new: Sequence[Override]) -> tuple[list[Override], list[str]]:
    """Returns the overrides of earlier sessions that hold together with `new` ones, and a line for each to be shown."""
    stored = SweepFolder(folder).overrides
    try:
        earlier = [Override(**row) for row in json.loads(stored.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError, TypeError) as error:
        raise SweepError([f"{stored} holds what earlier sessions set, and cannot be read ({error}); delete it"]) from None
    settings, replaced = _read(file), [override.parts for override in new]
    holding, lines = [], []
    for override in earlier:
        if any(override.parts[: len(parts)] == parts for parts in replaced):
            continue
        if _find(settings, override.parts) != override.written:
            lines.append(f"{file.name} has changed since --set {override.assignment} of {override.since}: the file holds")
            continue
        holding.append(override)
        lines.append(f"{override.assignment}, as --set on {override.since} (--as-written takes the file as it is)")
    return holding, lines


def write_overrides(folder: Path, overrides: Sequence[Override]) -> None:
    """Keeps the overrides of this session in the sweep's folder."""
    with replacing(SweepFolder(folder).overrides) as aside:
        aside.write_text(json.dumps([asdict(override) for override in overrides], indent=1), encoding="utf-8")


def _read(file: Path) -> Any:
    try:
        return read_yaml(file).content
    except YamlProblem as problem:
        raise SweepError([str(problem)]) from None


def _find(settings: Any, parts: Sequence[str]) -> Any:
    """Returns the value at the key, or the first list item on the way to it; None where there is none."""
    for part in parts:
        if isinstance(settings, list):
            return settings[int(part)] if part.isdecimal() and int(part) < len(settings) else None
        settings = settings.get(part) if isinstance(settings, dict) else None
    return settings

"""The one door to a sweep file: `load_sweep` reads it, checks all of it and makes its paths absolute.

    plain_yaml -> fair (writes `compare: fair` out) -> sweep, blocks, tasks (each section) -> sections (together) -> Sweep

Other packages get a `Sweep` only from here. A wrong file raises a `SweepError` with every mistake at once: file and line, path,
what was given, what is allowed, the nearest valid name.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from craft.models.files import is_gguf
from craft.plugins import PluginError, find_plugin, load_installed, load_plugins
from craft.settings import paths_to_read
from orchestrator.sweepfile.fair import write_out
from orchestrator.sweepfile.mistakes import Mistake, SweepError, YamlPath, from_pydantic, shown
from orchestrator.sweepfile.plain_yaml import Source, read_yaml
from orchestrator.sweepfile.sections import check_lengths, check_sections, check_tasks, replace_auto
from orchestrator.sweepfile.space.blocks import parse_block
from orchestrator.sweepfile.sweep import Sweep


def load_sweep(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Sweep:
    """Reads the sweep file at `path` with `overrides` (`key.path=value`) applied.

    Raises:
        SweepError: the file or an override is wrong; one line for each mistake.
    """
    source = _read(Path(path), overrides)
    absent = _resolve_files(source.content, Path(path).resolve().parent)
    sweep, mistakes = check(source.content)
    if sweep is not None:
        mistakes += check_lengths(sweep)
    mistakes = [*absent, *(mistake for mistake in mistakes if not (absent and mistake.message.startswith("no file ")))]
    if sweep is None or mistakes:
        ordered = sorted(mistakes, key=lambda mistake: source.line(mistake.path))
        raise SweepError([f"{source.where(mistake.path)}: {mistake}" for mistake in ordered])
    sweep = sweep.model_copy(update={"storage": _absolute(sweep.storage)})
    sweep._source = source
    return sweep


def _read(path: Path, overrides: Sequence[str]) -> Source:
    source = read_yaml(path)
    if source.content is None:
        raise SweepError([f"{source.name}: is empty; a sweep file has at least name, model, tasks and space"])
    if not isinstance(source.content, dict):
        message = f"holds {shown(source.content)}; a sweep file is a mapping that begins with name:"
        raise SweepError([f"{source.where(())}: {message}"])
    for assignment in overrides:
        source.override(assignment)
    _import_plugins(source, path.resolve().parent)
    return source


def _import_plugins(source: Source, folder: Path) -> None:
    """Imports the plugins that the file names, because its other sections may name their rows; makes the paths of files
    absolute.
    """
    try:
        load_installed()
    except PluginError as error:
        raise SweepError([f"{source.name}: {error}"]) from None
    names = source.content.get("plugins", [])
    if not isinstance(names, list):
        return  # the section's own check names the mistake
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():
            return
        try:
            file = find_plugin(name, (folder,))
            names[index] = name if file is None else _absolute(file)
            load_plugins([names[index]], (folder,))
        except PluginError as error:
            raise SweepError([f"{source.where(('plugins', index))}: plugins.{index}: {error}"]) from None


def read_effective(document: dict[str, Any]) -> Sweep:
    """Returns the sweep that an effective file describes. Method blocks are not checked."""
    try:
        return Sweep.model_validate(write_out(document)[0])
    except ValidationError as error:
        raise SweepError([str(mistake) for mistake in from_pydantic(error, Sweep)]) from None


def check(document: dict[str, Any]) -> tuple[Sweep | None, list[Mistake]]:
    """Returns the sweep that a file's plain data describe, None if a section is wrong; and every mistake.

    Sections are checked together once each of them is right.
    """
    document, origins = write_out(document)
    sweep, mistakes, space = None, list[Mistake](), document.get("space")
    try:
        sweep = Sweep.model_validate(document)
    except ValidationError as error:
        mistakes += from_pydantic(error, Sweep)
    for index, block in enumerate(space if isinstance(space, list) else ()):
        mistakes += parse_block(block, index)[1]
    mistakes += check_tasks(document)
    if sweep is not None and not mistakes:
        sweep = replace_auto(sweep)
        mistakes += check_sections(sweep)
    return sweep, list(dict.fromkeys(_at_its_origin(mistake, origins) for mistake in mistakes))


def _at_its_origin(mistake: Mistake, origins: dict[YamlPath, YamlPath]) -> Mistake:
    for length in range(len(mistake.path), 0, -1):
        if (origin := origins.get(mistake.path[:length])) is not None:
            return Mistake((*origin, *mistake.path[length:]), mistake.message)
    return mistake


def _resolve_files(document: dict[str, Any], folder: Path) -> list[Mistake]:
    """Makes paths of files to read absolute: next to the sweep file, or else in the current folder.

    Trials run in folders of their own. Returns a mistake for each file of examples that is in neither.
    """
    mistakes = []
    for path, section in paths_to_read(document):
        name = section[path[-1]]
        if not name:
            continue
        expanded = os.path.expanduser(name)  # noqa: PTH111  (Path's raises for a user that does not exist)
        file = next((file for file in (folder / expanded, Path.cwd() / expanded) if os.path.exists(file)), None)  # noqa: PTH110
        of_hub = path == ("model",) or path[-1] == "path"  # a name of the hub, unless there is such a folder
        if file is None and path[:2] == ("data", "custom") and not of_hub and not Path(expanded).is_absolute():
            names = ", ".join(sorted(file.name for file in folder.iterdir())[:12])
            also = "" if folder == Path.cwd() else f", nor in the current folder ({Path.cwd()})"
            message = f"no file {name} next to the sweep file ({folder}, which holds: {names}){also}"
            mistakes.append(Mistake(path, message))
            section[path[-1]] = str(folder / expanded)
        elif not of_hub or expanded.startswith("~") or is_gguf(name) or (file is not None and file.is_dir()):
            section[path[-1]] = _absolute(file or expanded)
    return mistakes


def _absolute(path: str | Path) -> str:
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  (removes `..` and keeps links; Path cannot)

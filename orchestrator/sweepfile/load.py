"""The one door to a sweep file: `load_sweep` reads it, checks all of it and makes its paths absolute.

    yaml_source -> fair (writes `compare: fair` out) -> sweep (each section), blocks (each block)
                -> checks (sections together) -> Sweep

Other packages get a `Sweep` only from here. A wrong file raises a `SweepError` with every mistake at once: file and line, path,
what was given, what is allowed, the nearest valid name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from craft.models.gguf import is_gguf
from craft.plain_yaml import YamlPath, YamlProblem
from craft.settings import ForgettingSettings
from orchestrator.sweepfile.algorithms import AUTO
from orchestrator.sweepfile.auto import settle
from orchestrator.sweepfile.checks.fair import check_fair
from orchestrator.sweepfile.checks.search import check_search
from orchestrator.sweepfile.checks.tasks import check_measures, check_names, check_prerequisites, check_tasks
from orchestrator.sweepfile.fair import written_out
from orchestrator.sweepfile.mistakes import Mistake, SweepError, dotted, from_pydantic, section_of, shown
from orchestrator.sweepfile.space.blocks import parse_block
from orchestrator.sweepfile.space.dimensions import Block
from orchestrator.sweepfile.sweep import Sweep
from orchestrator.sweepfile.yaml_source import read_yaml


def load_sweep(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Sweep:
    """Reads the sweep file at `path` with `overrides` (`key.path=value`) applied.

    Raises:
        SweepError: the file or an override is wrong; one line for each mistake.
    """
    try:
        source = read_yaml(Path(path))
        if source.content is None:
            raise SweepError([f"{source.name}: is empty; a sweep file has at least name, model, tasks and space"])
        if not isinstance(source.content, dict):
            raise SweepError(
                [f"{source.where(())}: holds {shown(source.content)}; a sweep file is a mapping that begins with name:"]
            )
        for assignment in overrides:
            if source.content.get("scheduler") == AUTO:  # a short form of the mapping, in which scheduler.name has a place
                source.content["scheduler"] = {"name": AUTO}
            source.override(assignment)
    except YamlProblem as problem:
        raise SweepError([str(problem)]) from None
    absent = _find_files(source.content, Path(path).resolve().parent)
    sweep, mistakes = check(source.content)
    mistakes = [*absent, *(one for one in mistakes if not (absent and one.message.startswith("no file ")))]
    if sweep is None or mistakes:
        ordered = sorted(mistakes, key=lambda one: source.line(one.path))
        raise SweepError([f"{source.where(one.path)}: {dotted(one.path)}: {one.message}" for one in ordered])
    sweep = _absolute(sweep)
    sweep._source = source
    return sweep


def read_effective(content: dict[str, Any]) -> Sweep:
    """Returns the sweep that an effective file's content describes. Method blocks are not checked."""
    try:
        return Sweep.model_validate(written_out(content)[0])
    except ValidationError as error:
        raise SweepError([f"{dotted(one.path)}: {one.message}" for one in from_pydantic(error, Sweep)]) from None


def check(content: dict[str, Any]) -> tuple[Sweep | None, list[Mistake]]:
    """The sweep that a file's plain data describe, None if a section is wrong; and every mistake."""
    mistakes: list[Mistake] = []
    sweep = None
    content, added = written_out(content)
    try:
        sweep = Sweep.model_validate(content)
    except ValidationError as error:
        mistakes += from_pydantic(error, Sweep)
    blocks: list[Block] = []
    space = content.get("space")
    for index, written in enumerate(space if isinstance(space, list) else ()):
        block, wrong = parse_block(written, index)
        mistakes += wrong
        blocks += [block] if block else []
    wrong_tasks = check_tasks(content)
    if sweep is not None and not mistakes and not wrong_tasks:
        sweep = settle(sweep, blocks)
    # The rules for stopping depend on the list of tasks, which only known tasks have.
    mistakes += check_search(content, blocks, None if wrong_tasks else sweep)
    mistakes += check_fair(content, blocks, sweep if isinstance(space, list) and len(blocks) == len(space) else None)
    mistakes += [*check_names(content), *wrong_tasks]
    mistakes += check_prerequisites(sweep) if sweep and not mistakes else []
    mistakes += check_measures(sweep) if sweep and not mistakes else []
    return sweep, list(dict.fromkeys(_as_written(one, added) for one in mistakes))


def _as_written(mistake: Mistake, added: Mapping[YamlPath, YamlPath]) -> Mistake:
    """The mistake at the place in the file from which its own place comes, if `added` names one."""
    for length in range(len(mistake.path), 0, -1):
        if (origin := added.get(mistake.path[:length])) is not None:
            return Mistake((*origin, *mistake.path[length:]), mistake.message)
    return mistake


def _find_files(content: dict[str, Any], folder: Path) -> list[Mistake]:
    """Makes relative paths of files to read absolute: next to the sweep file, or else in the current folder.

    Returns a mistake for each file of examples that is in neither.
    """
    mistakes = []
    data, forgetting = section_of(content, "data"), section_of(section_of(content, "measure"), "forgetting")
    custom = [(("data", "custom", name), one) for name, one in section_of(data, "custom").items() if isinstance(one, dict)]
    places: list[tuple[YamlPath, dict[str, Any], str]] = [((), content, "model"), ((), data, "root"), ((), forgetting, "text")]
    places += [(path, one, key) for path, one in custom for key in ("train", "validation")]
    for path, section, key in places:
        given = section.get(key)
        if not isinstance(given, str) or Path(given).expanduser().is_absolute():
            continue
        found = next((one for one in (folder / given, Path.cwd() / given) if one.exists()), None)
        if found is not None:
            section[key] = str(found)
        elif path:
            there = ", ".join(sorted(one.name for one in folder.iterdir())[:12])
            also = "" if folder == Path.cwd() else f", nor in the current folder ({Path.cwd()})"
            message = f"no file {given} next to the sweep file ({folder}, which holds: {there}){also}"
            mistakes.append(Mistake((*path, key), message))
    return mistakes


def _absolute(sweep: Sweep) -> Sweep:
    """The sweep with absolute local paths, since trials run in folders of their own."""
    data = sweep.data
    custom = {
        name: task.model_copy(
            update={"train": _absolute_path(task.train), "validation": task.validation and _absolute_path(task.validation)}
        )
        for name, task in data.custom.items()
    }
    forgetting = sweep.measure.forgetting
    measure = sweep.measure
    if forgetting is not None and forgetting.text is not None:
        measure = measure.model_copy(update={"forgetting": ForgettingSettings(text=_absolute_path(forgetting.text))})
    root = data.root and _absolute_path(data.root)
    local = is_gguf(sweep.model) or Path(sweep.model).expanduser().is_dir()
    model = _absolute_path(sweep.model) if local else sweep.model
    return sweep.model_copy(
        update={
            "model": model,
            "data": data.model_copy(update={"root": root, "custom": custom}),
            "measure": measure,
            "storage": _absolute_path(sweep.storage),
        }
    )


def _absolute_path(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111  (removes `..` and keeps links; Path cannot)

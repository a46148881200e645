"""`new`, `suggest` and `skill`: files to begin with."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import yaml

from orchestrator.commands.options import AsJson, plain_screen
from orchestrator.tools.quiet import write_report

SHIPPED = Path(__file__).parent.parent / "shipped"
"""The files that come with the package: sweep files with their data, and the skill."""
SKILL = "craft-sweeps"
"""The skill's name, which its folder has too, as assistants expect."""


def new(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A shipped sweep; all are listed if not given.")] = None,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where to write it, with its data.")] = Path(),
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of sweep files, for editors.")] = False,
) -> None:
    """Write a shipped sweep file, or list the shipped ones.

    Its data are written next to it.

    Exit status: 0 written; 2 there is no such sweep, or a file would be overwritten.
    """
    console = plain_screen()
    if schema:
        from orchestrator.sweepfile.schema import sweep_schema

        print(json.dumps(sweep_schema(), indent=2))
    elif name is None:
        for file in sorted(SHIPPED.glob("*.yaml")):
            console.print(f"{file.stem:<14}{_purpose(file)}")
        console.print("\ncraft-sweeps new NAME writes one here; craft-sweeps suggest writes one for your own data")
    else:
        for path in _write(name, to):
            console.print(f"written: {path}")
        console.print(f"run it: craft-sweeps run {shlex.quote(f'{to / name}.yaml')}")


def suggest(
    data: Annotated[Path, typer.Option(metavar="FILE", help="Your examples: CSV, TSV, JSONL, JSON or parquet.")],
    model: Annotated[str, typer.Option(help="A hub id, a local folder or FOLDER/FILE.gguf.")],
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column to predict; chats, and prompts with responses, need none.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="The column of the text; twice for pairs. Found if not given.")
    ] = None,
    hours: Annotated[float, typer.Option(help="How long the sweep may take on this machine.")] = 2.0,
    validation: Annotated[str | None, typer.Option(metavar="FILE", help="A file whose rows are scored.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="classification, regression or generation, if the cells suggest the wrong one.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The sweep's name; the data file's if not given.")] = None,
    encoding: Annotated[str | None, typer.Option(help="The files' encoding if they are no UTF-8, such as cp1252.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be used.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a sweep file for your data, a model and some hours.

    It reads the data and the model, times a few steps of training on this machine, and prints a file that fits the hours.

    Exit status: 0 printed; 2 the data, the model or the hours are unusable.
    """
    from orchestrator.suggest.suggest import SuggestReport
    from orchestrator.suggest.suggest import suggest as suggest_sweep

    suggestion = suggest_sweep(model, str(data), label, text, hours, validation, kind, name, encoding, skip_bad)
    if as_json:
        write_report(SuggestReport(sweep_file=suggestion.text, seconds=suggestion.seconds).to_json())
    else:
        write_report(suggestion.text, end="")


def skill(to: Annotated[Path, typer.Option(metavar="DIR", help="The folder of an assistant's skills.")]) -> None:
    """Write a skill for assistants that run sweeps and read answers.

    It is DIR/craft-sweeps/SKILL.md, in the open format of agent skills.

    Exit status: 0 written; 2 a different skill is there already.
    """
    text, file = (SHIPPED / "SKILL.md").read_text(encoding="utf-8"), to / SKILL / "SKILL.md"
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise ValueError(
            f"{file} is a different skill; nothing is overwritten. Remove it first, or give another folder by --to"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    plain_screen().print(f"written: {file}")


def _read(file: Path) -> bytes:
    data = file.read_bytes()  # of a link that Git could not make: the path of its file
    return (file.parent / data.decode()).read_bytes() if data.startswith(b"../") else data


def _purpose(file: Path) -> str:
    comments = [line[2:] for line in _read(file).decode().splitlines() if line.startswith("# ")]
    lines = [line for line in comments if not line.startswith("yaml-language-server")]
    return re.split(r"(?<=[.?!])\s", " ".join(lines))[0]


def _write(name: str, to: Path) -> Iterator[Path]:
    source = SHIPPED / f"{name}.yaml"
    if not source.is_file():
        raise ValueError(
            f"no sweep {name!r} is shipped; there are {', '.join(sorted(file.stem for file in SHIPPED.glob('*.yaml')))}"
        )
    text = _read(source).decode()
    # Its comments name the place that it has in the repository.
    text = re.sub(r"^# yaml-language-server.*\n", "", text)
    text = re.sub(rf"sweeps/(\w+/)?{name}\.yaml", lambda _: str(to / f"{name}.yaml"), text)
    files = {to / f"{name}.yaml": text.encode()}
    tasks = (yaml.safe_load(text).get("data") or {}).get("custom", {}).values()
    data_files = [task[key] for task in tasks for key in ("train", "validation") if key in task]
    files |= {to / file: _read(SHIPPED / file) for file in data_files}
    for path in files:
        if path.exists():
            raise ValueError(f"{path} exists already; nothing is overwritten. Give another folder by --to")
    to.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        path.write_bytes(data)
        yield path

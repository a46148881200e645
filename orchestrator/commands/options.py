"""Options that several commands share, and checks of their values."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.record.folder import SweepFolder, sweeps_in
from orchestrator.sweepfile.sweep import DEFAULT_STORAGE
from orchestrator.tools.filling import is_empty
from orchestrator.tools.quiet import lasting_stdout

WIDTH = 160
"""The width of a table that goes to a file or a pipe, in characters."""


def _names(incomplete: str) -> list[str]:
    return [name for name in sweeps_in(Path(DEFAULT_STORAGE)) if name.startswith(incomplete)]


def _picks(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Returns the rules and the ids of the sweep's configurations that begin so, the latter with their labels."""
    from orchestrator.record.log import read_state
    from orchestrator.review.past_sweep import find_folder
    from orchestrator.review.pick import RULES

    picks = dict.fromkeys(RULES, "a rule")
    with suppress(ValueError, OSError):
        # Words before an option without its value are not arguments yet.
        sweep = context.params.get("sweep") or next(iter(context.args), "")
        folder = find_folder(sweep, context.params.get("storage"))
        picks |= {entry.trial.configuration: entry.trial.label for entry in read_state(SweepFolder(folder).record).requested}
    return [(pick, about) for pick, about in picks.items() if pick.startswith(incomplete)]


def check_empty(to: Path | None) -> Path | None:
    if to is not None and to.exists() and not to.is_dir():
        raise typer.BadParameter(f"{to} is a file; give a folder that is empty or does not exist")
    if to is not None and to.is_dir() and not is_empty(to):
        raise typer.BadParameter(f"{to} is not empty; give another folder, or empty it first: nothing is ever overwritten")
    return to


SweepFile = Annotated[str, typer.Argument(metavar="SWEEP.yaml", help="The sweep file.")]
Sweep = Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep's name, or its folder runs/NAME.", autocompletion=_names)]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Change one value of the file; VALUE is YAML, list items go by index (space.0.dropout=0.1). Repeatable.",
    ),
]


def check_points(points: float | None) -> float | None:
    """Returns a number of points of the score. Raises BadParameter unless it is above 0 and at most 100."""
    if points is not None and not 0 < points <= 100:
        raise typer.BadParameter(f"got {points:g}; points of the score, above 0 and at most 100")
    return points


Within = Annotated[
    float | None,
    typer.Option(
        metavar="POINTS", callback=check_points, help="Enough means within so many points of the best (enough.within; 1)."
    ),
]


def changes_of(
    changes: list[str] | None, within: float | None = None, until_answered: bool = False, hours: float | None = None
) -> tuple[str, ...]:
    """Returns the changes of a sweep file's values that options ask for, as `key.path=value`."""
    asked = {
        "enough.within": within,
        "search.until": "answered" if until_answered else None,
        "budget.wall_clock": None if hours is None else f"{hours:g}h",
    }
    return (*(changes or ()), *(f"{key}={value}" for key, value in asked.items() if value is not None))


Name = Annotated[str | None, typer.Option(help="The sweep's name, instead of the file's.")]
Storage = Annotated[
    str | None,
    typer.Option(metavar="FOLDER|URI", help="Where to keep runs instead of runs/; a URI gets checkpoints and adapters only."),
]
Store = Annotated[
    str | None,
    typer.Option("--tracking-uri", metavar="URI", help="The MLflow store, instead of the one of the file."),
]
Folders = Annotated[
    str | None, typer.Option("--storage", metavar="FOLDER", help="Where sweeps' folders are, instead of runs/.")
]
Record = Annotated[
    str | None,
    typer.Option("--tracking-uri", metavar="URI", help="The MLflow store in which the name is looked up."),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="A Ray cluster to join (auto, HOST:6379); only this machine if not given."),
]
Pick = Annotated[
    str,
    typer.Option(
        metavar="RULE|CONFIGURATION",
        help="Which configuration: a label, an id or a rule, such as answer, enough, knee, best, under:70000.",
        autocompletion=_picks,
    ),
]
Empty = Annotated[
    Path,
    typer.Option(metavar="DIR", callback=check_empty, help="Where to write. The folder is made, and must be empty."),
]


AsJson = Annotated[bool, typer.Option("--json", help="Print a report for programs (docs/for-programs.md) and nothing else.")]


def screen(quiet: bool = False, lasting: bool = False, width: int = WIDTH) -> Console:
    """Returns the console of a command: as wide as the terminal, or `width` for a file or a pipe.

    Args:
        lasting: whether the command continues after its reader has left.
    """
    stream = lasting_stdout() if lasting else sys.stdout
    return Console(file=stream, quiet=quiet, highlight=False, emoji=False, width=None if sys.stdout.isatty() else width)


def plain_screen(quiet: bool = False) -> Console:
    """Returns a console that prints lines as they are, without marks and folds."""
    width = None if sys.stdout.isatty() else WIDTH
    return Console(file=sys.stdout, width=width, quiet=quiet, soft_wrap=True, highlight=False, emoji=False, markup=False)

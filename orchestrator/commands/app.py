"""`craft-sweeps`: the table of commands, and how each of them ends.

A mistake is a sentence on stderr, without a traceback and without passwords.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from errno import ENOSPC
from pkgutil import resolve_name
from typing import Any, Literal

import typer
from pydantic import Field
from rich.console import Console
from typer.core import TyperGroup

import craft
from craft.plugins import load_inherited
from orchestrator.results.report import Report
from orchestrator.review.past_sweep import NoSuchSweep
from orchestrator.sweepfile.mistakes import NothingMeets, SweepError
from orchestrator.tools.quiet import be_printable, drop_stdout, has_reported, only_report, write_report
from orchestrator.tools.secrets import redact
from orchestrator.tools.signals import ended_by_exceptions
from orchestrator.tracking.client import TrackingError

GOOD, NO, WRONG, STOPPED, LEFT = 0, 1, 2, 130, 141
"""Exit statuses; docs/for-programs.md has all of them with their meaning, those of signals too."""
# Libraries read these when they are imported. They switch off progress bars, banners and usage reports.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


class Row:
    """One command.

    Args:
        function: `module:function` in this package, or with the whole name of another module. Its signature gives the options,
            its docstring the help.
        examples: pairs of a call without its first word, and what it does.
        stopped: the message after Ctrl-C, about what is left behind.
    """

    def __init__(self, function: str, *examples: tuple[str, str], stopped: str = "stopped") -> None:
        self.function = function if "." in function else f"{__package__}.{function}"
        self.name = function.partition(":")[2].rstrip("_")
        self.examples, self.stopped = examples, stopped


HALF = "stopped; nothing is left half-written"
GROUPS: dict[str, tuple[Row, ...]] = {
    "Run": (
        Row("files:new", ("new", "the shipped sweeps"), ("new own_data", "own_data.yaml and its CSV")),
        Row(
            "files:suggest",
            ("suggest --model MODEL --data tickets.csv --label queue --hours 2 > mine.yaml", "a commented file for two hours"),
        ),
        Row("run:plan", ("plan sweeps/ranks.yaml", "what would run, and what each configuration costs")),
        Row("run:check", ("check sweeps/ranks.yaml --address auto", "can the sweep run to its end on that cluster?")),
        Row(
            "run:run",
            ("run sweeps/ranks.yaml", "run it; the record goes to mlflow.db here, all else to runs/ranks/"),
            ("run sweeps/ranks.yaml --resume", "continue after Ctrl-C, a crash or a reboot; finished trials are kept"),
            ("run sweeps/ranks.yaml --set 'seeds=[0,1,2,3,4]' --resume", "extend it: only the new seeds run"),
            ("run sweeps/ranks.yaml --name quick --set space.1.learning_rate=2e-3", "a variant; space.1 is the second block"),
        ),
        Row(
            "control:apply",
            ("apply sweeps/ranks.yaml", "show what the edited file would change in its sweep; do it if you agree"),
        ),
        Row("run:more", ("more ranks", "the seeds, sizes or rates that the answer proposes")),
        Row("control:pause", ("pause ranks", "no trial starts until `craft-sweeps continue ranks`")),
        Row("control:continue_", ("continue ranks", "trials start again")),
        Row("control:stop", ("stop ranks 3fa9c1", "ends the trial whose key begins with 3fa9c1")),
        Row("control:retry", ("retry ranks 3fa9c1", "runs it again, from its last checkpoint")),
    ),
    "Look": (
        Row("results:status", ("status ranks", "progress, running and failed trials, and the answer so far")),
        Row("results:front", ("front ranks --within 2", "table and answer, for within 2 points")),
        Row(
            "dashboards.command:page",
            ("page", "serves http://127.0.0.1:8787 from ./mlflow.db: pick sweeps, watch trials finish, copy tables"),
            ("page ranks --to ranks.html", "the sweep as one self-contained page, under 5 MB"),
        ),
        Row(
            "results:wait",
            ("wait ranks --timeout 600", "returns when the driver of runs/ranks has ended, or in ten minutes"),
            stopped="stopped waiting; the sweep runs on",
        ),
        Row("results:list_", ("list", "the sweeps in runs/")),
        Row(
            "results:compare",
            ("compare longer ranks", "the best configuration of each, best by the search score"),
            ("compare ranks ranks --configuration-a 'CRAFT 64, q k v o' --configuration-b 'LoRA r8, q v'", "two that you name"),
        ),
        Row("results:export", ("export ranks --to results", "results/trials.csv, a line for each trial")),
    ),
    "Take": (
        Row(
            "adapters:take",
            ("take ranks --to adapters/answer", "the answer of runs/ranks, or of the sweep of that name in mlflow.db"),
            ("take ranks --pick under:70000 --as merged --to mine", "a full model that plain transformers loads"),
            stopped=HALF,
        ),
        Row(
            "adapters:cut",
            (
                "cut ranks --pick 'LoRA r8, q v' --size 4 --size parameters:20000 --to cut",
                "to rank 4, and to 20,000 parameters",
            ),
        ),
    ),
    "Judge": (
        Row("results:judge", ("judge trainings.csv", "which configuration of your own trainings is enough?")),
        Row(
            "adapters:audit",
            ("audit my-lora --data held_out.csv --label queue", "would a quarter of its parameters be enough?"),
            stopped=HALF,
        ),
    ),
    "Tools": (
        Row(
            "train:train",
            ("train rte.yaml --to out", "the one training of a file, without Ray and MLflow"),
            stopped="stopped; the same call with --resume continues",
        ),
        Row("results:replay", ("replay runs/ranks", "give the store what it lacks, without running anything")),
        Row(
            "results:remove",
            ("remove ranks", "show what goes and what stays; delete it if you agree"),
            stopped="stopped; the same command removes the rest",
        ),
        Row(
            "train:energy",
            (
                "energy MODEL --projections 'q k v o' --ranks all,64,64",
                "the share of the weights' energy that they keep",
            ),
        ),
        Row("files:skill", ("skill --to .claude/skills", "a skill, where an assistant looks for it")),
    ),
}
"""All commands, in the order of the help."""
COMMANDS = tuple(row for rows in GROUPS.values() for row in rows)

ABOUT = """\
Find out which adapter, at which size, is enough for a task.

A sweep file names model, tasks, methods and sizes; `craft-sweeps run` trains them and shows the front of score against
size. A first day: suggest, plan, run, status, page, take. Every command has --help with examples.
"""


class Groups(TyperGroup):
    """The program's help, with its commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.commands))
        limit = formatter.width - 6 - width
        for title, rows in GROUPS.items():
            with formatter.section(title):
                named = [(row.name, self.commands[row.name]) for row in rows]
                formatter.write_dl([(name.ljust(width), command.get_short_help_str(limit)) for name, command in named])


def main(arguments: Sequence[str] | None = None, start: Sequence[str] = ()) -> int:
    """Runs the command line (the process's own if None) and returns the exit status.

    Args:
        start: the words before the options in commands that people are shown; the names of program and command if empty.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    be_printable()
    os.environ.update({**QUIET, **os.environ})
    is_document = ("--json" in arguments or arguments[:1] == ["suggest"]) and not {"--help", "-h"} & {*arguments}
    try:
        with ended_by_exceptions(), only_report() if is_document else nullcontext():
            status = _run(arguments, start or ("craft-sweeps", *arguments[:1]))
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        return LEFT
    except OSError as error:
        drop_stdout()
        return _say(OSError(f"stdout cannot be written: {error.strerror}"))
    return status


def _run(arguments: Sequence[str], start: Sequence[str]) -> int:
    """Runs a command and returns its exit status. Raises OSError if stdout cannot be written."""
    row = next((row for row in COMMANDS if row.name in arguments[:1]), None)
    commands = (row,) if row else COMMANDS  # a command imports no other's modules
    if arguments[:1] == ["--version"]:
        typer.echo(f"craft-sweeps {craft.__version__}")
        return GOOD
    if sys.platform == "win32":
        return _say(
            OSError("Ray's cluster and the locks of a sweep need Linux or macOS: install WSL (wsl --install), and this there")
        )
    try:
        load_inherited()
        status = build(commands).main(
            [*arguments] or ["--help"], prog_name="craft-sweeps", standalone_mode=False, obj=tuple(start)
        )
    except SystemExit as ended:  # how Typer and Rich end when the reader of a pipe leaves
        if ended.code != NO:
            raise
        raise BrokenPipeError from None
    except typer.Abort as stopped:  # a question was not answered
        if not isinstance(stopped.__context__, EOFError):
            return STOPPED
        trouble: BaseException = ValueError("nobody is there to answer, so nothing was done; --yes answers the question")
    except typer.TyperException as error:  # typer's own words about a wrong call
        command, message = f"craft-sweeps {row.name}" if row else "craft-sweeps", error.format_message().rstrip(".")
        trouble = ValueError(f"{message}{'' if message.endswith('?') else '.'} See {command} --help.")
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno == ENOSPC:
            write_report("")  # raises if stdout is what is full
        trouble = error
    else:
        if status != STOPPED or row is None or has_reported():
            return status or GOOD
        trouble = KeyboardInterrupt(row.stopped)
    report = error_report(trouble)
    if "--json" in arguments:
        write_report(report.to_json())
    else:
        _say(trouble)
    return report.exit_status


def _say(trouble: BaseException) -> int:
    Console(stderr=True, soft_wrap=True, highlight=False, emoji=False, markup=False).print(redact(str(trouble)))
    return WRONG


def build(commands: tuple[Row, ...]) -> Any:
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
    program = typer.Typer(
        cls=Groups,
        help=ABOUT,
        context_settings=settings,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @program.callback()
    def about(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
        """Has the option that needs no command (`_run` answers it)."""

    for row in commands:
        lines = [line for call, purpose in row.examples for line in (f"  craft-sweeps {call}", f"      {purpose}")]
        epilog = "\n".join(["\b", "examples:", *lines])  # \b keeps the lines of a paragraph
        program.command(row.name, epilog=epilog, context_settings=settings)(resolve_name(row.function))
    return typer.main.get_command(program)


ErrorKind = Literal["sweep file", "no such sweep", "nothing yet", "store", "system", "stopped", "call"]


class ErrorReport(Report):
    """Why a command did not do what it was asked."""

    report: Literal["error"] = Field("error", description="The kind of this report.")
    kind: ErrorKind = Field(
        description="`sweep file`: a mistake in the file or a --set. `no such sweep`: no sweep has that name or folder. "
        "`nothing yet`: the call is right, but the sweep has no such configuration or trial. `store`: the tracking store "
        "cannot be used. `system`: a file, the disk or the network. `stopped`: by Ctrl-C. `call`: anything else in the call."
    )
    exit_status: int = Field(description="The exit status of the command.")
    message: str = Field(description="What is wrong, where, what is allowed, and what to do.")
    mistakes: list[str] = Field(description="The message in its parts, one for each mistake of a sweep file.")


def error_report(error: BaseException) -> ErrorReport:
    kinds: tuple[tuple[type[BaseException], ErrorKind, int], ...] = (
        (NothingMeets, "nothing yet", NO),
        (SweepError, "sweep file", WRONG),
        (NoSuchSweep, "no such sweep", WRONG),
        (TrackingError, "store", WRONG),
        (OSError, "system", WRONG),
        (KeyboardInterrupt, "stopped", STOPPED),
        (BaseException, "call", WRONG),
    )
    kind, status = next((kind, status) for cause, kind, status in kinds if isinstance(error, cause))
    message = str(error).strip() or ("stopped" if kind == "stopped" else type(error).__name__)
    return ErrorReport(
        kind=kind,
        exit_status=status,
        message=message,
        mistakes=error.lines if isinstance(error, SweepError) else [message],
    )

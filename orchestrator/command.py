"""Shared by the commands: quiet libraries, flags for finding a sweep or a cluster, and exit statuses.

Exit status: 0 done; 1 the command's answer is no, or the sweep has nothing of that kind (yet); 2 the call is wrong; 130 stopped
by Ctrl-C. A mistake is a sentence on stderr, without a traceback and without passwords.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from craft.words import be_printable, redact
from orchestrator.driver.options import cluster_address
from orchestrator.sweepfile.mistakes import NothingMeets

# Libraries read these when they are imported. They switch off progress bars, banners and usage reports.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}

GOOD, NO, WRONG, STOPPED = 0, 1, 2, 130
WIDTH = 160
"""The width of a table that goes to a file or a pipe, in characters."""


def flags_for(name: str, about: str, examples: str) -> argparse.ArgumentParser:
    """Returns a command's parser with the flags by which `review.past_sweep.find_sweep` looks a sweep up."""
    flags = argparse.ArgumentParser(
        prog=f"python -m orchestrator.{name}",
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    flags.add_argument(
        "--tracking-uri", metavar="URI", help="the MLflow store to look in; sqlite:///mlflow.db if there is no folder"
    )
    flags.add_argument("--storage", metavar="FOLDER", help="where sweeps' folders lie, instead of runs/")
    return flags


def answer(
    flags: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    command: Callable[[argparse.Namespace, Console], int | None],
    stopped: str = "stopped",
) -> int:
    """Runs a command on its arguments (the process's own if None) and returns the exit status, 0 if the command returns none.

    Args:
        stopped: the message after Ctrl-C, about what is left behind.
    """
    be_printable()
    namespace = flags.parse_args(arguments)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    plain = {"soft_wrap": True, "highlight": False, "markup": False}
    errors = Console(stderr=True, **plain)  # type: ignore[arg-type]
    try:
        width = None if sys.stdout.isatty() else WIDTH
        return command(namespace, Console(file=sys.stdout, width=width, **plain)) or GOOD  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        errors.print(redact(str(error)))
        return NO if isinstance(error, NothingMeets) else WRONG
    except KeyboardInterrupt:
        errors.print(stopped)
        return STOPPED


def joinable(text: str) -> str:
    """Checks `--address`. Raises argparse.ArgumentTypeError with the reason."""
    try:
        return cluster_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def slug(name: str) -> str:
    """Returns `name` as part of a path or of a model's name: letters and digits of any script, `_` and `-`; never empty."""
    return re.sub(r"[^\w-]+", "-", name).strip("-")[:80] or "task"


def refuse_full(to: Path) -> None:
    """Checks `--to`. Raises ValueError if it is a file, or a folder with content."""
    if to.exists() and not to.is_dir():
        raise ValueError(f"--to {to} is a file; give a folder that is empty or not there")
    if to.is_dir() and any(to.iterdir()):
        raise ValueError(f"--to {to} is not empty; give another folder, or empty it first: nothing is ever written over")

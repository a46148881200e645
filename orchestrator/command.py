"""What commands share: quiet libraries, an address, where sweeps are looked up, and how a call ends.

Exit status: 0 done; 1 the sweep has nothing of that kind (yet); 2 the call is wrong; 130 stopped by Ctrl-C. A mistake is a
sentence on stderr, never a traceback, and holds no password.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from craft.words import redact
from orchestrator.driver.options import cluster_address

# Libraries read these when they are imported: progress bars, banners and usage reports have no place on the screen.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}

GOOD, NOTHING, WRONG, STOPPED = 0, 1, 2, 130
WIDTH = 160
"""Columns of a table that goes to a file or a pipe."""


def flags_for(name: str, about: str, examples: str) -> argparse.ArgumentParser:
    """A command's parser with the flags by which `review.past_sweep.find_sweep` looks a sweep up."""
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
    command: Callable[[argparse.Namespace, Console], None],
    stopped: str = "",
) -> int:
    """Runs a command on its arguments (the process's own if None) and returns the exit status.

    Args:
        stopped: what Ctrl-C leaves behind, in words.
    """
    from orchestrator.review.pick import NothingMeets  # loads numpy, which the command line of a sweep need not wait for

    given = flags.parse_args(arguments)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    plain = {"soft_wrap": True, "highlight": False, "markup": False}
    errors = Console(stderr=True, **plain)  # type: ignore[arg-type]
    try:
        width = None if sys.stdout.isatty() else WIDTH
        command(given, Console(file=sys.stdout, width=width, **plain))  # type: ignore[arg-type]
        return GOOD
    except NothingMeets as error:
        errors.print(str(error))
        return NOTHING
    except (ValueError, OSError) as error:
        errors.print(redact(str(error)))
        return WRONG
    except KeyboardInterrupt:
        errors.print(stopped or "stopped")
        return STOPPED


def joinable(text: str) -> str:
    """`--address` as the parser takes it."""
    try:
        return cluster_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None

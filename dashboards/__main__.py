"""`python -m dashboards serve` and `python -m dashboards export SWEEP --to FILE`: other names of `craft-sweeps page`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from orchestrator.commands.app import main as main_of_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    verb, *options = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if verb == "export":
        options += [] if "--to" in options else ["--to", "front.html"]
    elif verb != "serve":
        options = [verb, *options]
    return main_of_all(["page", *options])


if __name__ == "__main__":
    sys.exit(main())

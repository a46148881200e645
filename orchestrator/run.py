"""`python -m orchestrator.run SWEEP.yaml`: the same as `craft-sweeps run SWEEP.yaml`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__path__: list[str] = []  # the package imports this module before Python runs it, of which Python warns unless it has a path


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    from orchestrator.commands.app import main as main_of_all

    arguments = sys.argv[1:] if arguments is None else arguments
    return main_of_all(["run", *arguments], start=("python", "-m", "orchestrator.run"))


if __name__ == "__main__":
    sys.exit(main())

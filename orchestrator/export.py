"""`python -m orchestrator.export SWEEP --format trials --to DIR` writes a sweep's results for others.

`trials` is one CSV with a line for each finished trial (`orchestrator.review.trials_table`). The page, the table and the CSV of
a sweep's configurations are written when it ends; see docs/page.md.

Exit status: 0 written; 1 the sweep has nothing of that kind (yet); 2 the call is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from craft.disk import replacing
from orchestrator.command import answer, flags_for, refuse_full
from orchestrator.review.past_sweep import find_sweep
from orchestrator.review.pick import NothingMeets
from orchestrator.review.trials_table import write_trials

TRIALS_FILE = "trials.csv"

EXAMPLES = """\
examples:
  python -m orchestrator.export ranks --format trials --to results
      trials.csv: a line for each finished trial, with its parameters, scores and costs: a record to publish, from which
      tables can be made again

exit status: 0 written; 1 the sweep has no finished trial; 2 the call is wrong
"""


def parser() -> argparse.ArgumentParser:
    """The command line's flags."""
    flags = flags_for("export", "Write a sweep's results in a format that others read.", EXAMPLES)
    flags.add_argument("sweep", metavar="SWEEP", help="a sweep's name, or its folder runs/NAME")
    flags.add_argument("--format", choices=("trials",), default="trials", help="trials: one CSV; the default")
    flags.add_argument("--to", metavar="DIR", type=Path, required=True, help="where to write; made, and must be empty")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return answer(parser(), arguments, _main)


def _main(given: argparse.Namespace, console: Console) -> None:
    refuse_full(given.to)
    record = find_sweep(given.sweep, given.tracking_uri, given.storage)
    if not any(one.result is not None and one.result.status == "finished" for one in record.entries):
        raise NothingMeets(f"{record.name} has no finished trial, so there is nothing to write")
    given.to.mkdir(parents=True, exist_ok=True)
    with replacing(given.to / TRIALS_FILE) as aside:
        written = write_trials(record.entries, aside)
    console.print(f"{written} trials written to {given.to / TRIALS_FILE}")


if __name__ == "__main__":
    sys.exit(main())

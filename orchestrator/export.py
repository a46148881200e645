"""`python -m orchestrator.export SWEEP --format trials --to DIR` writes a sweep's results for others.

`trials` is one CSV: a line for each finished trial with its parameters, scores and costs, and no path, to publish or to keep in
a repository. Columns are named `parameter.NAME`, `metric.NAME`, `count.NAME` and `fact.NAME`. A cell holds text, or JSON; an
empty one, nothing. The page, the table and the CSV of a sweep's configurations are written when it ends (docs/page.md).

Exit status: 0 written; 1 the sweep has nothing of that kind (yet); 2 the call is wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from craft.disk import replacing
from orchestrator.command import answer, flags_for, refuse_full
from orchestrator.results.summary import Entry
from orchestrator.review.past_sweep import find_sweep
from orchestrator.state.entry import TrialResult
from orchestrator.sweepfile.mistakes import NothingMeets

TRIALS_FILE = "trials.csv"
OF_TRIAL = ("key", "configuration", "label", "method", "task", "protocol", "seed", "tunes")
OF_RESULT = ("steps", "seconds")
FACTS = ("data_fingerprint", "train_examples", "search_examples", "reported_examples", "best_step", "device", "versions")
"""What a record says of a trial's surroundings that means something elsewhere."""

EXAMPLES = """\
examples:
  python -m orchestrator.export ranks --format trials --to results
      trials.csv: a line for each finished trial, with its parameters, scores and costs: a record to publish, from which
      tables can be made again

exit status: 0 written; 1 the sweep has no finished trial; 2 the call is wrong
"""


def parser() -> argparse.ArgumentParser:
    """Returns the command line's flags."""
    flags = flags_for("export", "Write a sweep's results in a format that others read.", EXAMPLES)
    flags.add_argument("sweep", metavar="SWEEP", help="a sweep's name, or its folder runs/NAME")
    flags.add_argument("--format", choices=("trials",), default="trials", help="trials: one CSV; the default")
    flags.add_argument("--to", metavar="DIR", type=Path, required=True, help="where to write; made, and must be empty")
    return flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    return answer(parser(), arguments, _main)


def _main(flags: argparse.Namespace, console: Console) -> None:
    refuse_full(flags.to)
    record = find_sweep(flags.sweep, flags.tracking_uri, flags.storage)
    if not any(entry.finished for entry in record.entries):
        raise NothingMeets(f"{record.name} has no finished trial, so there is nothing to write")
    flags.to.mkdir(parents=True, exist_ok=True)
    with replacing(flags.to / TRIALS_FILE) as aside:
        written = write_trials(record.entries, aside)
    console.print(f"{written} trials written to {flags.to / TRIALS_FILE}")


def write_trials(entries: Iterable[Entry], file: Path) -> int:
    """Writes the finished ones of `entries`, and returns how many they are."""
    rows = [_row(entry, result) for entry in entries if (result := entry.finished)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    groups = ("parameter.", "metric.", "count.", "fact.")
    names.sort(key=lambda name: next((place for place, group in enumerate(groups, start=1) if name.startswith(group)), 0))
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def _row(entry: Entry, result: TrialResult) -> dict[str, str]:
    facts = {name: result.facts[name] for name in FACTS if name in result.facts}
    cells = {name: getattr(entry, name) for name in OF_TRIAL} | {name: getattr(result, name) for name in OF_RESULT}
    cells |= {"carried": entry.carried} if entry.carried else {}
    groups = {"parameter": entry.parameters, "metric": result.metrics, "count": result.counts, "fact": facts}
    cells |= {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
    return {name: _written(value) for name, value in cells.items()}


def _written(value: Any) -> str:
    if value is None:
        return ""
    plain = isinstance(value, str) and value != "" and _read(value) == value
    return value if plain else json.dumps(value)


def _read(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


if __name__ == "__main__":
    sys.exit(main())

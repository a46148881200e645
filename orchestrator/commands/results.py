"""Commands about the results of a sweep that has run, or runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.commands.options import Empty, Folders, Record, Sweep, plain_screen
from orchestrator.sweepfile.mistakes import NothingMeets


def compare(
    first: Sweep,
    second: Sweep,
    configuration_a: Annotated[
        str,
        typer.Option(metavar="WHICH", help="Of the first sweep: an id, a label, or a rule such as knee, enough, under:70000."),
    ] = "best",
    configuration_b: Annotated[
        str, typer.Option(metavar="WHICH", help="Of the second sweep, which may be the first.")
    ] = "best",
    metric: Annotated[str, typer.Option(help="What is compared: score, or a metric such as f1.")] = "score",
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Also write the rows that are answered differently.")
    ] = None,
    tracking_uri: Record = None,
    storage: Folders = None,
) -> None:
    """Compare two sweeps, or two configurations of one, seed by seed.

    The difference is that of the reported scores, first minus second, over what both configurations finished, with a 95 % t
    interval over the seeds: a seed's tasks share its luck, so each seed counts once, with its mean over the tasks. If the
    interval holds zero, no difference is shown. That does not mean that there is none: more seeds narrow the interval. Where
    credits of the examples are on record, the luck that a configuration has with them for all its seeds is in the interval,
    which then is about new examples. The interval of one seed is over the examples alone.

    Exit status: 0 compared, whatever the verdict; 1 nothing to compare; 2 the call is wrong, or the sweeps do not compare.
    """
    from orchestrator.review.comparing import compare_sweeps, show_comparison
    from orchestrator.review.past_sweep import find_sweep

    left, right = (find_sweep(name, tracking_uri, storage) for name in (first, second))
    show_comparison(compare_sweeps(left, right, configuration_a, configuration_b, metric), plain_screen(), rows)


def export(sweep: Sweep, to: Empty, tracking_uri: Record = None, storage: Folders = None) -> None:
    """Write the finished trials of a sweep as one CSV.

    trials.csv has a line for each, with its parameters, scores and costs: a record to publish, and to make tables from.

    Exit status: 0 written; 1 the sweep has no finished trial; 2 the call is wrong.
    """
    from orchestrator.review.past_sweep import find_sweep
    from orchestrator.review.trials_file import TRIALS_FILE, write_trials

    record = find_sweep(sweep, tracking_uri, storage)
    if not any(entry.finished for entry in record.entries):
        raise NothingMeets(f"{record.name} has no finished trial, so there is nothing to write")
    to.mkdir(parents=True, exist_ok=True)
    written = write_trials(record.entries, to / TRIALS_FILE)
    plain_screen().print(f"{written} trials written to {to / TRIALS_FILE}")

"""Commands about the results of a sweep that has run, or runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from craft.stdout import write_report
from craft.words import plural
from orchestrator.commands.options import AsJson, Empty, Folders, Record, Sweep, Within, plain_screen, screen
from orchestrator.sweepfile.mistakes import NothingMeets


def status(sweep: Sweep, storage: Folders = None, as_json: AsJson = False) -> None:
    """Show how far a sweep is, whether it runs or not.

    Exit status: 0 shown; 2 there is no such sweep.
    """
    from orchestrator.reports.status import read_status
    from orchestrator.reports.status_view import show_status
    from orchestrator.review.past_sweep import find_folder

    report = read_status(find_folder(sweep, storage))
    write_report(report.to_json()) if as_json else show_status(report, screen())


def front(
    sweep: Sweep, within: Within = None, tracking_uri: Record = None, storage: Folders = None, as_json: AsJson = False
) -> int:
    """Show the front and the answer of a sweep that runs or has run.

    Exit status: 0 shown; 1 no trial has finished; 2 there is no such sweep.
    """
    from orchestrator.review.front_tables import show_front
    from orchestrator.review.past_sweep import find_sweep

    record = find_sweep(sweep, tracking_uri, storage).with_within(within)
    if as_json:
        from orchestrator.reports.front import front_report

        write_report(front_report(record).to_json())
    elif not any(summary.finished or summary.failed for summary in record.summaries):
        raise NothingMeets(f"no trial of {record.name} has ended yet")
    else:
        title = f"{record.name}: {record.sweep.model}"
        show_front(record.summaries, record.sweep, record.answer, title, screen())
    return 0 if any(summary.finished for summary in record.summaries) else 1


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
        Path | None, typer.Option(metavar="FILE.csv", help="Also write the rows that the two answer differently.")
    ] = None,
    tracking_uri: Record = None,
    storage: Folders = None,
    as_json: AsJson = False,
) -> None:
    """Compare two sweeps, or two configurations of one, seed by seed.

    The difference is between the reported scores, first minus second, over the seeds and tasks that both have finished. Its
    interval is a 95 % t interval over seeds. The tasks of a seed share its randomness, so each seed counts once, with its mean
    over the tasks. If the interval contains zero, no difference is shown. There may still be one: more seeds narrow the
    interval. If the credits of the examples are on record, the interval includes the randomness of drawing examples, and so is
    about new examples. The interval of one seed is over examples alone.

    Exit status: 0 compared, whatever the verdict; 1 nothing to compare; 2 the call is wrong, or the sweeps cannot be compared.
    """
    from orchestrator.review.comparing import compare_sweeps, show_comparison
    from orchestrator.review.past_sweep import find_sweep

    left, right = (find_sweep(name, tracking_uri, storage) for name in (first, second))
    compared = compare_sweeps(left, right, configuration_a, configuration_b, metric)
    show_comparison(compared, plain_screen(quiet=as_json), rows)
    if as_json:
        from orchestrator.reports.compare import compare_report

        write_report(compare_report(compared).to_json())


def export(
    sweep: Sweep,
    to: Empty,
    rows: Annotated[
        Literal["reported"] | None,
        typer.Option(metavar="reported", help="Instead of trials, the rows whose scores are reported, as JSON Lines."),
    ] = None,
    tracking_uri: Record = None,
    storage: Folders = None,
    as_json: AsJson = False,
) -> None:
    """Write the trials of a sweep that have ended as one CSV.

    trials.csv has one row per trial with its parameters, scores and costs, or why it failed: to publish, to make tables from,
    and to judge.

    Exit status: 0 written; 1 the sweep has no finished trial; 2 the call is wrong.
    """
    from orchestrator.review.past_sweep import find_sweep
    from orchestrator.review.trials_file import TRIALS_FILE, write_trials

    record = find_sweep(sweep, tracking_uri, storage)
    if not any(entry.finished for entry in record.entries):
        raise NothingMeets(f"{record.name} has no finished trial, so there is nothing to write")
    to.mkdir(parents=True, exist_ok=True)
    if rows is not None:
        from orchestrator.review.reported_rows import write_reported

        files = write_reported(record, to)
        for file, count in files.items():
            plain_screen(quiet=as_json).print(f"{count:,} reported {plural(count, 'row')} written to {file}")
        path, written = to, 0
    else:
        files, path = {}, to / TRIALS_FILE
        written = write_trials(record.entries, path)
        plain_screen(quiet=as_json).print(f"{written} {plural(written, 'trial')} written to {path}")
    if as_json:
        from orchestrator.reports.written import ExportReport

        write_report(ExportReport(sweep=record.name, path=str(path), trials=written, rows=sum(files.values())).to_json())

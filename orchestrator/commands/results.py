"""Commands about sweeps that have run, or run: what is known of them, where they are, the end of one, what it has written; and
`judge`, about trainings of anybody."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from craft.words import plural
from orchestrator.commands.options import AsJson, Empty, Folders, Record, Sweep, Within, plain_screen, screen
from orchestrator.record.folder import SweepFolder, is_driven, one_driver
from orchestrator.record.log import read_state
from orchestrator.record.resume import copied_from
from orchestrator.sweepfile.mistakes import NothingMeets
from orchestrator.tools.quiet import write_report
from orchestrator.tracking.client import TrackingError, resolve_uri
from orchestrator.tracking.follower import describe_refused

POLL_SECONDS, BEGIN_SECONDS, AGAIN_SECONDS = 1.0, 120.0, 10.0
"""How often `wait` looks, how long it waits for a sweep to begin, and for an ended one to be started again."""


def status(sweep: Sweep, storage: Folders = None, as_json: AsJson = False) -> None:
    """Show how far a sweep is, whether it runs or not.

    Exit status: 0 shown; 2 there is no such sweep.
    """
    from orchestrator.review.past_sweep import find_folder
    from orchestrator.review.progress import read_status

    report = read_status(find_folder(sweep, storage))
    write_report(report.to_json()) if as_json else report.show(screen())


def front(
    sweep: Sweep, within: Within = None, tracking_uri: Record = None, storage: Folders = None, as_json: AsJson = False
) -> int:
    """Show the front and the answer of a sweep that runs or has run.

    Exit status: 0 shown; 1 no trial has finished; 2 there is no such sweep.
    """
    from orchestrator.review.front_report import front_report
    from orchestrator.review.front_tables import show_front
    from orchestrator.review.past_sweep import find_sweep

    record = find_sweep(sweep, tracking_uri, storage).with_within(within)
    if as_json:
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

    first_record, second_record = (find_sweep(name, tracking_uri, storage) for name in (first, second))
    compared = compare_sweeps(first_record, second_record, configuration_a, configuration_b, metric)
    if rows is not None:
        rows.parent.mkdir(parents=True, exist_ok=True)
    show_comparison(compared, plain_screen(quiet=as_json), rows)
    if as_json:
        write_report(compared.to_json())


def export(
    sweep: Sweep,
    to: Empty,
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
    from orchestrator.review.trials_file import TRIALS_FILE, ExportReport, write_trials

    record = find_sweep(sweep, tracking_uri, storage)
    if not any(entry.finished for entry in record.state.requested):
        raise NothingMeets(f"{record.name} has no finished trial, so there is nothing to write")
    to.mkdir(parents=True, exist_ok=True)
    path = to / TRIALS_FILE
    written = write_trials(record.state.requested, path)
    plain_screen(quiet=as_json).print(f"{written} {plural(written, 'trial')} written to {path}")
    if as_json:
        write_report(ExportReport(sweep=record.name, path=str(path), trials=written).to_json())


def judge(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Trainings, one in a row: CSV, TSV, JSON Lines or parquet.")],
    score: Annotated[str | None, typer.Option(metavar="COLUMN", help="The score.")] = None,
    minimize: Annotated[bool | None, typer.Option("--minimize/--maximize", help="Whether less of the score is better.")] = None,
    size: Annotated[str | None, typer.Option(metavar="COLUMN", help="The size, or any other cost: less is better.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="COLUMNS", help="What repeats a training, such as seed,fold.")] = None,
    task: Annotated[str | None, typer.Option(metavar="COLUMN", help="The task.")] = None,
    by: Annotated[str | None, typer.Option(metavar="COLUMNS", help="The settings, such as lr,batch_size: no others.")] = None,
    ignore: Annotated[str | None, typer.Option(metavar="COLUMNS", help="Columns to leave out.")] = None,
    independent: Annotated[
        bool, typer.Option("--independent", help="Each row is a training of its own; without seeds none are compared in pairs.")
    ] = False,
    within: Within = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="Also compare two configurations, seed by seed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Judge trainings that another program ran.

    The file has one training per row: its settings, its score and, if known, its size, seed, task and number of scored
    examples. Rows that differ only in seed and task are one configuration. Tables of MLflow, W&B and Optuna are read by their
    names of columns, and trials.csv of craft-sweeps export is read as it is. What a column is, is never guessed: a table that
    leaves it open is refused, with the commands that say it.

    It prints how each column was read, then what a sweep gives: the front, intervals, the probabilities of being on the front
    and of being enough, the answer, and what to run next; then what the file lacks. Scores up to 1 are shown times 100; losses
    have a minus, and losses up to 10 are shown times 100.

    Exit status: 0 judged; 2 the table leaves something open, or a row cannot be read.
    """
    from orchestrator.review.comparing import compare_sweeps, show_comparison
    from orchestrator.review.front_report import front_report
    from orchestrator.review.front_tables import show_front
    from orchestrator.review.run_columns import Call
    from orchestrator.review.run_table import read_table

    table = read_table(file, Call(score, minimize, size, seed, task, by, ignore, independent), within)
    record = table.record
    compared = None if compare is None else compare_sweeps(record, record, *compare, flags=("--compare", "--compare"))
    if as_json:
        write_report(front_report(record, read=table.read, lacks=table.lacks, comparison=compared).to_json())
        return
    console = screen()
    for line in table.read:
        console.print(line, markup=False, soft_wrap=True)
    show_front(record.summaries, record.sweep, record.answer, record.name, console)
    if compared is not None:
        show_comparison(compared, console)
    for line in table.lacks:
        console.print(f"{line}.", markup=False, soft_wrap=True)


def list_(
    tracking_uri: Annotated[
        str | None, typer.Option(metavar="URI", help="List the sweeps of this MLflow store, instead of those of a folder.")
    ] = None,
    storage: Folders = None,
    as_json: AsJson = False,
) -> None:
    """List the sweeps of a folder or a store.

    It shows their state, trainings, size and answer; without --tracking-uri those in runs/.

    Exit status: 0 listed; 2 the store cannot be read.
    """
    from orchestrator.review.listing import list_sweeps

    report = list_sweeps(tracking_uri, storage)
    if as_json:
        write_report(report.to_json())
        return
    if not report.sweeps:
        plain_screen().print(f"no sweep in {report.place}")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("sweep", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("done", "size"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("answer", overflow="fold")
    for row in report.sweeps:
        table.add_row(*map(Text, row.cells))
    screen().print(table)


def wait(
    sweep: Sweep,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Return after this long, though the sweep runs on.")
    ] = None,
    storage: Folders = None,
    as_json: AsJson = False,
) -> int:
    """Wait until a sweep that runs has ended, and show its status.

    For programs that started `run` in the background. It waits up to two minutes for a sweep to begin, and for one that has
    ended ten seconds, in which a command that continues it may begin. It changes nothing.

    Exit status: 0 it has finished, and no trial failed; 1 it failed, was interrupted, or still runs; 2 there is no such sweep.
    """
    from orchestrator.review.progress import read_status

    began = time.monotonic()
    deadline = float("inf") if timeout is None else began + timeout
    folder, was_driven = _await_folder(sweep, storage, min(deadline, began + BEGIN_SECONDS)), False
    again = time.monotonic() + AGAIN_SECONDS
    while time.monotonic() < deadline:
        driven = is_driven(folder)
        if not driven and (was_driven or time.monotonic() >= again):
            break
        was_driven = was_driven or driven
        time.sleep(POLL_SECONDS)
    report = read_status(folder)
    write_report(report.to_json()) if as_json else report.show(screen())
    return 0 if report.phase == "finished" and not report.failed else 1


def remove(
    sweep: Sweep,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    tracking_uri: Record = None,
    storage: Folders = None,
    as_json: AsJson = False,
) -> int:
    """Remove a sweep with its runs and adapters.

    Its folder goes, and its runs in the tracking store with their artifacts. It prints what goes and what stays, and asks.
    --json without --yes removes nothing. A sweep whose driver lives is refused.

    Exit status: 0 removed, or the answer was no; 1 a part could not be deleted; 2 there is no such sweep, or its driver lives.
    """
    from orchestrator.review.listing import find_removal
    from orchestrator.review.listing import remove as remove_sweep

    removal, console = find_removal(sweep, tracking_uri, storage), plain_screen(quiet=as_json)
    for title, lines in (("removes", removal.goes), ("leaves", removal.stays)):
        for line in lines:
            console.print(f"{title}: {line}", soft_wrap=True)
    agreed = yes or (not as_json and typer.confirm(f"Remove {removal.sweep}?"))
    failed = remove_sweep(removal) if agreed else []
    if as_json:
        write_report(removal.model_copy(update={"removed": agreed, "failed": failed}).to_json())
    elif agreed:
        console.print(f"{removal.sweep} is removed")
    for line in failed:
        console.print(f"could not delete: {line}", soft_wrap=True)
    return 1 if failed else 0


def _await_folder(sweep: str, storage: str | None, deadline: float) -> Path:
    """Returns the sweep's folder, which a run that has just been started makes after some seconds."""
    from orchestrator.review.past_sweep import NoSuchSweep, find_folder

    while True:
        try:
            return find_folder(sweep, storage)
        except NoSuchSweep:
            if time.monotonic() >= deadline:
                raise
        time.sleep(POLL_SECONDS)


def replay(
    folder: Annotated[Path, typer.Argument(help="The sweep's folder, as in runs/NAME.")],
    tracking_uri: Annotated[
        str | None, typer.Option(metavar="URI", help="The store; the one that the sweep used if not given.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up after this long.")] = 600.0,
) -> int:
    """Make the tracking store equal to a sweep's log.

    Missing runs and values are added, different ones are corrected.

    Exit status: 0 the store has everything; 1 something is still missing; 2 the call is wrong.
    """
    from orchestrator.review.mirror import replay as replay_log

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    record = SweepFolder(folder)
    if not record.record.exists():
        raise TrackingError(f"{folder} holds no {record.record.name}: give the folder of a sweep, as in runs/NAME")
    with one_driver(folder):
        if (state := read_state(record.record)).started is None:
            raise TrackingError(f"{record.record} has no session yet, so there is nothing to send")
        if (original := copied_from(folder.absolute(), state)) is not None:
            raise ValueError(f"{folder} is a copy of {original}, which has the same runs in the store: replay that folder")
        if "***" in (uri := tracking_uri or state.sweep.tracking.uri):
            raise TrackingError(f"{record.record} keeps no passwords ({uri}); give --tracking-uri with the whole address")
        events, refused = replay_log(folder, resolve_uri(uri), timeout)
    if events:
        plain_screen().print(f"{events} {plural(events, 'event')} left; run this again when the store answers")
    if refused:
        plain_screen().print(describe_refused(refused))
    if not events and not refused:
        plain_screen().print("everything is in the tracking store")
    return 1 if events or refused else 0

"""`list`, `wait` and `remove`: the sweeps of a folder or store, the end of one, and what it has written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from orchestrator.commands.options import AsJson, Folders, Record, Sweep, plain_screen, screen
from orchestrator.tools.quiet import write_report

if TYPE_CHECKING:
    from pathlib import Path

POLL_SECONDS, BEGIN_SECONDS, AGAIN_SECONDS = 1.0, 120.0, 10.0
"""How often `wait` looks, how long it waits for a sweep to begin, and for an ended one to be started again."""
SILENT_SECONDS = 300.0
"""A driver on another machine that has written nothing for so long is gone: it reports every 15 seconds."""


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
    from orchestrator.record.folder import is_driven
    from orchestrator.review.progress import read_status

    began = time.monotonic()
    deadline = float("inf") if timeout is None else began + timeout
    folder, was_driven = _await_folder(sweep, storage, min(deadline, began + BEGIN_SECONDS)), False
    again = time.monotonic() + AGAIN_SECONDS
    while time.monotonic() < deadline:
        driven = is_driven(folder, SILENT_SECONDS)
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
    from orchestrator.review.listing import RemoveReport, find_removal
    from orchestrator.review.listing import remove as remove_sweep

    removal, console = find_removal(sweep, tracking_uri, storage), plain_screen(quiet=as_json)
    for title, lines in (("removes", removal.goes), ("leaves", removal.stays)):
        for line in lines:
            console.print(f"{title}: {line}", soft_wrap=True)
    agreed = yes or (not as_json and typer.confirm(f"Remove {removal.sweep}?"))
    failed = remove_sweep(removal) if agreed else []
    if as_json:
        write_report(RemoveReport.fill(removal, removed=agreed, failed=failed).to_json())
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

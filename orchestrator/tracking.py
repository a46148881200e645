"""The record of a sweep in MLflow, written so that it never stands in the way of training.

    driver  --Tracker-->  journal.jsonl (on disk)  --Shipper-->  MlflowWriter  -->  MLflow

Every call of `Tracker` appends to the sweep's journal and returns at once. The shipper ships the journal in batches, in order,
and moves a cursor when the store has taken a batch. While a server is slow, restarts or is gone, events wait in the journal.
After a crash of the driver, the next session continues where the cursor stands. This command ships the rest without running
anything; a sweep runs it with `--follow` as a process of its own:

    python -m orchestrator.tracking replay runs/NAME [--tracking-uri URI]

Sending an event twice is harmless (`orchestrator.record.mlflow_writer`): each run, metric and artifact is in the store once.
The first line of the journal names a `sweep_id`. Every run of the sweep carries it as a tag.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.console import Console

from orchestrator.command import GOOD, NO, answer
from orchestrator.record import follower
from orchestrator.record.folder import SweepFolder
from orchestrator.record.lock import one_driver
from orchestrator.record.shipper import follow
from orchestrator.record.tracker import Tracker
from orchestrator.record.tracking_uri import TrackingError, resolve_uri
from orchestrator.review.front_tables import markdown
from orchestrator.tools.journal import events_of
from orchestrator.tools.quiet import LOG_FORMAT


def replay(folder: Path, uri: str | None, timeout_s: float) -> int:
    """Ships the rest of a sweep's journal, and marks runs that nothing is running any more as killed.

    Returns:
        The number of events that could not be shipped in `timeout_s` seconds.
    """
    journal = SweepFolder(folder).journal
    opened = next(events_of(journal, "opened"), None)
    if opened is None:
        raise TrackingError(f"{folder} holds no {journal.name}: give the folder of a sweep, as in runs/NAME")
    target = uri or opened["uri"]
    if "***@" in target:
        raise TrackingError(f"the journal keeps no passwords ({target}); give --tracking-uri with the whole address")
    tracker = Tracker(target, opened["sweep"], folder)
    tracker.replayed()
    return tracker.close(timeout_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m orchestrator.tracking`: 0 all shipped, 1 something is left, 2 a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.tracking", description="A sweep's record in MLflow.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("replay", help="ship what a sweep's journal still holds")
    command.add_argument("folder", type=Path, help="the sweep's folder, as in runs/NAME")
    command.add_argument("--tracking-uri", help="the store; the one the sweep used if absent")
    command.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="give up after this long (600)")
    command.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    command = commands.add_parser("follow", help="what a running sweep starts: follows its log while standard input is open")
    command.add_argument("folder", type=Path, help="the sweep's folder; the store's address comes by standard input")
    return answer(parser, arguments, _main)


def _main(given: argparse.Namespace, console: Console) -> int:
    following = given.command == "follow" or getattr(given, "follow", False)
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT if following else "%(message)s")
    if given.command == "follow":
        follower.follow(given.folder, markdown)
    if given.command == "replay" and given.follow:
        follow(given.folder)
    if SweepFolder(given.folder).record.exists():
        with one_driver(given.folder):
            uri = resolve_uri(given.tracking_uri) if given.tracking_uri else _read_uri(SweepFolder(given.folder))
            left = follower.replay(given.folder, uri, markdown, given.timeout)
    else:
        left = replay(given.folder, given.tracking_uri, given.timeout)
    said = f"{left} events are left; run this again when the store answers"
    console.print(said if left else "everything is in the tracking store")
    return NO if left else GOOD


def _read_uri(folder: SweepFolder) -> str:
    """Returns the store that the sweep used last.

    Raises:
        TrackingError: its address holds a password, which is kept nowhere.
    """
    uri = str(yaml.safe_load(folder.effective.read_text(encoding="utf-8"))["tracking"]["uri"])
    if "***@" in uri:
        raise TrackingError(f"{folder.effective} keeps no passwords ({uri}); give --tracking-uri with the whole address")
    return resolve_uri(uri)


if __name__ == "__main__":
    sys.exit(main())

"""The record of a sweep in MLflow, written so that it never stands in the way of training.

    driver  --Tracker-->  journal.jsonl (on disk, fsynced)  --Shipper thread-->  MlflowWriter  -->  MLflow

Every call of `Tracker` returns at once: it appends to the sweep's journal. One thread ships the journal, in order, to the
tracking store in batches, and moves a cursor when the store has taken them. While a server is slow, restarts or is gone, events
wait in the journal; after a crash of the driver, the next start of the sweep goes on where the cursor stands, and

    python -m orchestrator.tracking replay runs/NAME [--tracking-uri URI]

ships what is left without running anything. Everything shipped is idempotent (see `orchestrator.record.mlflow_writer`), so
each run, metric and artifact is there once however often it was sent. The journal is also the identity of the sweep in the
store: its first line names a `sweep_id`, and every run of the sweep carries it as a tag.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from craft.words import redact
from orchestrator.record.folder import SweepFolder
from orchestrator.record.tracker import Tracker
from orchestrator.record.tracking_uri import TrackingError
from orchestrator.tools.journal import JournalBusy, read


def replay(folder: Path, uri: str | None, timeout_s: float) -> int:
    """Ship what a sweep's journal still holds, and mark runs that nothing is running any more as killed.

    Returns:
        How many events could not be shipped in `timeout_s` seconds.

    Raises:
        TrackingError: there is no journal there, or its store must be named because the journal keeps no passwords.
    """
    journal = SweepFolder(folder).journal
    opened = next((event for event, _ in read(journal)), None)
    if opened is None or opened.get("kind") != "opened":
        raise TrackingError(f"{folder} holds no {journal.name}: give the folder of a sweep, as in runs/NAME")
    target = uri or opened["uri"]
    if "***@" in target:
        raise TrackingError(f"the journal keeps no passwords ({target}); give --tracking-uri with the whole address")
    tracker = Tracker(target, opened["sweep"], folder)
    if tracker._open_trials:
        tracker.sweep_ended("interrupted", {})
    else:
        # Something must be written for the shipper to look whether the store still has the record.
        tracker._write({"kind": "replayed"})
    return tracker.close(timeout_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m orchestrator.tracking`: 0 all shipped, 1 something is left, 2 a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.tracking", description="A sweep's record in MLflow.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("replay", help="ship what a sweep's journal still holds")
    command.add_argument("folder", type=Path, help="the sweep's folder, as in runs/NAME")
    command.add_argument("--tracking-uri", help="the store; the one the sweep used if absent")
    command.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="give up after this long (600)")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        left = replay(given.folder, given.tracking_uri, given.timeout)
    except (TrackingError, JournalBusy, OSError) as error:
        print(redact(str(error)), file=sys.stderr)
        return 2
    print(f"{left} events are left; run this again when the store answers" if left else "everything is in the tracking store")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())

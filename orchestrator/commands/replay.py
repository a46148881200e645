"""`replay`: the record of a sweep in MLflow is made equal to its log, once. A running sweep does this all the time."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from craft.words import plural
from orchestrator.commands.options import plain_screen
from orchestrator.record.folder import SweepFolder
from orchestrator.record.lock import one_driver
from orchestrator.state.log import read_state
from orchestrator.tracking.uri import TrackingError, resolve_uri


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
    from orchestrator.review.front_tables import markdown
    from orchestrator.tracking import follower

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    record = SweepFolder(folder)
    if not record.record.exists():
        raise TrackingError(f"{folder} holds no {record.record.name}: give the folder of a sweep, as in runs/NAME")
    with one_driver(folder):
        uri = resolve_uri(tracking_uri) if tracking_uri else _read_uri(record)
        left = follower.replay(folder, uri, markdown, timeout)
    waiting = f"{left} {plural(left, 'event')} left; run this again when the store answers"
    plain_screen().print(waiting if left else "everything is in the tracking store")
    return 1 if left else 0


def _read_uri(folder: SweepFolder) -> str:
    """Returns the store that the sweep used last.

    Raises:
        TrackingError: no session has begun, or its address holds a password, which is kept nowhere.
    """
    if (state := read_state(folder.record)).started is None:
        raise TrackingError(f"{folder.record} has no session yet, so there is nothing to send")
    uri = state.sweep.tracking.uri
    if "***" in uri:
        raise TrackingError(f"{folder.record} keeps no passwords ({uri}); give --tracking-uri with the whole address")
    return resolve_uri(uri)

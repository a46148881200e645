"""The record of a sweep in MLflow: `python -m orchestrator.tracking`.

    driver  -->  log.jsonl (on disk)  -->  the process that follows it (`orchestrator.record.follower`)  -->  MLflow

The process makes the sweep's runs in the store equal to the state of the log (`orchestrator.record.mirror`). While a server is
slow, restarts or is gone, the log holds all. This command does the same once, without running anything:

    python -m orchestrator.tracking replay runs/NAME [--tracking-uri URI]
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
from orchestrator.record.tracking_uri import TrackingError, resolve_uri
from orchestrator.review.front_tables import markdown
from orchestrator.tools.quiet import LOG_FORMAT


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line: 0 the store has everything, 1 something is left, 2 a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m orchestrator.tracking", description="A sweep's record in MLflow.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("replay", help="make the store equal to a sweep's log")
    command.add_argument("folder", type=Path, help="the sweep's folder, as in runs/NAME")
    command.add_argument("--tracking-uri", help="the store; the one the sweep used if absent")
    command.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="give up after this long (600)")
    command = commands.add_parser("follow", help="what a running sweep starts: follows its log while standard input is open")
    command.add_argument("folder", type=Path, help="the sweep's folder; the store's address comes by standard input")
    return answer(parser, arguments, _main)


def _main(flags: argparse.Namespace, console: Console) -> int:
    follows = flags.command == "follow"
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT if follows else "%(message)s")
    if follows:
        follower.follow(flags.folder, markdown)
    folder = SweepFolder(flags.folder)
    if not folder.record.exists():
        raise TrackingError(f"{folder.path} holds no {folder.record.name}: give the folder of a sweep, as in runs/NAME")
    with one_driver(folder.path):
        uri = resolve_uri(flags.tracking_uri) if flags.tracking_uri else _read_uri(folder)
        left = follower.replay(folder.path, uri, markdown, flags.timeout)
    waiting = f"{left} events are left; run this again when the store answers"
    console.print(waiting if left else "everything is in the tracking store")
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
